"""The changes of a unit's phase, one function for each. Nothing else in the core changes a phase."""

from __future__ import annotations

from dataclasses import replace

from ftslurm.core.state.actions import Action, Stop
from ftslurm.core.state.model import Cause, Evidence, Marks, Phase, Unit


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
