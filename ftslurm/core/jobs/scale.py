"""`ftslurm scale`: the run gets more groups, or fewer. Pure."""

from __future__ import annotations

from dataclasses import replace

from ftslurm.config.schema import Config, most_groups
from ftslurm.core.jobs.queue import Outcome
from ftslurm.core.state.actions import Action
from ftslurm.core.state.events import ScaleAsked
from ftslurm.core.state.model import LIVE, Cause, Phase, RunState, Unit
from ftslurm.core.state.transitions import stop_politely
from ftslurm.core.state.unit_names import group_unit
from ftslurm.core.state.units import independent, swap
from ftslurm.protocol import records


def observe(state: RunState, event: ScaleAsked, now: float, config: Config) -> Outcome:
    """Add groups at the end, which heal in as they start, or let the last ones leave politely."""
    why_not = refused(event.groups, config) or _why_not_now(state, event.groups, config)
    if why_not is not None:
        return state, [records.ScaleRefused(groups=event.groups, by=event.by.name, reason=why_not)]
    actions: list[Action] = [records.Scaled(groups=event.groups, by=event.by.name)]
    for unit in state.groups:
        assert unit.group is not None
        if unit.group < event.groups:
            state = swap(state, replace(unit, retired=False))  # one that was about to leave comes back
            continue
        unit = replace(unit, retired=True)
        if unit.phase in (Phase.STARTING, Phase.RUNNING):
            unit, stops = stop_politely(unit, Cause.CANCELLED, config.stop.grace_s, now)
            actions += stops
        state = swap(state, unit)
    last = dict(state.parked)
    for group in range(len(state.groups), event.groups):
        name = group_unit(group)
        new = Unit(name, group, attempt=last.get(name, -1), reason="the run has become larger", due=now)
        state = replace(state, groups=(*state.groups, new), told=(*state.told, None) if state.told else ())
        state = replace(state, planned=state.planned + (new.attempt >= 0))  # its next launch is no restart
    return state, actions


def refused(groups: int, config: Config) -> str | None:
    """Why the run cannot have so many groups; None: it can."""
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
    if any(u.phase is Phase.SUCCEEDED for u in state.groups):
        return "a group has finished already: a new one could only start a new history"
    go = [u for u in state.groups[groups:] if _trains(u)]
    if go and not independent(config) and not any(_trains(u) for u in state.groups[:groups]):
        who = f"groups {', '.join(str(u.group) for u in go)} hold" if len(go) > 1 else f"group {go[0].group} holds"
        return f"only {who} the training's state now; try again when one that stays trains"
    return None


def _trains(unit: Unit) -> bool:
    """Whether a group holds the training's state and none of its ranks is stopped (SIGSTOP)."""
    return unit.joined and not any(pulse is not None and pulse.state == "T" for pulse in unit.pulses)


def trim(state: RunState, now: float, config: Config) -> Outcome:
    """Drop the groups at the end that have left; what a later group of that number is called goes on from theirs."""
    while len(state.groups) > 1 and state.groups[-1].retired and state.groups[-1].phase not in LIVE:
        gone = state.groups[-1]
        parked = (*(one for one in state.parked if one[0] != gone.name), (gone.name, gone.attempt))
        state = replace(state, groups=state.groups[:-1], told=state.told[: len(state.groups) - 1], parked=parked)
    return state, []
