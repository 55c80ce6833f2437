"""Send commands to a running controller: files that are created atomically in RUN/inbox.

The directory is private to the user, so whoever can write there may give commands. No port is opened.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

from ftslurm.config.schema import user_name
from ftslurm.errors import EnvironmentProblem
from ftslurm.run.directory import replace_text
from ftslurm.security import owned_files
from ftslurm.security.json_text import read_object

LONGEST = 65536  # bytes; longer files are ignored


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
    """Return and remove all commands, oldest first. Files of other users are removed and ignored."""
    commands = []
    try:
        names = sorted(entry.name for entry in os.scandir(inbox) if entry.name.endswith(".json"))
    except OSError:
        return []  # the file server is down for a moment; the commands stay there
    for name in names:
        path = inbox / name
        try:
            data = _own(path)
            path.unlink()
        except OSError:
            continue
        command = read_object(data)
        if command is not None and isinstance(command.get("what"), str):
            commands.append(command)
    return commands


def _own(path: Path) -> bytes:
    """Return the content of a file of this user; empty for another user's file and for one that is too long.

    Raises:
        OSError: it cannot be read now.
    """
    try:
        with owned_files.open_own(path) as file:
            text = file.read(LONGEST + 1)
    except OSError as error:
        if error.errno not in owned_files.REFUSED:
            raise
        return b""
    return text if len(text) <= LONGEST else b""
