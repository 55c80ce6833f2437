"""Drain nodes at a user's request: nothing is placed there, and what runs there moves away while there is room. Pure.

Groups move one at a time, so that the training never stops; a group without another place stays until there is one.
Jobs are asked for as for lost nodes (supply.py).
"""

from __future__ import annotations

from ftslurm.core import handover
from ftslurm.core.groups import placement, standby
from ftslurm.core.health import fitness
from ftslurm.core.jobs import supply
from ftslurm.core.state.events import Asked
from ftslurm.core.state.model import LIVE, Phase, Unit
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.unit_table import Trait
from ftslurm.core.state.units import places, pool_of
from ftslurm.core.user_requests import RUNS, Refused, check_goes_on, recall, why_stuck
from ftslurm.protocol import records


def drain(turn: Turn, event: Asked) -> str:
    """Leave a node out."""
    check_goes_on(turn)
    if (why_not := _why_not(turn, event.node)) is not None:
        raise Refused(why_not)
    turn.set_nodes(drained=turn.nodes.drained | {event.node})
    turn.do(records.NodeDrained(node=event.node, by=event.by.name))
    supply.told_to_avoid(turn)
    there = [f"group {u.group}" if u.group is not None else u.name for u in _near(turn, frozenset({event.node}))]
    moves = f"{', '.join(there)}: moved as soon as there is another place" if there else "nothing of the run is there"
    return f"{event.node} gets nothing any more; {moves}"


def leave_out_slow(turn: Turn, unit: Unit) -> None:
    """Drain the nodes of a slow group once it has another place; one group at a time (health.on_slow=drain)."""
    nodes = frozenset(unit.place.nodes if unit.place else ()) - turn.nodes.drained
    if turn.local or not turn.goes_on or not nodes or _there(turn):
        return
    without = Turn(turn.state, turn.now, turn.config)
    without.set_nodes(drained=turn.nodes.drained | nodes)
    if _may_go(without, unit):
        turn.set_nodes(drained=turn.nodes.drained | nodes)
        why = f"ftslurm: group {unit.group} is slow there"
        turn.do(*(records.NodeDrained(node=node, by=why) for node in sorted(nodes)))
        supply.told_to_avoid(turn)


def undrain(turn: Turn, event: Asked) -> str:
    """Use a drained node again, or check one again that has failed its check."""
    node, drained, unfit = event.node, turn.nodes.drained, event.node in turn.nodes.unfit
    if not unfit and node not in drained:
        raise Refused(f"{node} is not drained; drained: {', '.join(sorted(drained)) or 'none is'}")
    lost = node in turn.nodes.avoid
    turn.do(records.NodeUndrained(node=node, by=event.by.name))
    turn.set_nodes(drained=drained - {node})
    if unfit:
        fitness.forgive(turn, node)
    supply.told_to_avoid(turn)
    if unfit:
        return f"{node} is checked again (health.preflight), and used if it passes"
    return f"{node} is used again" + (", when it is found to be sound: it was lost" if lost else "")


def move(turn: Turn) -> None:
    """Recall the steps on drained nodes that have another place."""
    drained = turn.nodes.drained
    if not drained or not turn.goes_on:
        return
    one_moves = False
    for unit in _there(turn):
        if unit.group is None or (not (unit.joined and one_moves) and _may_go(turn, unit)):
            one_moves = one_moves or (unit.joined and not turn.independent)
            nodes = ", ".join(sorted(drained.intersection(unit.place.nodes if unit.place else ())))
            recall(turn, unit, f"{nodes} is drained (ftslurm drain)")


def _there(turn: Turn) -> list[Unit]:
    """Return the units with a step on drained nodes that may move; the Lighthouse only if the job has another node."""
    drained, found = turn.nodes.drained, []
    for unit in _near(turn, drained):
        free = unit.current.recalled is None and unit.current.adoption is None
        own = () if turn.state.allocation is None else turn.state.allocation.nodes
        if free and not (unit.is_lighthouse and drained.issuperset(own)):
            found.append(unit)
    return found


def _near(turn: Turn, nodes: frozenset[str]) -> list[Unit]:
    """Return the units with a step on these nodes."""
    names = {unit.name for node in nodes for unit in turn.table.near(node)}
    return [unit for unit in turn.table.named(names) if unit.phase in RUNS]


def _may_go(turn: Turn, unit: Unit) -> bool:
    """Return whether a group may leave its drained node now: it has another place, and the training goes on."""
    if unit.joined and not turn.independent and not handover.others_are_settled(turn.table, unit):
        return False  # another group is just moving or coming back
    return why_stuck(turn.state, unit, turn.config) is None and _has_room(turn, unit)


def _has_room(turn: Turn, unit: Unit) -> bool:
    """Return whether a group finds a place on other nodes, or a standby there, at once."""
    state, config = turn.state, turn.config
    pool = pool_of(unit.group, config)
    waiting = turn.having(Trait.WAITING)
    if any(u.phase is Phase.PENDING and pool_of(u.group, config) == pool and not u.retired for u in waiting):
        return False  # they come first
    if standby.pick(state, unit, config) is not None:
        return True
    there, taken = supply.lasting(turn, pool), places(state.groups, but=unit)
    groups = config.groups
    return placement.place(groups.nodes, groups.per_node, there, taken, turn.nodes.closed) is not None


def _why_not(turn: Turn, node: str) -> str | None:
    """Return why a node cannot be drained; None: it can."""
    state = turn.state
    if turn.local:
        return "the nodes of a local run are all this machine"
    if node in turn.nodes.drained:
        return f"{node} is drained already"
    nodes = {name for allocation in state.allocations() for name in allocation.nodes}
    nodes |= {name for unit in state.units if unit.phase in LIVE and unit.place for name in unit.place.nodes}
    if node not in nodes:
        return f"the run has no node {node}; it has {', '.join(sorted(nodes)[:20]) or 'none'}"
    if not nodes - turn.nodes.unusable - {node}:
        return f"{node} is the last node that the run may use: to end the run, ftslurm stop"
    return None
