"""Decide whether a group whose script has ended has finished its training. Exit code 0 alone is no proof of it. Pure.

A script may leave early with exit code 0: after SIGTERM, at a time limit of its own, by early stopping, or because it
thinks that there is nothing to do. Steps show it: `job.total_steps`, and what the other groups have committed. A group
that has left early gets another attempt, within the limits of the restart policy.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from math import inf

from ftslurm.core.state.model import OVER, Evidence, Phase, Pulse, Trait, Unit
from ftslurm.core.state.turn import Turn
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.stages import Stage

TOGETHER_S = 2.0  # groups finish together: one that has not joined this long after the last never will
BEYOND = 3  # steps that others commit after a group has ended: fewer do not show that they train on


class End(Enum):
    """How the script of a group has ended."""

    ZERO = "all ranks with exit code 0"
    TERM = "with an exit code, after SIGTERM"
    FAILED = "in any other way"


class Reached(IntEnum):
    """How far the group came."""

    SHORT = 0  # not as far as job.total_steps, or as the others, which have trained on
    UNKNOWN = 1  # nothing shows more steps, but nothing shows the end of the training
    END = 2  # job.total_steps, or a step at which another group has finished


class Others(IntEnum):
    """What the other groups do."""

    TRAIN = 0  # one of them holds the state and trains on: a new attempt can heal from it
    NONE = 1  # none trains, and none has finished: all can start over from a checkpoint
    FINISHED = 2  # none trains any more, and one has finished: a new attempt would begin a new history


class Answer(Enum):
    """What follows for the group."""

    FINISHED = "it has finished"
    AGAIN = "it gets another attempt, if the restart policy allows it"
    TOO_LATE = "it has not finished, and is too late for another attempt"


def judge(end: End, reached: Reached, others: Others) -> Answer:
    """Return what follows from the end of a group's script."""
    if end is not End.FAILED and reached is Reached.END:
        return Answer.FINISHED
    if end is End.ZERO and reached is Reached.UNKNOWN:
        return Answer.FINISHED  # until others are seen to train on (`left_behind`)
    return Answer.TOO_LATE if others is Others.FINISHED else Answer.AGAIN


def reach(step: int | None, furthest: int, total: int | None, finished: int | None) -> Reached:
    """Return how far a group came.

    Args:
        step: the step of its Managers at their end, 0 if they have committed none; None: nobody knows.
        furthest: the highest step that any group has committed; 0: none is known, as without a Manager.
        total: job.total_steps.
        finished: the lowest step at which another group has finished; None: none has.
    """
    if furthest == 0 or step is None:
        return Reached.UNKNOWN
    if total is not None:
        return Reached.END if step >= total else Reached.SHORT
    if finished is not None and step >= finished:
        return Reached.END
    return Reached.SHORT if furthest >= step + BEYOND else Reached.UNKNOWN


# --- the same of a run's groups ---------------------------------------------------------------------------------------


def train(turn: Turn, but: Unit | None = None) -> bool:
    """Return whether a group, beside this one, holds the state of the training and may commit further steps."""
    if turn.lineage.step >= (turn.config.job.total_steps or inf):
        return False
    names = (name for name in turn.table.names(Trait.JOINED) if but is None or name != but.name)  # in any order
    units = (unit for unit in map(turn.unit, names) if len(unit.current.done) < len(unit.current.hosts))
    return any(not is_stranded(turn, unit) for unit in units)


def is_stranded(turn: Turn, unit: Unit) -> bool:
    """Return whether a group has asked for a quorum at an earlier step than the run's, after another has finished.

    It heals from a group that trains; if all others have finished, it never gets a quorum.
    """
    finished = turn.table.in_phase(Phase.SUCCEEDED)
    if not finished or turn.lineage.resuming or turn.lineage.lost is not None:
        return False
    since = max(one.exits[-1].time for one in finished)
    asks = (pulse for pulse in unit.pulses if pulse is not None and pulse.stage is Stage.SEEKING_QUORUM)
    return any(pulse.time > since and (pulse.step or 0) < turn.lineage.step - 1 for pulse in asks)


