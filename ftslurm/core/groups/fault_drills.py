"""Drills: which fault is due, to whom, and what is done about it (the faults: config/validate.py)."""

from __future__ import annotations

from dataclasses import replace

from ftslurm.config.schema import Config
from ftslurm.core.groups import drill_plan, ranks
from ftslurm.core.state.actions import Action, Cancel, Inject, Record
from ftslurm.core.state.events import InjectAsked
from ftslurm.core.state.model import Phase, RunState, Unit
from ftslurm.core.state.unit_names import LOCAL_ALLOCATION
from ftslurm.core.state.units import swap

FRESH_S = 120.0  # a failure is put down to the drill before it if that is no older


def planned(
    state: RunState, unit: Unit, now: float, config: Config, step: int | None = None
) -> tuple[RunState, list[Action]]:
    """The faults of faults.plan whose step this group has come to; `step`: the run's, for one without its own."""
    actions: list[Action] = []
    step = unit.current.step if step is None else step
    for i, fault in enumerate(drill_plan.planned(config) if unit.phase is Phase.RUNNING else ()):
        if i in state.drills.injected or fault.group != unit.group or step is None or step < fault.step:
            continue
        state = replace(state, drills=replace(state.drills, injected=state.drills.injected | {i}))
        state, more = _inject(state, fault.kind, unit, fault.rank, now, "faults.plan")
        actions += more
    return state, actions


def asked(state: RunState, event: InjectAsked, now: float) -> tuple[RunState, list[Action]]:
    """A fault that somebody wants now."""
    fields: dict[str, object] = {"what": f"inject {event.fault}", "by": event.by, "group": event.group}
    state, actions = _on_group(state, event.fault, event.group, event.rank, now, event.by)
    return state, [Record("command", {**fields, "rank": event.rank}), *actions]


def random(state: RunState, now: float, config: Config) -> tuple[RunState, list[Action]]:
    """The faults of the seeded stream that are due."""
    actions: list[Action] = []
    while state.ending is None and (drill := _next(state, config)) is not None and now >= drill[0]:
        state = replace(state, drills=replace(state.drills, done=state.drills.done + 1))
        state, more = _on_group(state, drill[1].kind, drill[1].group, drill[1].rank, now, "faults.mean_s")
        actions += more
    return state, actions


def next_random(state: RunState, config: Config) -> float | None:
    """When the next fault of the stream is due; None: there is none."""
    drill = _next(state, config)
    return None if drill is None else drill[0]


def _next(state: RunState, config: Config) -> tuple[float, drill_plan.Drill] | None:
    if state.drills.stepping_since is None or (drill := drill_plan.stream(config, state.drills.done)) is None:
        return None
    return state.drills.stepping_since + drill.after_s, drill


def since(unit: Unit, now: float) -> float | None:
    """How long ago the drill was that this failure must come from; None: there was none."""
    return (
        round(now - unit.current.drilled, 3)
        if unit.current.drilled is not None and now - unit.current.drilled < FRESH_S
        else None
    )


def _on_group(
    state: RunState, kind: str, group: int | None, rank: int, now: float, by: str | int
) -> tuple[RunState, list[Action]]:
    running = [u for u in state.groups if u.phase is Phase.RUNNING and group in (None, u.group)]
    if kind != "lighthouse" and not running:
        reason = "no group runs" if group is None else f"group {group} does not run"
        fields: dict[str, object] = {"kind": kind, "group": group, "rank": rank, "reason": reason}
        return state, [Record("fault_refused", fields)]
    return _inject(state, kind, running[0] if running else state.lighthouse, rank, now, by)


def _inject(
    state: RunState, kind: str, unit: Unit, rank: int, now: float, by: str | int
) -> tuple[RunState, list[Action]]:
    target = state.lighthouse if kind == "lighthouse" else unit
    fields: dict[str, object] = {"kind": kind, "group": target.group, "attempt": target.attempt, "rank": rank}
    fields |= {"node": None, "step": target.current.step, "by": by, "reason": None}
    if kind == "cancel" and state.allocation is not None and state.allocation.name == LOCAL_ALLOCATION:
        return state, [Record("fault_refused", {**fields, "reason": "scancel needs Slurm, and this run is local"})]
    if target.phase is not Phase.RUNNING or (not 0 <= rank < len(target.current.hosts) and kind != "lighthouse"):
        reason = f"{target.name} does not run" if target.phase is not Phase.RUNNING else f"it has no rank {rank}"
        return state, [Record("fault_refused", {**fields, "reason": reason})]
    state = swap(state, replace(target, current=replace(target.current, drilled=now)))
    table = ranks.table([str(host) for host in target.current.hosts])
    task = 0 if kind == "lighthouse" else next(t for t, row in enumerate(table) if row.rank == rank)
    fields["node"] = target.current.hosts[task] if task < len(target.current.hosts) else None
    act = Cancel(target.id) if kind == "cancel" else Inject(target.id, task, "kill" if kind == "lighthouse" else kind)
    return state, [Record("fault_injected", fields), act]
