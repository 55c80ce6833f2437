"""Move groups out of Slurm jobs that are about to end: one by one while there is time, else at once."""

from __future__ import annotations

from ftslurm.config.schema import Config
from ftslurm.core.groups import placement
from ftslurm.core.jobs.queue import TOLD_S, Outcome, leaves, living, update
from ftslurm.core.jobs.supply import SAVES_S, SPARE_S, handover_at, lasts, may_ask, uses_jobs
from ftslurm.core.lineage import rollover
from ftslurm.core.state.actions import Action
from ftslurm.core.state.model import LIVE, Cause, Job, Phase, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.transitions import stop_politely
from ftslurm.core.state.units import places, pool_of, swap
from ftslurm.core.state.values import replace


def vacate(state: RunState, now: float, config: Config) -> Outcome:
    """Stop the units in jobs that end with SIGTERM first, and choose the group that moves next while there is time."""
    actions: list[Action] = []
    if state.ending is not None or not uses_jobs(config):
        return state, actions
    for one in state.job_pool.jobs:
        cause = one.leaving
        state, must = _must(state, one, now, config)
        if one.usable and (must or _moves(state, one, now, config)):
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
    """Whether a job's time is over (cluster.signal_s before its limit).

    The last group that holds the training's state stays longer: others may be on their way back. It goes when there is
    just time to save a checkpoint, and to save it. One that is being adopted stays until it can be told to end.
    """
    if one.ends is None or now < one.ends - config.cluster.signal_s or not one.usable:
        return state, False
    end = one.ends - config.stop.grace_s - SPARE_S
    if now < end and any(u.current.adoption is not None for u in living(state, one.name)):
        return state, False
    there = {None, *(o.name for o in state.job_pool.jobs if o.name != one.name and o.usable)}
    others = (u.place.allocation in there for u in state.groups if u.joined and u.place is not None)
    if any(others) or not any(u.joined for u in living(state, one.name)):
        return state, True
    if now < end - SAVES_S:
        return state, False
    if now < end and (state.lineage.saving is None or state.lineage.saving.until < now):
        return rollover.ask(state, now, end - now), False
    return state, rollover.answered(state, now)


def _bring_down(state: RunState, unit: Unit, cause: Cause | None, now: float, config: Config) -> Outcome:
    if unit.phase is not Phase.STOPPING:
        unit, actions = stop_politely(unit, cause, config.stop.grace_s, now)
        return swap(state, unit), actions
    if unit.current.intent is None:
        state = swap(state, replace(unit, current=replace(unit.current, intent=cause)))
    return state, []


def _moves(state: RunState, one: Job, now: float, config: Config) -> bool:
    """Whether the group of a job moves to another job before it must.

    One at a time, while others hold the training's state and step on: the training never stops. As soon as there is
    another place; halfway to the end also if there is none, because the node it leaves may be what its successor
    waits for.
    """
    limit = handover_at(one, config)
    if limit is None or one.ends is None or now < limit:
        return False
    unit = next(living(state, one.name), None)
    if unit is None or unit.phase is Phase.STOPPING or unit.current.adoption is not None:
        return False
    if unit.is_standby:
        return True
    others = [u for u in state.groups if u.name != unit.name and u.phase not in (Phase.SUCCEEDED, Phase.FAILED)]
    if not any(u.joined for u in others) or any(not _settled(u) for u in others):
        return False
    if not may_ask(config):  # it is the job itself that comes back, with a new time limit: mostly at once
        return config.cluster.requeue and (all(u.joined or u.retired for u in others) or now >= (limit + one.ends) / 2)
    pending = any(o.alive and o.state == "PENDING" and o.pool == one.pool for o in state.job_pool.jobs)
    return _elsewhere(state, unit, one, now, config) or (pending and now >= (limit + one.ends) / 2)


def _settled(unit: Unit) -> bool:
    """Whether a group takes part in the training, or has no nodes for now."""
    return unit.joined or unit.retired or (unit.phase is Phase.PENDING and unit.waits_for is not None)


def _elsewhere(state: RunState, unit: Unit, one: Job, now: float, config: Config) -> bool:
    lasting = {o.name for o in state.job_pool.jobs if o.name != one.name and lasts(o, state, now, config)}
    there = [a for a in state.allocations(pool_of(unit.group, config)) if a.own or a.name in lasting]
    taken = places((*state.groups, *state.standbys), but=unit, phases=LIVE)
    return placement.place(config.groups.nodes, config.groups.per_node, there, taken, state.nodes.avoid) is not None