def answer(turn: Turn, unit: Unit, end: End | None = None) -> Answer:
    """Return what follows from the end of a group's script; without `end` it has ended with exit code 0."""
    current, lineage = unit.current, turn.lineage
    end = end or (End.TERM if current.termed else End.ZERO)
    finished = [one.exits[-1].step or 0 for one in turn.table.in_phase(Phase.SUCCEEDED) if one.name != unit.name]
    if turn.independent:
        return judge(end, Reached.UNKNOWN, Others.NONE)
    others = Others.TRAIN if train(turn, unit) else Others.FINISHED if finished else Others.NONE
    step = None if current.left is None else max(current.left, current.restored or 0)
    furthest = lineage.resume_step if lineage.resuming else lineage.step
    return judge(end, reach(step, furthest, turn.config.job.total_steps, min(finished, default=None)), others)


def cause_of(unit: Unit) -> Cause:
    """Return why a group has left early."""
    return Cause.LEFT_ON_SIGTERM if unit.current.termed else Cause.LEFT_EARLY


def words(turn: Turn, step: int | None) -> str:
    """Return how a group has left: exit code 0 at step 308 of 400."""
    total = turn.config.job.total_steps
    return f"exit code 0 at step {step or 0}" + (f" of {total}" if total else "")


def not_alike(turn: Turn, unit: Unit, step: int) -> str:
    """Return a warning if a group that comes back at a step had ended by itself before the others; else ""."""
    last = unit.exits[-1] if unit.exits else None
    if last is None or last.cause is not Cause.LEFT_EARLY or step < (last.step or 0) + BEYOND:
        return ""
    return (
        f"group {unit.group} ended with {words(turn, last.step)}, and the others trained on: they did not decide the "
        "same. Let all groups end at the same step (ftslurm help fault-tolerant)"
    )


def left_behind(turn: Turn) -> list[Unit]:
    """Return the groups that had seemed to finish, although the others have trained on: they had left early.

    The others may have ended since, while no controller led. Once all have ended nothing more is waited for.
    """
    total, furthest = turn.config.job.total_steps, turn.lineage.step
    over = turn.table.count(*OVER) == turn.table.groups
    if turn.independent or not turn.goes_on or (furthest >= (total or inf) and not over):
        return []
    return [
        unit
        for unit in turn.table.in_phase(Phase.SUCCEEDED)
        if not unit.retired
        and unit.current.left is not None
        and reach(unit.current.left, furthest, total, None) is Reached.SHORT
        and (over or turn.due(unit.exits[-1].time + TOGETHER_S))
    ]


def left_early(turn: Turn, unit: Unit) -> Evidence | None:
    """Return the sign that ranks of a group have left early: all of them, or some, without whom no step is committed.

    Some have if another one waits in the next step: for a quorum, which needs all ranks, or in a collective. A rank
    that only saves a file after the last step may have asked for a quorum too; then all have, and it has got one.
    After a rank has failed, exit code 0 may follow from that, and only SIGTERM or such a wait shows the contrary; it
    may have waited in the last step, too: the server of the group's votes ends with rank 0.
    """
    current, runs = unit.current, unit.phase is Phase.RUNNING
    gone, step = current.over | current.done, current.left or current.step or 0
    if unit.group is None or not gone:
        return None
    some = len(gone) < len(current.hosts)
    waits = some and any(pulse is not None and _waits_for_all(pulse, step, runs) for pulse in unit.pulses)
    unclear = some and not (runs or current.termed)
    if not waits and (unclear or answer(turn, unit) is Answer.FINISHED):
        return None
    task = min(current.done or gone)
    node = current.hosts[task] if some else None
    return Evidence(task if some else None, node, code=0, error=words(turn, step), cause=cause_of(unit))


def _waits_for_all(pulse: Pulse, step: int, runs: bool) -> bool:
    """Return whether a rank waits for all ranks of its group, although some have left at a step.

    It has stood there for a while, in the next step. In a group that is being brought down it counts at once, and also
    if it waits in the step itself.
    """
    least, patience_s = (step, TOGETHER_S) if runs else (step - 1, 0.0)
    return pulse.stage.waits and (pulse.step or 0) >= least and pulse.time >= pulse.moved + patience_s
