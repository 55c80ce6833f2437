"""Drills: real faults that are inflicted on purpose. Selects those that are due and their tasks.

There are two kinds: faults of `faults.plan`, due when their group has committed a step, and those of `ftslurm inject`.
"""

from __future__ import annotations

import math
from typing import Any

from ftslurm.config.schema import Config, Fault
from ftslurm.core.groups import ranks
from ftslurm.core.state import errands
from ftslurm.core.state.events import Asked
from ftslurm.core.state.model import Phase, Unit
from ftslurm.core.state.turn import Turn
from ftslurm.protocol import messages, records

FRESH_S = 120.0  # a failure within this time of a drill is attributed to the drill
GROUPLESS = frozenset({"lighthouse"})  # kinds that hit no group


def step_of(fault: Fault, config: Config) -> int:
    """Return the step at which a fault of faults.plan is due; below 1, `at` is a fraction of job.total_steps."""
    at = fault.at if fault.at >= 1 else fault.at * (config.job.total_steps or 0)
    return max(1, math.ceil(round(at, 6)))  # 0.07 * 100 is a little more than 7


def inject_planned(turn: Turn, unit: Unit, step: int | None = None) -> None:
    """Inflict the faults of faults.plan whose step a group has reached.

    Args:
        turn: the decision.
        unit: the group.
        step: the step of the run, for a group that commits no steps of its own.
    """
    step = unit.current.step if step is None else step
    if step is None or unit.phase is not Phase.RUNNING:
        return
    for i, fault in enumerate(turn.config.faults.plan):
        injected = turn.state.injected
        if i not in injected and fault.group == unit.group and step >= step_of(fault, turn.config):
            turn.set(injected=injected | {i})
            _inject(turn, fault.kind, unit, fault.rank, "faults.plan")


def never_done(turn: Turn) -> None:
    """Warn of each fault of faults.plan that was not inflicted, as its step was never reached."""
    for i, fault in enumerate(turn.config.faults.plan):
        if i not in turn.state.injected:
            target = "the Lighthouse" if fault.kind in GROUPLESS else f"rank {fault.rank} of group {fault.group}"
            text = (
                f"a drill was never done: {fault.kind} of {target}, planned for step "
                f"{step_of(fault, turn.config)} of group {fault.group} (faults.plan); the run committed "
                f"{turn.lineage.step} steps"
            )
            turn.do(records.Warned(group=None if fault.kind in GROUPLESS else fault.group, text=text))


def inject_asked(turn: Turn, event: Asked) -> None:
    """Inflict a fault that was requested with `ftslurm inject`. Answered by a record."""
    kind, group, rank = event.fault, event.group, event.rank or 0
    running = [unit for unit in turn.state.groups if _runs(unit) and group in (None, unit.group)]
    if kind not in GROUPLESS and not running:
        reason = "no group runs" if group is None else f"group {group} does not run"
        turn.do(records.FaultRefused(kind=kind, group=group, rank=rank, reason=reason, by=event.by))
    else:
        _inject(turn, kind, running[0] if running else turn.lighthouse, rank, event.by)


def struck(unit: Unit, now: float) -> float:
    """Return when the drill was done that caused a unit's failure at `now`; `now`: no drill did."""
    drilled = unit.current.drilled
    return drilled if drilled is not None and now - drilled < FRESH_S else now


def _inject(turn: Turn, kind: str, unit: Unit, rank: int, by: str | int) -> None:
    target = turn.lighthouse if kind in GROUPLESS else unit
    about: dict[str, Any] = {"kind": kind, "rank": rank, "step": target.current.step, "by": by, **target.of_group}
    if (why_not := _why_not(turn, kind, target, rank)) is not None:
        turn.do(records.FaultRefused(**about, reason=why_not))
        return
    target = turn.attempt(target, drilled=turn.now)
    task = 0 if kind in GROUPLESS else next(t for t, row in enumerate(ranks.of(target)) if row.rank == rank)
    node = target.node_of(task)
    turn.do(records.FaultInjected(**about, node=node))
    errands.request(turn, target, messages.Inject("kill" if kind in GROUPLESS else kind, task))


def _runs(unit: Unit) -> bool:
    """Return whether the scripts of a unit run, as far as is known: those of a step to adopt have before."""
    has_begun = unit.marks.begun is not None or unit.is_lighthouse
    return unit.phase is Phase.RUNNING or (unit.phase is Phase.STARTING and unit.adopting and has_begun)


def _why_not(turn: Turn, kind: str, target: Unit, rank: int) -> str | None:
    """Return why a fault cannot be inflicted now; None: it can."""
    if kind == "corrupt" and turn.config.health.compare_every == 0:
        return "nothing would find it: groups are not compared (health.compare_every=0)"
    if kind == "cancel" and turn.local:
        return "scancel needs Slurm, and this run is local"
    if not _runs(target):
        return f"{target.name} does not run"
    if not 0 <= rank < len(target.current.hosts) and kind not in GROUPLESS:
        return f"it has no rank {rank}"
    return None
