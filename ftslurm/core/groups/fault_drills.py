"""Drills: real faults that are inflicted on purpose. Selects those that are due and their tasks.

There are three kinds: faults of `faults.plan`, due when their group has committed a step; random faults of a seeded
stream (`faults.random`), the same for the same seed on every machine; and those of `ftslurm inject`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from ftslurm.config.schema import Config
from ftslurm.core.groups import ranks
from ftslurm.core.state.actions import Action, Cancel, Send
from ftslurm.core.state.events import InjectAsked
from ftslurm.core.state.model import Phase, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.unit_names import LOCAL_ALLOCATION
from ftslurm.core.state.units import swap
from ftslurm.core.state.values import replace
from ftslurm.protocol import messages, records

FRESH_S = 120.0  # a failure within this time of a drill is attributed to the drill
GROUPLESS = frozenset({"lighthouse"})  # kinds that hit no group


@dataclass(frozen=True)
class PlannedDrill:
    """A fault of faults.plan, due when its group has committed `step`, even if it hits no group (GROUPLESS)."""

    step: int
    kind: str
    group: int
    rank: int


@dataclass(frozen=True)
class RandomDrill:
    """A fault of the random stream, due `after_s` seconds after the run's first committed step."""

    after_s: float
    kind: str
    group: int
    rank: int


def plan(config: Config) -> tuple[PlannedDrill, ...]:
    """Return the faults of faults.plan in its order, with fractions of job.total_steps as steps."""
    total = config.job.total_steps or 0
    return tuple(PlannedDrill(_step(f.at, total), f.kind, f.group, f.rank) for f in config.faults.plan)


def _step(at: float, total: int) -> int:
    return max(1, math.ceil(round(at if at >= 1 else at * total, 6)))  # 0.07 * 100 is a little more than 7


def draw(config: Config, index: int) -> RandomDrill | None:
    """Return the index-th random fault, counted from 0; None: none are asked for.

    The times between two faults are exponentially distributed with mean `mean_s` (a Poisson process, as failures
    of many machines are). Kind, group and rank are drawn uniformly.
    """
    faults, size = config.faults.random, config.groups.nodes * config.groups.workers
    if faults is None:
        return None
    drawn, more = _stream(faults.seed, faults.mean_s, tuple(faults.kinds), config.groups.count, size)
    while len(drawn) <= index:
        drawn.append(next(more))
    return drawn[index]


@lru_cache(maxsize=8)
def _stream(
    seed: int, mean_s: float, kinds: tuple[str, ...], groups: int, size: int
) -> tuple[list[RandomDrill], Iterator[RandomDrill]]:
    """Return the faults that have been drawn, so that each is drawn once, and those to come."""
    return [], _faults(seed, mean_s, kinds, groups, size)


def _faults(seed: int, mean_s: float, kinds: tuple[str, ...], groups: int, size: int) -> Iterator[RandomDrill]:
    random, after_s = Random(seed).random, 0.0  # noqa: S311  the one method whose numbers Python promises to keep
    while True:
        after_s -= mean_s * math.log(1.0 - random())
        kind = kinds[int(random() * len(kinds))]
        # Drawn in this order for every kind, so that other kinds leave times, groups and ranks as they are.
        yield RandomDrill(after_s, kind, int(random() * groups), int(random() * size))


def inject_planned(
    state: RunState, unit: Unit, now: float, config: Config, step: int | None = None
) -> tuple[RunState, list[Action]]:
    """Inflict the faults of faults.plan whose step a group has reached.

    Args:
        state: the state of the run.
        unit: the group.
        now: the time.
        config: the configuration.
        step: the step of the run, for a group that commits no steps of its own.
    """
    actions: list[Action] = []
    step = unit.current.step if step is None else step
    for i, fault in enumerate(plan(config) if unit.phase is Phase.RUNNING else ()):
        if i in state.drills.injected or fault.group != unit.group or step is None or step < fault.step:
            continue
        state = replace(state, drills=replace(state.drills, injected=state.drills.injected | {i}))
        state, more = _inject(state, fault.kind, unit, fault.rank, now, "faults.plan")
        actions += more
    return state, actions


