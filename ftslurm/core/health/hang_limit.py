"""How long a group may stand still before it counts as hung: health.hang_after_s, or learnt from this run's steps.

With `auto` a group gets a multiple of the longest time between two commits that any group has ended by itself, and
twice that between two steps, where it may be evaluating or writing a checkpoint. A time in which a group failed or
joined teaches nothing, because the others waited for it: else each hang would raise the limit for the next one.

A healthy group that is killed costs more than a hang that is found late: the factors are generous.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from ftslurm.config.schema import AUTO, Config
from ftslurm.core.state.model import Phase, Standstill
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.unit_table import Trait
from ftslurm.core.state.units import independent
from ftslurm.core.state.values import replace
from ftslurm.protocol import records
from ftslurm.protocol.stages import Stage

LOOK_S_PER_GROUP = 1e-4  # interval between looks at all groups, per group: they use at most a tenth of the time
ENOUGH = 20  # times that must be known; before, the limit is config.join_timeout_s
LONGEST_TIMES = 3.0  # the limit inside a step, as a multiple of the longest time so far
REPORT_S = 5.0  # a report comes at most so long after the time between two commits that it tells of
CHANGE = 1.25  # the journal gets the limits again when they have grown by this factor


class Limits(NamedTuple):
    """How long a group may stand still while others have passed it, in seconds; infinite: for ever."""

    in_step_s: float
    between_s: float

    def at(self, stage: Stage) -> float:
        """Return the limit at a stage of a step."""
        return self.between_s if stage is Stage.COMPUTING else self.in_step_s


def limits(standstill: Standstill, config: Config) -> Limits:
    """Return the present limits."""
    health = config.health
    if health.hang_after_s != AUTO:
        fixed = health.hang_after_s or inf
        return Limits(fixed, fixed)
    if independent(config):
        return Limits(inf, inf)  # no steps are reported
    if standstill.seen < ENOUGH:
        return Limits(config.join_timeout_s, config.join_timeout_s)
    in_step = max(config.hang_least_s, LONGEST_TIMES * standstill.longest_s)
    return Limits(in_step, 2 * in_step)


def learn(turn: Turn, gap_s: float | None) -> None:
    """Take in a time between two commits that a group has just reported."""
    standstill, table, now = turn.state.standstill, turn.table, turn.now
    if turn.config.health.hang_after_s != AUTO or gap_s is None or not 0 < gap_s < inf:
        return
    due = now >= standstill.learnt + LOOK_S_PER_GROUP * table.groups
    if gap_s <= standstill.longest_s and not due:
        return  # the groups step together: one of them is enough
    joining = table.count(Phase.RUNNING) != len(table.having_trait(Trait.JOINED))
    if joining or last_change(turn.state) >= now - gap_s - REPORT_S:
        return
    longest_s = max(standstill.longest_s, gap_s)
    turn.set(standstill=replace(standstill, longest_s=longest_s, seen=standstill.seen + 1, learnt=now))


def told(turn: Turn) -> None:
    """Record the learnt limits, if they are new or have changed much."""
    standstill = turn.state.standstill
    if turn.config.health.hang_after_s != AUTO or standstill.seen < ENOUGH:
        return
    present = limits(standstill, turn.config)
    if present.in_step_s < CHANGE * standstill.told_s:
        return
    line = records.HangLimit(
        in_step_s=round(present.in_step_s, 3),
        between_s=round(present.between_s, 3),
        steps=standstill.seen,
        longest_s=round(standstill.longest_s, 4),
    )
    turn.do(line)
    turn.set(standstill=replace(standstill, told_s=present.in_step_s))


def last_change(state: RunState) -> float:
    """Return when a group last failed or joined; tasks that stood still before may have waited for it."""
    units = state.table.all_groups()
    times = (t for u in units for t in (u.current.failing.noticed, u.marks.noticed, u.marks.joined) if t is not None)
    return max(times, default=0.0)
