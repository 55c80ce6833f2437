"""Move groups out of Slurm jobs that are about to end: one at a time while there is time, else at once."""

from __future__ import annotations

from ftslurm.core.groups import placement
from ftslurm.core.jobs import queue
from ftslurm.core.jobs.queue import TOLD_S, leaves, living, update
from ftslurm.core.jobs.supply import SAVES_S, SPARE_S, handover_at, lasting, may_ask, uses_jobs
from ftslurm.core.lineage import rollover
from ftslurm.core.state.model import LIVE, Job, Phase, Unit
from ftslurm.core.state.run_state import JOBS
from ftslurm.core.state.transitions import stop_politely
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.unit_table import Trait, UnitTable
from ftslurm.protocol.causes import Cause


def vacate(turn: Turn) -> None:
    """Stop the units in jobs that are about to end, and move further groups one at a time while there is time."""
    if not turn.goes_on or not uses_jobs(turn.config) or not turn.attends(JOBS):
        return
    elsewhere: dict[int, tuple[bool, bool]] = {}
    for one in turn.jobs:
        cause = one.leaving
        must = _must(turn, one)
        if one.usable and (must or _moves(turn, one, elsewhere)):
            cause = Cause.TIME_LIMIT
            update(turn, one.name, leaving=cause)
            turn.do(leaves(one, cause, "its time limit is near"))
        for unit in living(turn.state, one.name):
            told = unit.current.told is not None and turn.due(unit.current.told + TOLD_S, JOBS)
            if cause is not None or told:
                _bring_down(turn, unit, cause)


def _must(turn: Turn, one: Job) -> bool:
    """Return whether the units of a job must leave it now (cluster.signal_s before its limit).

    The last group that holds the training's state stays longer: others may be about to return. It leaves when there
    is just enough time to save a checkpoint, after saving it. A step that is being adopted stays until it can be
    stopped.
    """
    now, config = turn.now, turn.config
    if one.ends is None or not one.usable or not turn.due(one.ends - config.cluster.signal_s, JOBS):
        return False
    end, units = one.ends - config.stop.grace_s - SPARE_S, list(living(turn.state, one.name))
    if any(u.current.adoption is not None for u in units) and not turn.due(end, JOBS):
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
    for name in turn.table.having_trait(Trait.JOINED):
        place = turn.unit(name).place
        if place is None or place.allocation == one.name:
            continue
        job = queue.job(turn.state, place.allocation)
        if place.allocation is None or (job is not None and job.usable):
            return True
    return False


def _bring_down(turn: Turn, unit: Unit, cause: Cause | None) -> None:
    if unit.phase is not Phase.STOPPING:
        stop_politely(turn, unit, cause)
    elif unit.current.intent is None:
        turn.attempt(unit, intent=cause)


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
    unit = next(living(turn.state, one.name), None)
    if unit is None or unit.phase is Phase.STOPPING or unit.current.adoption is not None:
        return False
    if unit.is_standby:
        return True
    halfway = turn.due((limit + one.ends) / 2, JOBS)
    if len(turn.table.having_trait(Trait.JOINED)) == unit.joined or not others_are_settled(turn.table, unit):
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


def others_are_settled(table: UnitTable, but: Unit) -> bool:
    """Return whether every other group takes part in the training, has no nodes for now, or is over."""
    moving = table.in_phase(Phase.STARTING, Phase.STOPPING, Phase.PENDING)
    if table.count(Phase.RUNNING) > len(table.having_trait(Trait.JOINED)):
        moving += table.in_phase(Phase.RUNNING)
    return all(_settled(unit) for unit in moving if unit.name != but.name)


def _elsewhere(turn: Turn, pool: int) -> tuple[bool, bool]:
    """Return whether this pool has a free place in a job that lasts, and whether a job of it waits in the queue.

    The result is the same for all jobs of the pool that are near their end, since none of them lasts.
    """
    groups = turn.config.groups
    there = lasting(turn, pool)
    live = (*turn.table.in_phase(*LIVE), *turn.state.standbys)
    taken = [unit.place for unit in live if unit.place is not None and unit.phase in LIVE]
    free = placement.place(groups.nodes, groups.per_node, there, taken, turn.nodes.unusable) is not None
    return free, any(one.alive and one.state == "PENDING" and one.pool == pool for one in turn.jobs)
