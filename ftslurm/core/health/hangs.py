"""Which group hangs, where all stand still because they wait for it?

Every task tells, with its guard's sign of life, how far its worker is: the step, and the stage of it. Nothing is said
to hang for being slow: it must stand still for health.hang_after_s after another has passed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ftslurm.config.schema import Config
from ftslurm.core.health.silence import condemn
from ftslurm.core.state.actions import Action, Dump, Where
from ftslurm.core.state.model import Cause, Evidence, Overtaken, Phase, Pulse, RunState, Unit
from ftslurm.core.state.units import swap
from ftslurm.protocol import records
from ftslurm.protocol.stages import Stage

DUMP_S = 1.5  # how long the stacks of a hung group may take before it is killed all the same
TOGETHER_S = 5.0  # groups that train together move at the same time, but for this long
FRESH = 3  # heartbeats: a task that was not heard for longer is silent
HEAL = 3  # times health.hang_after_s: so long may others wait for a group that heals


class Culprit(NamedTuple):
    """The task that stands still while others go on, or wait for it."""

    unit: Unit
    task: int
    pulse: Pulse


def find_hangs(state: RunState, now: float, config: Config) -> tuple[RunState, list[Action]]:
    """Ask every task how far it is when some group stands still; dump the stacks of those that hang, then kill them."""
    if config.health.hang_after_s <= 0 or state.ending is not None or len(state.groups) < 2:
        return state, []  # the only group of a run is never said to hang: nothing would be won
    actions: list[Action] = []
    ask = _ask_where(state, config)
    if ask is not None and now >= ask:
        state = replace(state, standstill=replace(state.standstill, asked_where=now))
        actions += [Where(unit.id) for unit in state.groups if unit.joined]
    state = replace(state, standstill=replace(state.standstill, overtaken=tuple(overtaken(state, now, config))))
    for unit, task, pulse in hung(state, now, config):
        since = pulse.moved if pulse.stopped is None else min(pulse.moved, pulse.stopped)
        where = "stopped (SIGSTOP)" if pulse.state == "T" else Stage(pulse.stage).doing
        after = "" if pulse.step is None else f" after step {pulse.step}"
        reason = f"rank {task} has not moved for {now - since:.0f} s, {where}{after}"
        evidence = Evidence(task, unit.current.hosts[task], error=reason, cause=Cause.HANG)
        state, _ = condemn(state, unit, evidence, since, now, config)
        down = next(u for u in state.groups if u.name == unit.name)
        state = swap(state, replace(down, due=now + DUMP_S))
        found = records.HangFound(
            group=unit.group_id,
            attempt=unit.attempt,
            rank=task,
            step=pulse.step,
            stage=pulse.stage,
            silent_s=round(now - since, 3),
            reason=reason,
        )
        actions += [found, Dump(unit.id)]
    return state, actions


def forget(state: RunState, now: float, config: Config) -> tuple[RunState, list[Action]]:
    """Drop what is no longer so: who moved on, or is brought down."""
    if config.health.hang_after_s <= 0 or len(state.groups) < 2:
        return state, []
    return replace(state, standstill=replace(state.standstill, overtaken=tuple(overtaken(state, now, config)))), []


def hung(state: RunState, now: float, config: Config) -> tuple[Culprit, ...]:
    """The groups that hang; none if nothing tells them from those that wait.

    Whoever is stopped for health.hang_after_s, whatever it does. Else the one that stopped moving first, if it was
    passed that long ago. What an old word says is no evidence, and while a task is silent, or heals, the others may be
    waiting for it: health.watch and health.join_timeout_s see to that. Whoever stood still while another group failed
    or joined may have waited for that one: the time begins anew.
    """
    limit = config.health.hang_after_s
    stopped: dict[str, Culprit] = {}
    for unit in state.groups:
        for task, pulse in enumerate(unit.pulses if unit.phase in (Phase.STARTING, Phase.RUNNING) else ()):
            if pulse is not None and pulse.stopped is not None and pulse.time >= pulse.stopped + limit:
                stopped.setdefault(unit.name, Culprit(unit, task, pulse))
    if stopped:
        return tuple(stopped.values())
    since = {(one.unit, one.task): max(one.since, _last_change(state)) for one in state.standstill.overtaken}
    found = []
    for peers in _ranks(state):
        silent = any(now - one.pulse.time > FRESH * config.health.heartbeat_s for one in peers)
        if silent or _heals(state, now, limit):
            continue
        passed = [one for one in peers if (one.unit.name, one.task) in since]
        began = [max(since[one.unit.name, one.task], one.pulse.moved) for one in passed]
        found += [one for one, time in zip(passed, began, strict=True) if one.pulse.time >= time + limit]
    first = min(found, key=lambda one: one.pulse.moved, default=None)
    return () if first is None else (first,)


def overtaken(state: RunState, now: float, config: Config) -> Iterator[Overtaken]:
    """The tasks that another group's task of the same rank has passed, and since when that is known."""
    known = {(one.unit, one.task, one.moved): one.since for one in state.standstill.overtaken}
    for peers in _ranks(state):
        for one in peers:
            if any(_has_passed(peer.pulse, one.pulse, config.health.hang_after_s) for peer in peers):
                key = (one.unit.name, one.task, one.pulse.moved)
                yield Overtaken(*key, known.get(key, now))


def _ranks(state: RunState) -> Iterator[list[Culprit]]:
    """For every rank the tasks that have it, one of each group that trains: they go through each step together."""
    groups = [u for u in state.groups if u.joined]
    for rank in range(max((len(u.pulses) for u in groups), default=0)):
        known = [(u, u.pulses[rank]) for u in groups if rank < len(u.pulses)]
        yield [Culprit(u, rank, pulse) for u, pulse in known if pulse is not None and pulse.step is not None]


def _heals(state: RunState, now: float, limit: float) -> bool:
    """Whether a group is in a quorum, and fetches the state from another before its first step."""
    began = [u.marks.quorum for u in state.groups if u.phase is Phase.RUNNING and not u.joined]
    return any(time is not None and now < time + HEAL * limit for time in began)


def _last_change(state: RunState) -> float:
    """When a group last failed or joined: whoever stood still before that may have waited for it."""
    times = [
        t for u in state.groups for t in (u.current.failing.noticed, u.marks.noticed, u.marks.joined) if t is not None
    ]
    return max(times, default=0.0)


def _has_passed(other: Pulse, one: Pulse, limit: float) -> bool:
    """Whether `other` has left the point where `one` stands behind it.

    It is further in the step or in a later one. Or it came later to an earlier point: when a collective times out, the
    step is begun anew. Not if it came there at about the same time, as a group that hangs right after its commit while
    the others already ask for the next quorum: then they wait for it.
    """
    here, there = (one.step or 0, one.stage), (other.step or 0, other.stage)
    return there > here or (there < here and other.moved > one.moved + min(TOGETHER_S, limit / 2))


def _ask_where(state: RunState, config: Config) -> float | None:
    """When every task is to be asked how far it is, because some group stands still; None: nobody does."""
    moved = [p.moved for u in state.groups if u.joined for p in u.pulses if p is not None and p.step is not None]
    if config.health.hang_after_s <= 0 or len(state.groups) < 2 or not moved:
        return None
    return max(min(moved) + config.health.hang_after_s / 2, state.standstill.asked_where + config.health.heartbeat_s)


def deadlines(state: RunState, config: Config) -> Iterator[float]:
    """When find_hangs has to be asked again even if nothing is heard."""
    ask = None if state.ending is not None else _ask_where(state, config)
    if ask is not None:
        yield ask
