"""Commands to a running controller, as files that appear whole in the run directory's inbox.

The directory is private to the user, so whoever can write there may command. No port is opened.
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

LONGEST = 65536  # bytes; a longer file is no command


def put(inbox: Path, what: str, **fields: object) -> None:
    """Leave a command; the controller finds it within a second.

    Raises:
        EnvironmentProblem: the inbox cannot be written; the disk is full, say.
    """
    name = f"{time.time_ns()}-{uuid.uuid4().hex[:8]}.json"
    text = json.dumps({"what": what, "by": os.getuid(), "user": user_name(), **fields})
    try:
        replace_text(inbox / name, text)
    except OSError as error:
        reason = error.strerror or str(error)
        raise EnvironmentProblem(
            f"the run could not be told to {what}: no command can be left in {inbox}: {reason}"
        ) from error


def take(inbox: Path) -> list[dict[str, Any]]:
    """Every command that has come in, oldest first; each is taken once. Only files of our own user count."""
    commands = []
    try:
        names = sorted(entry.name for entry in os.scandir(inbox) if entry.name.endswith(".json"))
    except OSError:
        return []  # a file server that is away for a moment; the commands will still be there
    for name in names:
        path = inbox / name
        try:
            data = _own(path)
            path.unlink()
        except OSError:
            continue  # not looked at again
        command = read_object(data)
        if command is not None and isinstance(command.get("what"), str):
            commands.append(command)
    return commands


def _own(path: Path) -> bytes:
    """What is in a file of our own; empty for anything else.

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
