"""Send commands to a running controller: files that are created atomically in RUN/inbox.

The directory is private to the user, so whoever can write there may give commands; with run.share=GROUP:steer these
are a group's members, too. No port is opened.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
import uuid
from collections.abc import Collection, Iterable
from contextlib import suppress
from heapq import nsmallest
from pathlib import Path
from typing import Any

from ftslurm.config.schema import user_name
from ftslurm.errors import EnvironmentProblem
from ftslurm.run.directory import replace_text
from ftslurm.security import owned_files, sharing
from ftslurm.security.json_text import read_object

INTERNAL = "leaving"  # what pilots tell the controller
LONGEST = 65536  # bytes; longer files are ignored
MOST_AT_ONCE = 100  # commands that one look takes


def put(inbox: Path, what: str, **fields: object) -> str:
    """Write a command; the controller reads it within a second.

    Returns:
        The command's id; an answer in the journal may name it (`command`).

    Raises:
        EnvironmentProblem: the inbox cannot be written.
    """
    command = f"{time.time_ns()}-{uuid.uuid4().hex[:8]}"
    text = json.dumps({"what": what, "id": command, "by": os.getuid(), "user": user_name(), **fields})
    try:
        replace_text(inbox / f"{command}.json", text)
    except OSError as error:
        reason = error.strerror or str(error)
        raise EnvironmentProblem(
            f"the run could not be told to {what}: no command can be left in {inbox}: {reason}"
        ) from error
    return command


def read(inbox: Path, known: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the oldest commands by the names of their files, without known ones. `remove` them when they are done.

    Files of strangers and files that are no commands are removed and ignored; folders stay, unopened.
    """
    commands = dict[str, dict[str, Any]]()
    shared = sharing.is_steerable(inbox)
    try:
        with os.scandir(inbox) as found:
            files = (one.name for one in found if one.name.endswith(".json") and not one.is_dir(follow_symlinks=False))
            names = nsmallest(MOST_AT_ONCE, (name for name in files if name not in known))
    except OSError:
        return {}  # the file server is down for a moment; the commands stay there
    for name in names:
        with suppress(OSError):
            command = _command(*_read(inbox / name, shared))
            if command is None:
                (inbox / name).unlink()
            else:
                commands[name] = command
    return commands


def remove(inbox: Path, names: Iterable[str]) -> set[str]:
    """Remove the files of commands. Return the names of those that are gone."""
    gone = set[str]()
    for name in names:
        with suppress(OSError):
            (inbox / name).unlink(missing_ok=True)
            gone.add(name)
    return gone


def _command(data: bytes, sender: int) -> dict[str, Any] | None:
    """Return the command of a file, or None if it is none that its sender may give."""
    command = read_object(data)
    if command is None or not isinstance(command.get("what"), str):
        return None
    if sender == os.geteuid():
        return command
    if command["what"] == INTERNAL:
        return None
    return command | {"by": sender, "user": owned_files.user_name(sender)}  # whatever the file says


def _read(path: Path, shared: bool) -> tuple[bytes, int]:
    """Return the content of a file and its owner; empty for a file that is refused.

    A file of another user is refused, unless the inbox is shared: then it must be a file that only its owner can
    write, without another name, in the group of the inbox.

    Raises:
        OSError: it cannot be read now.
    """
    me = os.geteuid()
    try:
        with owned_files.open_file(path) as file:
            found = os.fstat(file.fileno())
            member = shared and found.st_nlink == 1 and found.st_gid == path.parent.lstat().st_gid
            closed = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            text = file.read(LONGEST + 1) if closed and (member or found.st_uid == me) else b""
    except OSError as error:
        if error.errno not in (*owned_files.REFUSED, *((errno.EACCES,) if shared else ())):
            raise
        return b"", me
    return (text if len(text) <= LONGEST else b""), found.st_uid
