"""A controller that kills itself at a chosen record of the journal: a hook for tests.

FTSLURM_TEST_KILL is the path of a file, which need not exist yet. Its text is EVENT, EVENT:UNIT or a SEQ, and ends in
`:before` to die before the record is on disk, not after. The controller removes the file as it dies.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftslurm.security.programs import TEST_KILL

_ORDER = Path(os.environ[TEST_KILL]) if TEST_KILL in os.environ else None


def pull(lines: Sequence[dict[str, Any]], before: bool) -> None:
    """Kill this process if the lines of a decision have the chosen record."""
    if _ORDER is None or not _ORDER.exists():
        return
    when = _ORDER.read_text()
    names = ((str(line["seq"]), line["event"], f"{line['event']}:{line.get('unit')}") for line in lines)
    if before is when.endswith(":before") and any(when.removesuffix(":before") in name for name in names):
        _ORDER.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
