"""Which files of a tree are copied: pure decisions over paths and sizes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from ftslurm.words import plural

MOST_FILES = 20_000
MOST_MB = 100  # of all copied files together
MOST_FILE_MB = 20  # a larger file is data; so is one above 1 MB that git does not keep, if it is no module
CODE = (
    *(".py", ".pyi", ".pyx", ".pxd", ".so", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".sh"),
    *(".yaml", ".yml", ".toml", ".json", ".cfg", ".ini", ".txt", ".j2", ".gitignore"),
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
    above = [path[: end.start()] for end in re.finditer(r"/|\Z", path)]  # the folders, and the path itself
    return _SECRET.fullmatch(os.path.basename(path)) is not None or any(
        # As in .gitignore: without a slash it names files and folders anywhere.
        fnmatchcase(one if "/" in glob.rstrip("/") else os.path.basename(one), glob.strip("/"))
        for glob in exclude
        for one in above
    )


def choose(sizes: Mapping[str, int], tracked: frozenset[str], exclude: tuple[str, ...]) -> frozenset[str] | str:
    """Return the files to copy, or why they are too many.

    Args:
        sizes: the candidates, by their path in the tree.
        tracked: those that git keeps.
        exclude: job.snapshot_exclude.
    """

    def most_mb(path: str) -> int:
        return MOST_FILE_MB if path in tracked or path.endswith(_MODULES) else 1

    wanted = {path: size for path, size in sizes.items() if size <= most_mb(path) << 20 and not excluded(path, exclude)}
    if len(wanted) <= MOST_FILES and sum(wanted.values()) <= MOST_MB << 20:
        return frozenset(wanted)
    return (
        f"{plural(len(wanted), 'file')} with {sum(wanted.values()) >> 20} MB are more than {MOST_MB} MB or "
        f"{MOST_FILES} files; leave out data with job.snapshot_exclude"
    )


def late(path: str, size: int, exclude: tuple[str, ...]) -> bool:
    """Return whether a file that git ignores is copied all the same: Python may import it."""
    return path.endswith(_MODULES) and size <= MOST_FILE_MB << 20 and not excluded(path, exclude)
