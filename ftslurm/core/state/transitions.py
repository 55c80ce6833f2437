"""The functions that change the phase of a unit.

docs/architecture.md lists every change of phase; the tests of the core check the code against it. No other module sets
a unit's phase.
"""

from __future__ import annotations

from ftslurm.core.state.model import Attempt, Evidence, Marks, Phase, Place, Pulse, Unit, replace
from ftslurm.core.state.turn import Turn
from ftslurm.protocol import messages
from ftslurm.protocol.causes import Cause


def is_restart(unit: Unit) -> bool:
    """Return whether the next launch of a unit answers a failure of its group; a refused launch has answered it."""
    last = unit.exits[-1] if unit.exits else None
    return unit.group is not None and last is not None and last.attempt == unit.attempt and last.cause.row.failure


def launch(unit: Unit, place: Place, due: float, now: float, current: Attempt) -> Unit:
    """Begin the next attempt of a unit with a step of its own.

    Args:
        unit: one without a step.
        place: where the step runs.
        due: when the step must be ready.
        now: the time.
        current: an empty attempt, with one host for each task.
    """
    return replace(
        unit,
        phase=Phase.STARTING,
        attempt=unit.attempt + 1,
        place=place,
        due=due,
        marks=replace(unit.marks, launched=now),
        pulses=(None,) * len(current.hosts),
        current=current,
        waits_for=None,
    )


def take_standby(unit: Unit, standby: Unit, place: Place, due: float, now: float) -> Unit:
    """Begin the next attempt of a group with the step of a warm standby.

    Args:
        unit: a group without a step.
        standby: a standby that is ready.
        place: the standby's nodes, and the group's share of them.
        due: when the group must have its store.
        now: the time.
    """
    group = launch(unit, place, due, now, replace(standby.current, ran_as=standby.id))
    return replace(group, marks=replace(group.marks, hello=now, ready=now), pulses=standby.pulses)


def adopt(unit: Unit, pulses: tuple[Pulse, ...], current: Attempt) -> Unit:
    """Begin the adoption of a step that an earlier controller has launched.

    Args:
        unit: one with a step; if it was being brought down, it still is.
        pulses: a first sign of life of each task.
        current: the attempt, with its `adoption`.
    """
    phase = Phase.STOPPING if unit.phase is Phase.STOPPING else Phase.STARTING
    return replace(unit, phase=phase, pulses=pulses, current=current)


def begin_anew(turn: Turn, unit: Unit) -> None:
    """Have a unit launched that had finished or was given up: the run goes on in another job, without what it did."""
    turn.change(unit, phase=Phase.PENDING, due=turn.now, reason="start")


def run(turn: Turn, unit: Unit) -> Unit:
    """Mark a step as up: a group's script begins, a standby is ready, or the Lighthouse's address is known."""
    return turn.change(unit, phase=Phase.RUNNING)


def wait_for_next(turn: Turn, unit: Unit, due: float, reason: str) -> None:
    """Schedule the next attempt of a unit whose step has ended.

    Args:
        turn: the decision.
        unit: one whose step has ended.
        due: when it is launched at the earliest.
        reason: why it is launched again.
    """
    turn.attempt(unit, intent=None)
    turn.change(unit, phase=Phase.PENDING, due=due, reason=reason)


def succeed(turn: Turn, unit: Unit) -> None:
    """Mark a unit as finished."""
    turn.change(unit, phase=Phase.SUCCEEDED, waits_for=None)


def give_up(turn: Turn, unit: Unit, why: str = "") -> Unit:
    """Mark a unit as given up: it gets no further attempt."""
    return turn.change(unit, phase=Phase.FAILED, waits_for=None, reason=why)


def stop(
    turn: Turn,
    unit: Unit,
    cause: Cause | None,
    sign: Evidence | None = None,
    *,
    due: float | None = None,
    died: float | None = None,
) -> Unit:
    """Bring a unit's step down.

    Args:
        turn: the decision.
        unit: one with a step.
        cause: why its step ends; None: decided from the evidence when it has ended.
        sign: a further piece of evidence.
        due: when the step is killed; None: now.
        died: when the failure happened; None: now.
    """
    unit = turn.change(unit, phase=Phase.STOPPING, due=turn.now if due is None else due)
    return turn.attempt(
        unit,
        intent=cause or unit.current.intent,
        failing=Marks(turn.now if died is None else died, turn.now),
        evidence=unit.current.evidence if sign is None else (*unit.current.evidence, sign),
    )


def stop_politely(turn: Turn, unit: Unit, cause: Cause | None, *, adopting: bool = False) -> None:
    """Bring a step down: a script that runs gets SIGTERM and stop.grace_s seconds, anything else is killed at once.

    Args:
        turn: the decision.
        unit: one with a step.
        cause: as in `stop`.
        adopting: whether a step whose guards have not reported to this controller yet gets SIGTERM too: its script
            may run.
    """
    adopted = adopting and unit.current.adoption is not None and unit.current.adoption.asked
    due = None
    if unit.group is not None and (unit.phase is Phase.RUNNING or adopted):
        turn.send(unit, messages.Stop())
        due = turn.now + turn.config.stop.grace_s
    stop(turn, unit, cause, due=due)
