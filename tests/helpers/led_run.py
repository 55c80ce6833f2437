"""A new run directory and lines of its journal, for the tests of who leads the run."""

from __future__ import annotations

import json
import time
from pathlib import Path

from ftslurm.run.directory import RunDir


def new(folder: Path) -> RunDir:
    run = RunDir(folder / "run")
    run.create()
    return run


def journal(run: RunDir, event: str, **fields: object) -> None:
    """Append a line."""
    with run.events.open("a") as file:
        file.write(json.dumps({"seq": 1, "time": time.time(), "event": event} | fields) + "\n")
