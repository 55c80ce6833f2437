"""Change the number of groups of a run (`ftslurm scale`). Pure."""

from __future__ import annotations

from ftslurm.config.schema import Config, most_groups
from ftslurm.core.jobs.queue import Outcome
from ftslurm.core.state.actions import Action
from ftslurm.core.state.events import ScaleAsked
from ftslurm.core.state.model import LIVE, Phase, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.transitions import stop_politely
from ftslurm.core.state.unit_names import group_unit
from ftslurm.core.state.units import independent, swap
from ftslurm.core.state.values import replace
from ftslurm.protocol import records
from ftslurm.protocol.causes import Cause


def observe(state: RunState, event: ScaleAsked, now: float, config: Config) -> Outcome:
    """Add groups at the end, which heal when they start, or stop the last groups politely."""
    why_not = refused(event.groups, config) or _why_not_now(state, event.groups, config)
    if why_not is not None:
        return state, [records.ScaleRefused(groups=event.groups, by=event.by.name, reason=why_not)]
    actions: list[Action] = [records.Scaled(groups=event.groups, by=event.by.name)]
    for unit in state.groups:
        assert unit.group is not None
        if unit.group < event.groups:
            state = swap(state, replace(unit, retired=False))  # keeps a group that was about to leave
            continue
        unit = replace(unit, retired=True)
        if unit.phase in (Phase.STARTING, Phase.RUNNING):
            unit, stops = stop_politely(unit, Cause.CANCELLED, config.stop.grace_s, now)
            actions += stops
        state = swap(state, unit)
    last = dict(state.parked)
    for group in range(state.table.groups, event.groups):
        name = group_unit(group)
        new = Unit(name, group, attempt=last.get(name, -1), reason="the run has become larger", due=now)
        state = replace(swap(state, new), planned=state.planned + (new.attempt >= 0))  # not counted as a restart
    return state, actions


def refused(groups: int, config: Config) -> str | None:
    """Return why the run cannot have this many groups; None: it can."""
    if config.groups.roles:
        return "groups that have roles (groups.roles) cannot become more or fewer"
    if groups < config.groups.min:
        return f"{groups} is below groups.min={config.groups.min}"
    if groups > most_groups(config):
        most = "" if config.groups.max is not None else " (not set: groups.count)"
        return (
            f"{groups} is above groups.max={most_groups(config)}{most}, which is fixed when a run starts: start it "
            f"with groups.max={groups}"
        )
    return None


def _why_not_now(state: RunState, groups: int, config: Config) -> str | None:
    if state.ending is not None:
        return f"the run is ending: {state.ending.reason}"
    if state.table.count(Phase.SUCCEEDED):
        return "a group has finished already: a new one could only start a new history"
    go = [u for u in state.groups[groups:] if trains(u)]
    if go and not independent(config) and not any(trains(u) for u in state.groups[:groups]):
        who = f"groups {', '.join(str(u.group) for u in go)} hold" if len(go) > 1 else f"group {go[0].group} holds"
        return f"only {who} the training's state now; try again when one that stays trains"
    return None


def trains(unit: Unit) -> bool:
    """Return whether a group holds the training's state and none of its ranks is stopped (SIGSTOP)."""
    return unit.joined and not unit.is_stopped


def trim(state: RunState, now: float, config: Config) -> Outcome:
    """Drop the groups at the end that have left; a later group of the same number continues their attempt numbers."""
    while state.table.groups > 1:
        gone = state.table.group(state.table.groups - 1)
        if not gone.retired or gone.phase in LIVE:
            break
        parked = (*(one for one in state.parked if one[0] != gone.name), (gone.name, gone.attempt))
        told = state.told.delete(gone.name) if gone.name in state.told else state.told
        state = replace(state, table=state.table.without_last_group(), told=told, parked=parked)
    return state, []
