"""The phases of a unit: what leads from one to the next, and the functions that bring a step down.

TRANSITIONS lists every change of phase. The tests of the core hold the code to it; docs/architecture.md shows it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.core.state.actions import Action, Stop
from ftslurm.core.state.model import Cause, Evidence, Marks, Phase, Unit
from ftslurm.core.state.values import replace

_NEXT_ATTEMPT = "the step ended, and the restart policy allows another attempt"
_ENDED_WELL = "the step ended with exit code 0 and was not told to stop"
_NO_MORE = "the step ended, and there is no further attempt"
_BROUGHT_DOWN = (
    "a task failed, a time limit passed, a node is lost, the step hangs, its job ends, `ftslurm scale`, a full "
    "restart, or the end of the run"
)
TRANSITIONS: Mapping[Phase, Mapping[Phase, str]] = {
    Phase.PENDING: {
        Phase.STARTING: "it is due and has nodes, or takes a standby; or a new controller adopts its step",
        Phase.SUCCEEDED: "an earlier controller has written that it succeeded",
        Phase.FAILED: "the run ends, it waited too long, or another group finished; or a controller before gave it up",
    },
    Phase.STARTING: {
        Phase.RUNNING: "a group: its script begins. A standby: all is imported. The Lighthouse: its address is known",
        Phase.STOPPING: _BROUGHT_DOWN,
        Phase.PENDING: _NEXT_ATTEMPT,
        Phase.SUCCEEDED: _ENDED_WELL,
        Phase.FAILED: _NO_MORE,
    },
    Phase.RUNNING: {
        Phase.STOPPING: _BROUGHT_DOWN,
        Phase.PENDING: _NEXT_ATTEMPT + "; or a standby has become a group's attempt",
        Phase.SUCCEEDED: _ENDED_WELL,
        Phase.FAILED: _NO_MORE,
    },
    Phase.STOPPING: {
        Phase.PENDING: _NEXT_ATTEMPT,
        Phase.SUCCEEDED: _ENDED_WELL,
        Phase.FAILED: _NO_MORE,
    },
    Phase.SUCCEEDED: {},
    Phase.FAILED: {},
}


def stop(
    unit: Unit,
    cause: Cause | None,
    due: float,
    now: float,
    sign: Evidence | None = None,
    *,
    detect_s: float | None = None,
) -> Unit:
    """Bring a unit's step down.

    Args:
        unit: one with a step.
        cause: why its step ends; None: decided from the evidence when it has ended.
        due: when the step is killed.
        now: when the failure was noticed.
        sign: a further piece of evidence.
        detect_s: how long the failure went unnoticed.
    """
    signs = unit.current.evidence if sign is None else (*unit.current.evidence, sign)
    failing = Marks(detect_s=detect_s, noticed=now)
    intent = cause or unit.current.intent
    return replace(
        unit,
        phase=Phase.STOPPING,
        due=due,
        current=replace(unit.current, intent=intent, failing=failing, evidence=signs),
    )


def stop_politely(
    unit: Unit, cause: Cause | None, grace_s: float, now: float, *, adopting: bool = False
) -> tuple[Unit, list[Action]]:
    """Bring a step down: a script that runs gets SIGTERM and grace_s seconds, anything else is killed at once.

    Args:
        unit: one with a step.
        cause: as in `stop`.
        grace_s: stop.grace_s.
        now: the time.
        adopting: whether to ask a step politely that has not answered this controller yet: its script may run.
    """
    adopted = adopting and unit.current.adoption is not None and unit.current.adoption.asked
    polite = (unit.phase is Phase.RUNNING or adopted) and not unit.is_standby
    return stop(unit, cause, now + grace_s if polite else now, now), [Stop(unit.id)] if polite else []
