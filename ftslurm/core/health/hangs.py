"""Find the hung group when all groups stand still because they wait for it.

A guard reports with every heartbeat the position of its worker: the step and the stage in it. A slow group is not
hung: a hung one stands still for the limit after another group has passed it.

The limit is health.hang_after_s, or learnt from this run's steps. With `auto` a group gets a multiple of the longest
time between two commits that any group has ended by itself, and twice that between two steps, where it may be
evaluating or writing a checkpoint. A time in which a group failed or joined teaches nothing, because the others waited
for it: else each hang would raise the limit for the next one. A healthy group that is killed costs more than a hang
that is found late: the factors are generous.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from ftslurm.config.schema import AUTO, Config
from ftslurm.core.health.node_health import FRESH
from ftslurm.core.state import errands
from ftslurm.core.state.model import RUNS, Evidence, Phase, Pulse, Standstill, Trait, Unit, replace
from ftslurm.core.state.transitions import stop
from ftslurm.core.state.turn import Turn
from ftslurm.protocol import messages, records
from ftslurm.protocol.causes import Cause
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
    if config.independent:
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
    joining = table.count(Phase.RUNNING) != table.count(Trait.JOINED)
    if joining or last_change(turn) >= now - gap_s - REPORT_S:
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


def last_change(turn: Turn) -> float:
    """Return when a group last failed or joined; tasks that stood still before may have waited for it."""
    units = turn.table.all_groups()
    times = (t for u in units for t in (u.current.failing.noticed, u.marks.noticed, u.marks.joined) if t is not None)
    return max(times, default=0.0)


# --- the search -------------------------------------------------------------------------------------------------------


DUMP_S = 1.5  # a hung group is killed this long after its stacks were requested, even if they are incomplete
TOGETHER_S = 5.0  # groups that train together move within this time of each other
HEAL = 3  # times the limit between two steps: limit of the wait for a group that heals


class Culprit(NamedTuple):
    """A task that stands still while the others move on or wait for it."""

    unit: Unit
    task: int
    pulse: Pulse


def find_hangs(turn: Turn) -> None:
    """Ask all tasks for their position when a group stands still; dump the stacks of hung groups, then kill them."""
    standstill, config, groups = turn.state.standstill, turn.config, turn.table.groups
    if not turn.goes_on or groups == 1 or limits(standstill, config).in_step_s == inf:
        return  # no other group waits for the only one
    if not turn.due(standstill.looked + max(config.heartbeat_s, LOOK_S_PER_GROUP * groups)):
        return
    turn.set(standstill=replace(standstill, looked=turn.now))
    told(turn)
    _ask_where(turn)
    _compare(turn)
    culprits = hung(turn)
    for culprit in culprits:
        _condemn(turn, culprit)
    if culprits:
        _compare(turn)  # groups that are being stopped do not count as overtaken


def _ask_where(turn: Turn) -> None:
    """Ask all tasks for their position if one may stand still."""
    groups = turn.having(Trait.JOINED)
    moved = (pulse.moved for unit in groups for pulse in unit.pulses if pulse is not None and pulse.step is not None)
    if turn.now >= min(moved, default=inf) + limits(turn.state.standstill, turn.config).in_step_s / 2:
        for unit in groups:
            turn.send(unit, messages.Where())


def _compare(turn: Turn) -> None:
    """Note the tasks that the same rank of another group has passed."""
    turn.set(standstill=replace(turn.state.standstill, overtaken=dict(overtaken(turn))))


def _condemn(turn: Turn, culprit: Culprit) -> None:
    """Stop a hung group, but kill it only once its stacks have had time to be written."""
    unit, task, pulse = culprit
    since = pulse.moved if pulse.stopped is None else min(pulse.moved, pulse.stopped)
    silent_s = turn.now - since
    where = "stopped (SIGSTOP)" if pulse.state == "T" else Stage(pulse.stage).doing
    after = "" if pulse.step is None else f" after step {pulse.step}"
    reason = f"rank {task} has not moved for {silent_s:.0f} s, {where}{after}"
    if turn.config.health.hang_after_s == AUTO:
        allowed = limits(turn.state.standstill, turn.config).at(pulse.stage)
        reason += f"; health.hang_after_s=auto allows {allowed:.0f} s there"
    evidence = Evidence(task, unit.current.hosts[task], error=reason, cause=Cause.HANG)
    stop(turn, unit, Cause.HANG, evidence, due=turn.now + DUMP_S, died=since)
    errands.request(turn, unit, messages.Dump())


def awaited(turn: Turn) -> str | None:
    """Return for whom a task has waited that has timed out, for a person; None: for none that computes."""

    def moved(one: Culprit) -> float:  # those that wait for it have moved since, or a moment before
        return one.pulse.moved - TOGETHER_S * (one.pulse.stage is Stage.COMPUTING)

    first = min((one for peers in _ranks(turn) for one in peers), key=moved, default=None)
    if first is None or first.pulse.stage is not Stage.COMPUTING:
        return None
    what, stood_s = f"rank {first.task} of group {first.unit.group}", turn.now - first.pulse.moved
    return (
        f"the wait for the others has timed out: {what} has taken no step for {stood_s:.0f} s. If it alone evaluates "
        "or saves there, raise job.longest_step_s"
    )


def hung(turn: Turn) -> tuple[Culprit, ...]:
    """Return the hung tasks; none if they cannot be told from tasks that wait.

    Every task stopped (SIGSTOP) for the limit inside a step is hung, at any stage. Otherwise the task that stopped
    moving first is, if another passed it as long ago as the limit at its stage. Old heartbeats are no evidence. While a
    task is silent or heals, the others may wait for it: node_health.watch and config.join_timeout_s handle these cases.
    The time starts again when a group fails or joins, because the others may have waited for it.
    """
    standstill, allowed = turn.state.standstill, limits(turn.state.standstill, turn.config)
    stopped: dict[str, Culprit] = {}
    for unit in turn.table.in_phase(*RUNS):
        for task, pulse in enumerate(unit.pulses):
            if pulse is not None and pulse.stopped is not None and pulse.time >= pulse.stopped + allowed.in_step_s:
                stopped.setdefault(unit.name, Culprit(unit, task, pulse))
    if stopped:
        return tuple(stopped.values())
    if not standstill.overtaken or _heals(turn, allowed.between_s):
        return ()
    changed, found = last_change(turn), list[Culprit]()
    for peers in _ranks(turn):
        if any(turn.now - one.pulse.time > FRESH * turn.config.heartbeat_s for one in peers):
            continue  # the others may wait for the silent task
        for one in peers:
            passed = standstill.overtaken.get(_key(one), inf)
            if one.pulse.time >= max(passed, changed, one.pulse.moved) + allowed.at(one.pulse.stage):
                found.append(one)
    first = min(found, key=lambda one: one.pulse.moved, default=None)
    return () if first is None else (first,)


def overtaken(turn: Turn) -> Iterator[tuple[tuple[str, int, float], float]]:
    """Yield the tasks that the same rank of another group has passed, with the time at which that was first seen."""
    standstill = turn.state.standstill
    for peers in _ranks(turn):
        for one in _passed(peers, limits(standstill, turn.config)):
            yield _key(one), standstill.overtaken.get(_key(one), turn.now)


def _key(one: Culprit) -> tuple[str, int, float]:
    return one.unit.name, one.task, one.pulse.moved


def _passed(peers: list[Culprit], allowed: Limits) -> Iterator[Culprit]:
    """Yield the tasks that another one has passed.

    The other is further in the same step, or in a later one. Or it reached an earlier point later: a step whose
    collective timed out starts again. A difference of at most TOGETHER_S does not count: a group may hang right after
    its commit while the others already request the next quorum, and wait for it.
    """
    points = [(one.pulse.step or 0, one.pulse.stage) for one in peers]
    first = max(points, default=(0, 0))
    behind = max((one.pulse.moved for one, point in zip(peers, points, strict=True) if point < first), default=-inf)
    for one, point in zip(peers, points, strict=True):
        if point < first or behind > one.pulse.moved + min(TOGETHER_S, allowed.in_step_s / 2):
            yield one


def _ranks(turn: Turn) -> Iterator[list[Culprit]]:
    """Yield for every rank its tasks, one from each group that trains."""
    groups = turn.having(Trait.JOINED)
    for rank in range(max((len(u.pulses) for u in groups), default=0)):
        known = [(u, u.pulses[rank]) for u in groups if rank < len(u.pulses)]
        yield [Culprit(u, rank, pulse) for u, pulse in known if pulse is not None and _trains(pulse)]


def _trains(pulse: Pulse) -> bool:
    return pulse.step is not None and pulse.stage is not Stage.SHUT_DOWN


def _heals(turn: Turn, limit: float) -> bool:
    """Return whether a group heals: it is in a quorum, but has not committed its first step."""
    running = turn.table.in_phase(Phase.RUNNING)
    began = (unit.marks.quorum for unit in running if not unit.joined)
    return any(time is not None and turn.now < time + HEAL * limit for time in began)
