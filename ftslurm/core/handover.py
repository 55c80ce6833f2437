"""Move groups out of Slurm jobs that are about to end: one at a time while there is time, else at once."""

from __future__ import annotations

from ftslurm.config.schema import Config
from ftslurm.core.groups import placement
from ftslurm.core.jobs import queue
from ftslurm.core.jobs.queue import TOLD_S, Outcome, leaves, living, update
from ftslurm.core.jobs.supply import SAVES_S, SPARE_S, handover_at, lasting, may_ask, uses_jobs
from ftslurm.core.lineage import rollover
from ftslurm.core.state.actions import Action
from ftslurm.core.state.model import LIVE, Job, Phase, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.transitions import stop_politely
from ftslurm.core.state.unit_table import Trait, UnitTable
from ftslurm.core.state.units import swap
from ftslurm.core.state.values import replace
from ftslurm.protocol.causes import Cause


def vacate(state: RunState, now: float, config: Config) -> Outcome:
    """Stop the units in jobs that are about to end, and move further groups one at a time while there is time."""
    actions: list[Action] = []
    if state.ending is not None or not uses_jobs(config) or not state.jobs_concerned(now):
        return state, actions
    elsewhere: dict[int, tuple[bool, bool]] = {}
    for one in state.job_pool.jobs:
        cause = one.leaving
        state, must = _must(state, one, now, config)
        if one.usable and (must or _moves(state, one, elsewhere, now, config)):
            cause = Cause.TIME_LIMIT
            state = update(state, one.name, leaving=cause)
            actions.append(leaves(one, cause, "its time limit is near"))
        for unit in living(state, one.name):
            told = unit.current.told is not None and now >= unit.current.told + TOLD_S
            if cause is not None or told:
                state, more = _bring_down(state, unit, cause, now, config)
                actions += more
    return state, actions


def _must(state: RunState, one: Job, now: float, config: Config) -> tuple[RunState, bool]:
    """Return the state, and whether the units of a job must leave it now (cluster.signal_s before its limit).

    The last group that holds the training's state stays longer: others may be about to return. It leaves when there
    is just enough time to save a checkpoint, after saving it. A step that is being adopted stays until it can be
    stopped.
    """
    if one.ends is None or now < one.ends - config.cluster.signal_s or not one.usable:
        return state, False
    end = one.ends - config.stop.grace_s - SPARE_S
    if now < end and any(u.current.adoption is not None for u in living(state, one.name)):
        return state, False
    if _joined_elsewhere(state, one) or not any(u.joined for u in living(state, one.name)):
        return state, True
    if now < end - SAVES_S:
        return state, False
    if now < end and (state.lineage.saving is None or state.lineage.saving.until < now):
        return rollover.ask(state, now, end - now), False
    return state, rollover.answered(state, now)


def _joined_elsewhere(state: RunState, one: Job) -> bool:
    """Return whether a group in the controller's own job or in another usable job holds the training's state."""
    for name in state.table.having_trait(Trait.JOINED):
        place = state.table.by_name[name].place
        if place is None or place.allocation == one.name:
            continue
        job = queue.job(state, place.allocation)
        if place.allocation is None or (job is not None and job.usable):
            return True
    return False


def _bring_down(state: RunState, unit: Unit, cause: Cause | None, now: float, config: Config) -> Outcome:
    if unit.phase is not Phase.STOPPING:
        unit, actions = stop_politely(unit, cause, config.stop.grace_s, now)
        return swap(state, unit), actions
    if unit.current.intent is None:
        state = swap(state, replace(unit, current=replace(unit.current, intent=cause)))
    return state, []


def _moves(state: RunState, one: Job, elsewhere: dict[int, tuple[bool, bool]], now: float, config: Config) -> bool:
    """Return whether the group of a job moves to another job before it must.

    Groups move one at a time while others hold the training's state and commit steps: the training never stops. A group
    moves as soon as there is another place; from halfway between the handover time and the end also if there is none,
    because its next attempt may wait for the node that it leaves.

    Args:
        state: the state.
        one: a job in which steps may be started.
        elsewhere: by pool, the results of _elsewhere in this decision.
        now: the time.
        config: the settings.
    """
    limit = handover_at(one, config)
    if limit is None or one.ends is None or now < limit:
        return False
    unit = next(living(state, one.name), None)
    if unit is None or unit.phase is Phase.STOPPING or unit.current.adoption is not None:
        return False
    if unit.is_standby:
        return True
    table, halfway = state.table, now >= (limit + one.ends) / 2
    if len(table.having_trait(Trait.JOINED)) == unit.joined or not others_are_settled(table, unit):
        return False
    if not may_ask(config):  # the job itself is requeued with a new time limit, and mostly starts at once
        waiting = (u for u in table.named(table.having_trait(Trait.WAITING)) if u.name != unit.name)
        waits = any(u.phase is Phase.PENDING and not u.retired for u in waiting)
        return config.cluster.requeue and (halfway or not waits)
    if one.pool not in elsewhere:
        elsewhere[one.pool] = _elsewhere(state, one.pool, now, config)
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


def _elsewhere(state: RunState, pool: int, now: float, config: Config) -> tuple[bool, bool]:
    """Return whether this pool has a free place in a job that lasts, and whether a job of it waits in the queue.

    The result is the same for all jobs of the pool that are near their end, since none of them lasts.
    """
    there = lasting(state, pool, now, config)
    live = (*state.table.in_phase(*LIVE), *state.standbys)
    taken = [unit.place for unit in live if unit.place is not None and unit.phase in LIVE]
    free = placement.place(config.groups.nodes, config.groups.per_node, there, taken, state.nodes.closed) is not None
    return free, any(one.alive and one.state == "PENDING" and one.pool == pool for one in state.job_pool.jobs)
