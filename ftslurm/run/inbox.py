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


def take(inbox: Path) -> list[dict[str, Any]]:
    """Return and remove the oldest commands. Files of strangers are removed and ignored; folders stay, unopened."""
    commands = []
    shared = sharing.is_steerable(inbox)
    try:
        with os.scandir(inbox) as found:
            files = (one.name for one in found if one.name.endswith(".json") and not one.is_dir(follow_symlinks=False))
            names = nsmallest(MOST_AT_ONCE, files)
    except OSError:
        return []  # the file server is down for a moment; the commands stay there
    for name in names:
        path = inbox / name
        try:
            data, sender = _read(path, shared)
            path.unlink()
        except OSError:
            continue
        command = read_object(data)
        if command is None or not isinstance(command.get("what"), str):
            continue
        if sender != os.geteuid():
            if command["what"] == INTERNAL:
                continue
            command |= {"by": sender, "user": owned_files.user_name(sender)}  # whatever the file says
        commands.append(command)
    return commands


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
