"""How code in the script's own process reports to the controller. Outside of a worker reports are dropped.

worker/session.py replaces both functions before the script starts; call them as `outbox.say(...)`.
"""

from __future__ import annotations

from collections.abc import Callable

from ftslurm.protocol.messages import Report


def _drop(report: Report) -> None:
    pass


def _none() -> int:
    return 0


say: Callable[[Report], None] = _drop
wanted: Callable[[], int] = _none  # the step of which, or of a later one, the controller wants a checkpoint; 0: of none
