"""Assign ranks to steps and start their scripts.

A step is assigned its ranks once all its tasks are ready, and its script begins once its store is up. At the first
start and at a full restart the groups begin together: a group that begins alone commits steps alone, and the others
have to heal from it. So every group waits until each other group has its store or has failed once.
"""

from __future__ import annotations

from ftslurm.config.schema import Config
from ftslurm.core import parameter_servers
from ftslurm.core.groups import ranks
from ftslurm.core.groups.exits import Outcome
from ftslurm.core.groups.launching import fence, store_within_s
from ftslurm.core.lineage import continuity
from ftslurm.core.state.actions import Action, Assign, Send
from ftslurm.core.state.model import LIVE, Phase, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.transitions import run
from ftslurm.core.state.units import independent, swap, tasks_of
from ftslurm.core.state.values import replace
from ftslurm.protocol import messages, records


def assign(state: RunState, now: float, config: Config) -> Outcome:
    """Assign ranks to the steps whose tasks are all ready, then start the scripts that may begin."""
    if state.ending is not None:
        return state, []
    actions: list[Action] = []
    url, waiting = state.lighthouse_url, [unit for unit in state.attended() if _is_ready(unit, config)]
    servers = parameter_servers.urls(state, config) if waiting else ()
    for unit in waiting if url is not None else ():
        table = ranks.table([str(host) for host in unit.current.hosts])
        slot = unit.place.slot if unit.place is not None else 0
        earlier = fence(unit) if unit.current.ran_as is not None else ()
        actions.append(Assign(unit.id, unit.group_id, table, str(url), unit.attempt, slot, earlier, servers))
        current = replace(unit.current, assigned=True, lighthouse=url, servers=servers)
        state = swap(state, replace(unit, due=now + store_within_s(unit, config), current=current))
    if not state.released:
        state = _release(state, config)
    state, begun = _begin(state, now, config) if state.released else (state, [])
    return state, actions + begun


def _is_ready(unit: Unit, config: Config) -> bool:
    """Return whether every task of a group's step waits for its assignment."""
    if unit.phase is not Phase.STARTING or unit.group is None or unit.current.assigned:
        return False
    return len(unit.current.ready) == tasks_of(unit, config) and None not in unit.current.hosts


def _release(state: RunState, config: Config) -> RunState:
    """Set `released` if no group has to be waited for any more; else set `waited_for` to such a group."""
    if independent(config):
        return replace(state, released=True)
    for number in (*range(state.waited_for, state.table.groups), *range(min(state.waited_for, state.table.groups))):
        if not _not_waited_for(state.table.group(number), state):
            return state if number == state.waited_for else replace(state, waited_for=number)
    return replace(state, released=True, waited_for=0)


def _not_waited_for(unit: Unit, state: RunState) -> bool:
    """Return whether others need not wait for a group: it has its store, has failed since the start, or has no node."""
    failed = bool(unit.exits) and (state.lineage.restarted is None or unit.exits[-1].time > state.lineage.restarted)
    there = unit.phase in LIVE and unit.current.store is not None
    return there or failed or unit.phase is Phase.FAILED or unit.waits_for is not None


def _begin(state: RunState, now: float, config: Config) -> Outcome:
    """Start the scripts of the steps whose stores are up."""
    actions: list[Action] = []
    alone = independent(config)
    for unit in state.attended():
        store = unit.current.store
        if unit.phase is not Phase.STARTING or unit.group is None or store is None or now < unit.current.begin_after:
            continue
        heals, floor = (False, 0) if alone else (continuity.heals(state, config), continuity.floor(state, config))
        begun = records.ScriptBegun(unit=unit.name, group=unit.group, attempt=unit.attempt)
        actions += [begun, Send(unit.id, messages.Begin(*store, heals, floor))]
        current = replace(unit.current, floor=floor)
        state = swap(state, run(replace(unit, marks=replace(unit.marks, begun=now), current=current)))
        if alone and state.drills.stepping_since is None:  # without a quorum drills count from here
            state = replace(state, drills=replace(state.drills, stepping_since=now))
    return state, actions
