"""Which files of a tree are copied: pure decisions over paths and sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import translate
from functools import cache
from pathlib import PurePosixPath

from ftslurm.words import plural

MOST_FILES = 20_000
MOST_MB = 100  # of all copied files together
MOST_FILE_MB = 20  # a larger file is data
CODE = frozenset(
    (
        *(".py", ".pyi", ".pyx", ".pxd", ".so", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".sh"),
        *(".yaml", ".yml", ".toml", ".json", ".cfg", ".ini", ".txt", ".j2"),
    )
)
_MODULES = (".py", ".so")  # also copied if git ignores them: generated version files, extensions built in place
# Never copied: keys and passwords, by their usual names. A link leads to the original.
_SECRET = re.compile(
    r"(?is:.*\.env(rc|\..+)?|.+\.(pem|key|p12|pfx|keystore|jks|ppk|kdbx)|id_(rsa|dsa|ecdsa|ed25519).*"
    r"|[._]?(netrc|pgpass|npmrc|pypirc|htpasswd|dockercfg|kubeconfig)"
    r"|\.?(.+[-_.])?(credential|secret|service[-_]?account)s?([-_.].+)?(?<!\.py)|((access|api|auth|hf)[-_])?token(\.txt)?)"
)


def excluded(path: str, exclude: tuple[str, ...]) -> bool:
    """Return whether job.snapshot_exclude names a path or a folder above it, or its name is that of a secret."""
    return (_pattern(exclude).match(path) or _SECRET.fullmatch(PurePosixPath(path).name)) is not None


@cache
def _pattern(globs: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of globs as in .gitignore: without a slash they name files and folders anywhere."""
    parts = []
    for one in globs:
        bare = one.strip("/")
        start = "" if "/" in one.rstrip("/") else r"(?:.*/)?"
        parts.append(start + "(?:" + translate(bare).replace(r"\Z", "").replace(r"\z", "") + r")(?:/.*)?")
    return re.compile(r"(?s:" + "|".join(parts) + r")\Z")  # of none: matches no path


def is_code(path: str) -> bool:
    """Return whether a file is code or configuration by its name."""
    return PurePosixPath(path).suffix in CODE


def is_module(path: str) -> bool:
    """Return whether Python can import a file."""
    return path.endswith(_MODULES)


def choose(sizes: Mapping[str, int], tracked: frozenset[str], exclude: tuple[str, ...]) -> frozenset[str] | str:
    """Return the files to copy, or why they are too many.

    If all together are too large, data that git does not know is left out first.

    Args:
        sizes: the candidates, by their path in the tree.
        tracked: those that git keeps.
        exclude: job.snapshot_exclude.
    """
    wanted = {path: size for path, size in sizes.items() if size <= MOST_FILE_MB << 20 and not excluded(path, exclude)}
    if not _fits(wanted):
        wanted = {path: size for path, size in wanted.items() if path in tracked or is_code(path)}
    if _fits(wanted):
        return frozenset(wanted)
    return (
        f"{plural(len(wanted), 'file')} with {sum(wanted.values()) >> 20} MB are more than {MOST_MB} MB or "
        f"{MOST_FILES} files; leave out data with job.snapshot_exclude"
    )


def _fits(sizes: Mapping[str, int]) -> bool:
    return len(sizes) <= MOST_FILES and sum(sizes.values()) <= MOST_MB << 20


def late(path: str, size: int, exclude: tuple[str, ...]) -> bool:
    """Return whether a file that git ignores is copied all the same: Python may import it."""
    return is_module(path) and size <= MOST_FILE_MB << 20 and not excluded(path, exclude)
