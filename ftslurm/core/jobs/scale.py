"""Change the number of groups of a run (`ftslurm scale`)."""

from __future__ import annotations

from ftslurm.config.schema import Config, most_groups
from ftslurm.core.state.events import ScaleAsked
from ftslurm.core.state.model import LIVE, Phase, Unit
from ftslurm.core.state.run_state import ALL, RunState
from ftslurm.core.state.transitions import stop_politely
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.unit_names import group_unit
from ftslurm.core.state.units import independent
from ftslurm.protocol import records
from ftslurm.protocol.causes import Cause
from ftslurm.words import by_count, listed


def observe(turn: Turn, event: ScaleAsked) -> None:
    """Add groups at the end, which heal when they start, or stop the last groups politely."""
    why_not = refused(event.groups, turn.config) or _why_not_now(turn.state, event.groups, turn.config)
    if why_not is not None:
        turn.do(records.ScaleRefused(groups=event.groups, by=event.by.name, reason=why_not))
        return
    turn.do(records.Scaled(groups=event.groups, by=event.by.name))
    for unit in turn.state.groups:
        leaves = unit.group_id >= event.groups
        unit = turn.change(unit, retired=leaves)  # False: it stays, even if it was about to leave
        if leaves and unit.phase in (Phase.STARTING, Phase.RUNNING):
            stop_politely(turn, unit, Cause.CANCELLED)
    last = dict(turn.state.parked)
    for group in range(turn.table.groups, event.groups):
        name = group_unit(group)
        new = Unit(name, group, attempt=last.get(name, -1), reason="the run has become larger", due=turn.now)
        turn.put(new)
        turn.set(planned=turn.state.planned + (new.attempt >= 0))  # not counted as a restart


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
        holds = by_count(len(go), "group {} holds", "groups {} hold").format(listed(u.group for u in go))
        return f"only {holds} the training's state now; try again when one that stays trains"
    return None


def trains(unit: Unit) -> bool:
    """Return whether a group holds the training's state and none of its ranks is stopped (SIGSTOP)."""
    return unit.joined and not unit.is_stopped


def trim(turn: Turn) -> None:
    """Drop the groups at the end that have left; a later group of the same number continues their attempt numbers."""
    while turn.table.groups > 1:
        gone = turn.table.group(turn.table.groups - 1)
        if not gone.retired or gone.phase in LIVE:
            break
        parked = (*(one for one in turn.state.parked if one[0] != gone.name), (gone.name, gone.attempt))
        told = turn.state.told
        told = told.delete(gone.name) if gone.name in told else told
        turn.set(table=turn.table.without_last_group(), told=told, parked=parked)
        turn.wake(ALL)
