"""Lists the run directories below a folder, also those that this user may not read."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

from ftslurm.errors import RunNotFound
from ftslurm.protocol.value_class import Value
from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files


class Entry(Value):
    """A run directory, or a folder of another user that may be one."""

    run: RunDir
    created: float  # in unix seconds
    own: bool  # no other user can have written it
    user: str  # its owner
    readable: bool = True


PART = ".part"  # ends the hidden name under which a run directory is made before it is renamed


def entries(root: Path) -> list[Entry]:
    """Return all runs below a folder, the newest first; none if there is no such folder.

    Raises:
        RunNotFound: the folder cannot be read.
    """
    root = root.absolute()
    try:
        paths = list(root.iterdir())
    except OSError as error:
        if isinstance(error, (FileNotFoundError, NotADirectoryError)) or error.errno == errno.ENAMETOOLONG:
            return []
        raise RunNotFound(f"the runs under {root} cannot be listed: {error.strerror}") from error
    known = (entry_of(path) for path in paths if not (path.name.startswith(".") and path.name.endswith(PART)))
    return sorted(filter(None, known), key=lambda entry: entry.created, reverse=True)


def entry_of(path: Path) -> Entry | None:
    """Return the run at this path; None: there is none."""
    run, found = RunDir(path), None
    try:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            return None
        # The config is written once, when the run is created; the folder's own time changes with every new file.
        return Entry(run, run.config.stat().st_mtime, owned_files.is_own(path), owned_files.user_name(found.st_uid))
    except PermissionError:
        if found is None:  # a folder above it is closed
            return Entry(run, 0.0, own=False, user="another user", readable=False)
        return Entry(run, found.st_mtime, own=False, user=owned_files.user_name(found.st_uid), readable=False)
    except (OSError, ValueError):  # ValueError: a name with a zero byte
        return None


def not_readable(entry: Entry) -> str:
    """Return the sentence about a run that this user may not read, for a person."""
    name = entry.run.root.name
    return f"{name} belongs to {entry.user} and is not readable for you; run.share=GROUP lets a group read it"