def never_done(state: RunState, config: Config) -> list[Action]:
    """Return a warning for each fault of faults.plan that was not inflicted, as its step was never reached."""
    out: list[Action] = []
    for i, fault in enumerate(plan(config)):
        if i not in state.drills.injected:
            target = "the Lighthouse" if fault.kind in GROUPLESS else f"rank {fault.rank} of group {fault.group}"
            text = (
                f"a drill was never done: {fault.kind} of {target}, planned for step {fault.step} of group "
                f"{fault.group} (faults.plan); the run committed {state.lineage.step} steps"
            )
            out.append(records.Warned(group=None if fault.kind in GROUPLESS else fault.group, text=text))
    return out


def inject_asked(state: RunState, event: InjectAsked, now: float) -> tuple[RunState, list[Action]]:
    """Inflict a fault that was requested with `ftslurm inject`."""
    command = records.Command(what=f"inject {event.fault}", by=event.by.name, group=event.group, rank=event.rank)
    state, actions = _inject_in_group(state, event.fault, event.group, event.rank, now, event.by.name)
    return state, [command, *actions]


def inject_random(state: RunState, now: float, config: Config) -> tuple[RunState, list[Action]]:
    """Inflict the random faults that are due."""
    actions: list[Action] = []
    while state.ending is None and (due := next_random(state, config)) is not None and now >= due:
        drill = draw(config, state.drills.done)
        assert drill is not None
        state = replace(state, drills=replace(state.drills, done=state.drills.done + 1))
        state, more = _inject_in_group(state, drill.kind, drill.group, drill.rank, now, "faults.random")
        actions += more
    return state, actions


def next_random(state: RunState, config: Config) -> float | None:
    """Return when the next random fault is due; None: there is none."""
    drill = draw(config, state.drills.done) if state.drills.stepping_since is not None else None
    return None if drill is None or state.drills.stepping_since is None else state.drills.stepping_since + drill.after_s


def since(unit: Unit, now: float) -> float | None:
    """Return the seconds since the drill that caused a unit's failure at `now`; None: no drill did."""
    drilled = unit.current.drilled
    return round(now - drilled, 3) if drilled is not None and now - drilled < FRESH_S else None


def _inject_in_group(
    state: RunState, kind: str, group: int | None, rank: int, now: float, by: str | int
) -> tuple[RunState, list[Action]]:
    running = [u for u in state.table.in_phase(Phase.RUNNING) if group in (None, u.group)]
    if kind not in GROUPLESS and not running:
        reason = "no group runs" if group is None else f"group {group} does not run"
        return state, [records.FaultRefused(kind=kind, group=group, rank=rank, reason=reason)]
    return _inject(state, kind, running[0] if running else state.lighthouse, rank, now, by)


def _inject(
    state: RunState, kind: str, unit: Unit, rank: int, now: float, by: str | int
) -> tuple[RunState, list[Action]]:
    target = state.lighthouse if kind in GROUPLESS else unit
    group, attempt, step = target.group, target.attempt, target.current.step

    def refused(reason: str) -> list[Action]:
        return [
            records.FaultRefused(kind=kind, group=group, attempt=attempt, rank=rank, step=step, by=by, reason=reason)
        ]

    if kind == "cancel" and state.allocation is not None and state.allocation.name == LOCAL_ALLOCATION:
        return state, refused("scancel needs Slurm, and this run is local")
    if target.phase is not Phase.RUNNING or (not 0 <= rank < len(target.current.hosts) and kind not in GROUPLESS):
        reason = f"{target.name} does not run" if target.phase is not Phase.RUNNING else f"it has no rank {rank}"
        return state, refused(reason)
    state = swap(state, replace(target, current=replace(target.current, drilled=now)))
    table = ranks.table([str(host) for host in target.current.hosts])
    task = 0 if kind in GROUPLESS else next(t for t, row in enumerate(table) if row.rank == rank)
    node = target.current.hosts[task] if task < len(target.current.hosts) else None
    injected = records.FaultInjected(
        kind=kind, group=group, attempt=attempt, rank=rank, node=node, step=step, by=by, reason=None
    )
    if kind == "cancel":
        return state, [injected, Cancel(target.id)]
    return state, [injected, Send(target.id, messages.Inject("kill" if kind in GROUPLESS else kind, task))]
