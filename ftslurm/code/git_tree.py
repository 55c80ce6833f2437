"""Asks git about the tree in which the code lies, without running what its configuration could name.

No command looks at the content of files: that would run filters.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from ftslurm.code.selection import CODE

PATIENCE_S = 30.0
# A monitor of the file system and hooks are programs that a configuration names. Submodules are read with these, too.
_QUIET = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.quotePath=false")

OTHERS = ("ls-files", "-z", "--others", "--exclude-standard")  # what git neither keeps nor ignores

_NO_CODE = ("-x.*/", "-x__pycache__/", "-x*-packages/", "-xnode_modules/", "-xcheckpoints/", "-xwandb/")


class GitError(Exception):
    """git is not there, or refuses; the message is its own."""


def ask(folder: str | Path, *words: str, given: bytes = b"") -> bytes:
    """Return what a git command prints.

    Args:
        given: its standard input.

    Raises:
        GitError: it failed, is not installed, or took too long.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    # A partial clone fetches what it lacks, with programs of its configuration.
    environ |= {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
    command = ["git", "-C", str(folder), *_QUIET, *words]
    try:
        done = subprocess.run(command, env=environ, input=given, capture_output=True, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        raise GitError(f"git took longer than {PATIENCE_S:g} s in {folder}") from None
    except (OSError, ValueError) as error:
        raise GitError(f"git cannot be run: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise GitError(said[0] if said else "git failed")
    return done.stdout


def first_line(folder: str, *words: str) -> str | None:
    """Return the first line that a git command prints, or None if it fails or prints nothing."""
    with suppress(GitError):
        return os.fsdecode(ask(folder, *words)).partition("\n")[0] or None
    return None


def top(folder: str | Path) -> str | None:
    """Return the real root of the work tree around a folder, or None outside any. (core.worktree may name any.)

    Raises:
        GitError: there is one, and git refuses to read it: it belongs to another user (safe.directory).
    """
    try:
        root = os.fsdecode(ask(folder, "rev-parse", "--show-toplevel")).removesuffix("\n")
        return os.path.realpath(root) if root and Path(os.path.realpath(folder)).is_relative_to(root) else None
    except GitError as error:
        if "not a git repository" in str(error) or "work tree" in str(error) or "cannot be run" in str(error):
            return None
        raise


def files(root: str) -> tuple[list[str], list[str]]:
    """Return the files that git keeps, submodules' among them, and code that it neither keeps nor ignores.

    A tree of its own within this one (a clone that is no submodule) is left out. Run directories ignore themselves.

    Raises:
        GitError: git failed.
    """
    kept = ask(root, "ls-files", "-z", "--cached", "--recurse-submodules")
    return names(kept), _others(ask(root, *OTHERS))


def loose(root: str) -> list[str]:
    """Return the code below a folder that is no git tree.

    Hidden folders and those in which there never is code are left out.

    Raises:
        GitError: git failed, or there are so many that it took too long.
    """
    with TemporaryDirectory(prefix="ftslurm-") as empty:
        ask(empty, "init", "-q", "--bare", "--template=")
        return _others(ask(root, f"--git-dir={empty}", f"--work-tree={root}", *OTHERS, *_NO_CODE))


def _others(listed: bytes) -> list[str]:
    """Return the files that are code by their names, and lie in no environment of Python."""
    paths = [name for name in names(listed) if name.endswith(CODE)]
    tops = tuple(path.removesuffix("pyvenv.cfg") for path in paths if path.endswith("/pyvenv.cfg"))
    return [path for path in paths if not path.startswith(tops)]


def names(text: bytes) -> list[str]:
    """Return the names that a command has separated by zero bytes, each once."""
    return list(dict.fromkeys(os.fsdecode(name) for name in text.split(b"\0") if name))
