"""Opens a run directory to a Unix group (run.share). All other users stay strangers.

The folders themselves tell that a run is shared: what is made below a folder with the set-group-ID bit that its group
may enter becomes readable for the group. So no process needs to be told, and what is created later follows. Secrets
(the run's key, tokens) are written without `follow`, and folders without group rights stay closed with all in them.
"""

from __future__ import annotations

import contextlib
import grp
import os
import stat
from pathlib import Path

from ftslurm.errors import ConfigError

FOLDER, FILE = 0o2750, 0o640
INBOX = 0o3730  # members leave commands there, and neither list, replace nor remove those of others
STEER = "steer"


def parse(share: str) -> tuple[int, bool]:
    """Return the group of run.share, and whether it may steer the run.

    Raises:
        ConfigError: there is no such group, this user is not in it, or the word after the colon is not `steer`.
    """
    name, colon, word = share.partition(":")
    if colon and word != STEER:
        raise ConfigError(f"run.share={share}: after the colon only {STEER} has a meaning, as in {name}:{STEER}")
    try:
        group = int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"run.share={share}: there is no group {name} on this machine (yours: id -Gn)") from None
    if os.geteuid() != 0 and group not in {os.getegid(), *os.getgroups()}:
        raise ConfigError(f"run.share={share}: you are not in the group {name} (yours: id -Gn)")
    return group, bool(word)


def share(folder: Path, group: int, mode: int = FOLDER) -> None:
    """Open a folder of this user to a group.

    Raises:
        OSError: that is not permitted, or not possible on this file system.
    """
    os.chown(folder, -1, group, follow_symlinks=False)
    folder.chmod(mode)


def is_shared(folder: str | Path) -> bool:
    """Return whether what is made in a folder is for its group too."""
    try:
        mode = os.lstat(folder).st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) and bool(mode & stat.S_ISGID) and bool(mode & stat.S_IXGRP)


def follow(number: int, path: str | Path) -> None:
    """Let the group read a file that this user has made at `path`, if its folder is shared. Never raises."""
    if is_shared(os.path.dirname(path) or "."):
        with contextlib.suppress(OSError):
            found = os.fstat(number)
            if found.st_uid == os.geteuid() and not found.st_mode & stat.S_IRGRP:
                os.fchmod(number, FILE)


def make_folder(path: str | Path) -> None:
    """Make a folder and the missing ones above it: closed, or for the group below a shared one.

    Raises:
        OSError: it cannot be made.
    """
    path = Path(path)
    if not path.parent.is_dir():
        make_folder(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
        if is_shared(path.parent):
            path.chmod(FOLDER)


def is_steerable(inbox: Path) -> bool:
    """Return whether a group may leave commands in an inbox: its owner has opened it so."""
    try:
        found = inbox.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == INBOX


def may_steer(inbox: Path) -> bool:
    """Return whether this user may steer the run of another user."""
    try:
        owner = inbox.lstat().st_uid
    except OSError:
        return False
    return owner != os.geteuid() and is_steerable(inbox) and os.access(inbox, os.W_OK | os.X_OK)
