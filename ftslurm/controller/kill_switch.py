"""A controller that kills itself at a chosen record of the journal, once in a run: a hook for tests.

FTSLURM_TEST_KILL is EVENT, EVENT:UNIT or a SEQ, and ends in `:before` to die before the record is on disk, not after.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from ftslurm.run.directory import RunDir
from ftslurm.security.programs import TEST_KILL

_WHEN = os.environ.get(TEST_KILL, "")


def pull(run: RunDir, lines: Sequence[dict[str, Any]], before: bool) -> None:
    """Kill this process if the lines of a decision have the chosen record."""
    if not _WHEN or before != _WHEN.endswith(":before"):
        return
    what = _WHEN.removesuffix(":before")
    names = ((str(line["seq"]), line["event"], f"{line['event']}:{line.get('unit')}") for line in lines)
    mark = run.state / "killed"
    if any(what in name for name in names) and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
