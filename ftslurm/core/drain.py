"""Drain nodes at a user's request: nothing is placed there, and what runs there moves away while there is room. Pure.

Groups move one at a time, so that the training never stops; a group without another place stays until there is one.
Jobs are asked for as for lost nodes (supply.py).
"""

from __future__ import annotations

from ftslurm.config.schema import Config
from ftslurm.core import handover
from ftslurm.core.groups import placement, standby
from ftslurm.core.groups.exits import Outcome
from ftslurm.core.health import fitness
from ftslurm.core.jobs import supply
from ftslurm.core.state.actions import Action
from ftslurm.core.state.events import Asked
from ftslurm.core.state.model import LIVE, Phase, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.unit_table import Trait
from ftslurm.core.state.units import independent, places, pool_of
from ftslurm.core.state.values import replace
from ftslurm.core.user_requests import RUNS, Answer, Refused, recall, why_stuck
from ftslurm.protocol import records


def drain(state: RunState, event: Asked, now: float, config: Config) -> Answer:
    """Leave a node out."""
    if (why_not := _why_not(state, event.node, config)) is not None:
        raise Refused(why_not)
    state = replace(state, nodes=replace(state.nodes, drained=state.nodes.drained | {event.node}))
    there = [f"group {u.group}" if u.group is not None else u.name for u in _near(state, frozenset({event.node}))]
    moves = f"{', '.join(there)}: moved as soon as there is another place" if there else "nothing of the run is there"
    drained = records.NodeDrained(node=event.node, by=event.by.name)
    return state, f"{event.node} gets nothing any more; {moves}", [drained, *supply.told_to_avoid(state, config)]


def undrain(state: RunState, event: Asked, now: float, config: Config) -> Answer:
    """Use a drained node again, or check one again that has failed its check."""
    node, drained, restored = event.node, state.nodes.drained, list[Action]()
    unfit = node in state.nodes.unfit
    if not unfit and node not in drained:
        raise Refused(f"{node} is not drained; drained: {', '.join(sorted(drained)) or 'none is'}")
    text = f"{node} is used again" + (
        ", when it is found to be sound: it was lost" if node in state.nodes.avoid else ""
    )
    state = replace(state, nodes=replace(state.nodes, drained=drained - {node}))
    if unfit:
        text = f"{node} is checked again (health.preflight), and used if it passes"
        state, restored = fitness.forgive(state, node)
    undrained = records.NodeUndrained(node=node, by=event.by.name)
    return state, text, [undrained, *restored, *supply.told_to_avoid(state, config)]


def move(state: RunState, now: float, config: Config) -> Outcome:
    """Recall the steps on drained nodes that have another place."""
    actions: list[Action] = []
    if not state.nodes.drained or state.ending is not None:
        return state, actions
    one_moves, alone = False, independent(config)
    for unit in _there(state, state.nodes.drained):
        if unit.group is None or (not (unit.joined and one_moves) and _may_go(state, unit, now, config)):
            one_moves = one_moves or (unit.joined and not alone)
            nodes = ", ".join(sorted(state.nodes.drained.intersection(unit.place.nodes if unit.place else ())))
            state, more = recall(state, unit, f"{nodes} is drained (ftslurm drain)")
            actions += more
    return state, actions


def _there(state: RunState, nodes: frozenset[str]) -> list[Unit]:
    """Return the units with a step on these nodes that may move; the Lighthouse only if the job has another node."""
    found = []
    for unit in _near(state, nodes):
        free = unit.current.recalled is None and unit.current.adoption is None
        own = () if state.allocation is None else state.allocation.nodes
        if free and not (unit.is_lighthouse and state.nodes.drained.issuperset(own)):
            found.append(unit)
    return found


def _near(state: RunState, nodes: frozenset[str]) -> list[Unit]:
    """Return the units with a step on these nodes."""
    names = {unit.name for node in nodes for unit in state.table.near(node)}
    return [unit for unit in state.table.named(names) if unit.phase in RUNS]


def _may_go(state: RunState, unit: Unit, now: float, config: Config) -> bool:
    """Return whether a group may leave its drained node now: it has another place, and the training goes on."""
    if unit.joined and not independent(config) and not handover.others_are_settled(state.table, unit):
        return False  # another group is just moving or coming back
    return why_stuck(state, unit, config) is None and _has_room(state, unit, now, config)


def _has_room(state: RunState, unit: Unit, now: float, config: Config) -> bool:
    """Return whether a group finds a place on other nodes, or a standby there, at once."""
    pool = pool_of(unit.group, config)
    waiting = state.table.named(state.table.having_trait(Trait.WAITING))
    if any(u.phase is Phase.PENDING and pool_of(u.group, config) == pool and not u.retired for u in waiting):
        return False  # they come first
    if standby.pick(state, unit, config) is not None:
        return True
    there, taken = supply.lasting(state, pool, now, config), places(state.groups, but=unit)
    groups = config.groups
    return placement.place(groups.nodes, groups.per_node, there, taken, state.nodes.closed) is not None


def _why_not(state: RunState, node: str, config: Config) -> str | None:
    """Return why a node cannot be drained; None: it can."""
    if state.ending is not None:
        return f"the run is ending: {state.ending.reason}"
    if config.cluster.kind == "local":
        return "the nodes of a local run are all this machine"
    if node in state.nodes.drained:
        return f"{node} is drained already"
    nodes = {name for allocation in state.allocations() for name in allocation.nodes}
    nodes |= {name for unit in state.units if unit.phase in LIVE and unit.place for name in unit.place.nodes}
    if node not in nodes:
        return f"the run has no node {node}; it has {', '.join(sorted(nodes)[:20]) or 'none'}"
    if not nodes - state.nodes.unusable - {node}:
        return f"{node} is the last node that the run may use: to end the run, ftslurm stop"
    return None
