"""Take the commands out of an inbox, as a controller does that has carried them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ftslurm.run import inbox


def take(folder: Path) -> list[dict[str, Any]]:
    commands = inbox.read(folder)
    inbox.remove(folder, commands)
    return list(commands.values())
