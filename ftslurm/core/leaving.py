"""Move groups away from nodes that a user drains, and out of Slurm jobs that are about to end. Pure.

Groups move one at a time while there is time, so that the training never stops. On a drained node nothing is placed; a
group without another place stays there until there is one. Jobs are asked for as for lost nodes (supply.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.core.groups import standby
from ftslurm.core.groups.launching import has_room, lighthouse_node
from ftslurm.core.jobs import queue, supply
from ftslurm.core.jobs.queue import leaves, living, update
from ftslurm.core.jobs.supply import SAVES_S, SPARE_S, handover_at, may_ask, uses_jobs
from ftslurm.core.lineage import rollover
from ftslurm.core.state import errands
from ftslurm.core.state.actions import NoteBroken
from ftslurm.core.state.events import Asked
from ftslurm.core.state.model import JOBS, LIVE, RUNS, Job, Out, Phase, Trait, Unit
from ftslurm.core.state.transitions import stop_politely
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.unit_table import UnitTable
from ftslurm.core.state.units import pool_of
from ftslurm.core.user_requests import Refused, Wrong, answer, check_goes_on, recall, trains, why_stuck
from ftslurm.protocol import records
from ftslurm.protocol.causes import Cause


def vacate(turn: Turn) -> None:
    """Stop the units in jobs that are about to end, and move further groups one at a time while there is time."""
    if not turn.goes_on or not uses_jobs(turn.config) or not turn.attends_jobs():
        return
    elsewhere: dict[int, tuple[bool, bool]] = {}
    for one in turn.jobs:
        if one.pool == records.CONTROLLER_POOL:
            continue
        cause = one.leaving
        must = _must(turn, one)
        if one.usable and (must or _moves(turn, one, elsewhere)):
            cause = Cause.TIME_LIMIT
            update(turn, one.name, leaving=cause)
            turn.do(leaves(one, cause, "its time limit is near"))
        for unit in living(turn, one.name) if cause is not None else ():
            if unit.phase is not Phase.STOPPING:
                stop_politely(turn, unit, cause)
            elif unit.current.intent is None:
                turn.attempt(unit, intent=cause)


def _must(turn: Turn, one: Job) -> bool:
    """Return whether the units of a job must leave it now (cluster.signal_s before its limit).

    The last group that holds the training's state stays longer: others may be about to return. It leaves when there
    is just enough time to save a checkpoint, after saving it. A step that is being adopted stays until it can be
    stopped, and all do until the Lighthouse can be told.
    """
    now, config = turn.now, turn.config
    if one.ends is None or not one.usable or not turn.due(one.ends - config.cluster.signal_s, JOBS):
        return False
    end, units = one.ends - config.stop.grace_s - SPARE_S, list(living(turn, one.name))
    if (any(u.adopting for u in units) or not turn.lighthouse_serves) and not turn.due(end, JOBS):
        return False
    if _joined_elsewhere(turn, one) or not any(u.joined for u in units):
        return True
    if not turn.due(end - SAVES_S, JOBS):
        return False
    saving = turn.lineage.saving
    if (saving is None or saving.until < now) and not turn.due(end, JOBS):
        rollover.ask(turn, end - now)
        return False
    return rollover.answered(turn, JOBS)


def _joined_elsewhere(turn: Turn, one: Job) -> bool:
    """Return whether a group in the controller's own job or in another usable job holds the training's state."""
    for name in turn.table.names(Trait.JOINED):
        unit = turn.unit(name)
        place = unit.place
        if place.allocation == one.name or not trains(unit):
            continue
        job = queue.job(turn, place.allocation)
        if place.allocation is None or (job is not None and job.usable):
            return True
    return False


def _moves(turn: Turn, one: Job, elsewhere: dict[int, tuple[bool, bool]]) -> bool:
    """Return whether the group of a job moves to another job before it must.

    Groups move one at a time while others hold the training's state and commit steps: the training never stops. A group
    moves as soon as there is another place; from halfway between the handover time and the end also if there is none,
    because its next attempt may wait for the node that it leaves.

    Args:
        turn: the decision.
        one: a job in which steps may be started.
        elsewhere: by pool, the results of _elsewhere in this decision.
    """
    limit = handover_at(one, turn.config)
    if limit is None or one.ends is None or not turn.due(limit, JOBS):
        return False
    unit = next(living(turn, one.name), None)
    if unit is None or unit.phase is Phase.STOPPING or unit.adopting:
        return False
    if unit.is_standby:
        return True
    halfway = turn.due((limit + one.ends) / 2, JOBS)
    if turn.independent or not unit.joined or not _may_go(turn, unit):
        return False
    if not may_ask(turn.config):  # the job itself is requeued with a new time limit, and mostly starts at once
        waiting = (u for u in turn.having(Trait.WAITING) if u.name != unit.name)
        waits = any(u.phase is Phase.PENDING and not u.retired for u in waiting)
        return turn.config.cluster.requeue and (halfway or not waits)
    if one.pool not in elsewhere:
        elsewhere[one.pool] = _elsewhere(turn, one.pool)
    free, coming = elsewhere[one.pool]
    return free or (coming and halfway)


def _settled(unit: Unit) -> bool:
    """Return whether a group takes part in the training, or has no nodes for now."""
    return unit.joined or unit.retired or (unit.phase is Phase.PENDING and unit.waits_for is not None)


def _others_are_settled(table: UnitTable, but: Unit) -> bool:
    """Return whether every other group takes part in the training, has no nodes for now, or is over."""
    moving = table.in_phase(Phase.STARTING, Phase.STOPPING, Phase.PENDING)
    if table.count(Phase.RUNNING) > table.count(Trait.JOINED):
        moving += table.in_phase(Phase.RUNNING)
    return all(_settled(unit) for unit in moving if unit.name != but.name)


def _elsewhere(turn: Turn, pool: int) -> tuple[bool, bool]:
    """Return whether this pool has a free place in a job that lasts, and whether a job of it waits in the queue.

    The result is the same for all jobs of the pool that are near their end, since none of them lasts.
    """
    beside = (*turn.table.in_phase(*LIVE), *(unit for unit in turn.state.standbys if unit.phase in LIVE))
    free = has_room(turn, pool, beside)
    return free, any(one.alive and one.row.waits and one.pool == pool for one in turn.jobs)


# --- drained nodes ----------------------------------------------------------------------------------------------------


def drain(turn: Turn, event: Asked) -> None:
    """Leave a node out."""
    check_goes_on(turn)
    _check_may_go(turn, event.node)
    near = turn.table.near(event.node)
    there = [f"group {unit.group}" if unit.group is not None else unit.name for unit in near if unit.phase in LIVE]
    moves = f"{', '.join(there)}: moved as soon as there is another place" if there else "nothing of the run is there"
    answer(turn, event, f"{event.node} gets nothing any more; {moves}")
    _leave_out(turn, [event.node], event.by)


def leave_out_slow(turn: Turn, unit: Unit) -> None:
    """Drain the nodes of a slow group once it has another place; one group at a time (health.on_slow=drain)."""
    nodes = frozenset(unit.place.nodes) - turn.nodes.drained
    if turn.local or not turn.goes_on or not nodes or _there(turn):
        return
    without = Turn(turn.state, turn.now, turn.config)
    without.node(*nodes, drained=True)
    if _may_go(without, unit) and _is_taken_in(without, unit):
        _leave_out(turn, sorted(nodes), f"ftslurm: group {unit.group} is slow there")


def _leave_out(turn: Turn, nodes: Sequence[str], by: str | int) -> None:
    turn.node(*nodes, drained=True)
    turn.do(*(records.NodeDrained(node=node, by=by) for node in nodes))
    supply.told_to_avoid(turn)


def undrain(turn: Turn, event: Asked) -> None:
    """Use a node again that a user drained or ftslurm excluded.

    A node that was excluded for a failure is checked first. One that others could not reach is never excluded for that
    again.
    """
    node, known = event.node, turn.nodes.of(event.node)
    left_out = known.out in (Out.UNFIT, Out.BLAMED, Out.CUT)
    if not left_out and not known.drained:
        raise Refused(f"{node} is not drained; drained: {', '.join(sorted(turn.nodes.drained)) or 'none is'}")
    said = f"{node} is used again" + (", when it is found to be sound: it was lost" if known.out else "")
    answer(turn, event, f"{node} may be used again; health.preflight, if set, checks it before" if left_out else said)
    turn.do(records.NodeUndrained(node=node, by=event.by))
    turn.node(node, drained=False)
    if left_out:
        turn.take_back(node, "a user takes it back")
        turn.node(node, trusted=known.trusted or known.out is Out.CUT)
        errands.add(turn, NoteBroken(node))
    supply.told_to_avoid(turn)


def move(turn: Turn) -> None:
    """Recall the steps on drained nodes that have another place."""
    drained = turn.nodes.drained
    if not drained or not turn.goes_on:
        return
    one_moves = False
    for unit in _there(turn):
        if unit.group is None or (not (unit.joined and one_moves) and _may_go(turn, unit) and _is_taken_in(turn, unit)):
            one_moves = one_moves or (unit.joined and not turn.independent)
            nodes = ", ".join(sorted(drained.intersection(unit.place.nodes)))
            recall(turn, unit, f"{nodes} is drained")


def _there(turn: Turn) -> list[Unit]:
    """Return the units with a step on drained nodes that may move; the Lighthouse only if the job has another node."""
    drained, found = turn.nodes.drained, []
    for unit in turn.table.near(*drained):
        free = unit.phase in RUNS and unit.current.recalled is None and not unit.adopting
        if free and not (unit.is_lighthouse and drained.issuperset(lighthouse_node(turn))):
            found.append(unit)
    return found


def _may_go(turn: Turn, unit: Unit) -> bool:
    """Return whether a group may leave its nodes before it must: the training goes on, and no other group moves."""
    if unit.joined and not turn.independent and not _others_are_settled(turn.table, unit):
        return False
    if not turn.lighthouse_serves or supply.hand_over_due(turn) is not None:
        return False  # nobody could tell the others that it leaves
    return why_stuck(turn, unit) is None


def _is_taken_in(turn: Turn, unit: Unit) -> bool:
    """Return whether a group finds a place on other nodes, or a standby there, at once."""
    pool, waiting = pool_of(unit.group, turn.config), turn.having(Trait.WAITING)
    if any(u.phase is Phase.PENDING and pool_of(u.group, turn.config) == pool and not u.retired for u in waiting):
        return False  # they come first
    if standby.pick(turn, unit) is not None:
        return True
    return has_room(turn, pool, (u for u in turn.table.in_phase(*LIVE) if u.name != unit.name))


def _check_may_go(turn: Turn, node: str) -> None:
    """Refuse a node that cannot be drained."""
    state = turn.state
    if turn.local:
        raise Refused("the nodes of a local run are all this machine")
    if turn.nodes.of(node).drained:
        raise Refused(f"{node} is drained already")
    nodes = {name for allocation in state.allocations() for name in allocation.nodes}
    nodes |= {name for unit in state.units if unit.phase in LIVE for name in unit.place.nodes}
    if node not in nodes:
        raise Wrong(f"the run has no node {node}; it has {', '.join(sorted(nodes)[:20]) or 'none'}")
    if not nodes - turn.nodes.unusable - {node}:
        raise Refused(f"{node} is the last node that the run may use: to end the run, ftslurm stop")
