"""What is launched, where, and as what: a step of its own, or a warm standby that takes over."""

from __future__ import annotations

from dataclasses import replace

from ftslurm.config.schema import Config
from ftslurm.core.groups import placement, ranks, standby
from ftslurm.core.groups.exits import Outcome
from ftslurm.core.jobs import supply
from ftslurm.core.state.actions import Action, Launch
from ftslurm.core.state.model import Attempt, Phase, Place, Rank, RunState, StepId, Unit
from ftslurm.core.state.units import independent, places, pool_of, swap, tasks_of
from ftslurm.protocol import records

FINISH_TOGETHER_S = 2.0  # groups finish in lockstep; one that has not even joined this long after the first never will
MOST_FENCED = 20  # earlier attempts that a launch makes sure of


def over_from(state: RunState, config: Config) -> float | None:
    """From when on a group that has not joined could only start a new history; None: no group has finished yet."""
    if independent(config):
        return None
    finished = [u.exits[-1].time for u in state.groups if u.phase is Phase.SUCCEEDED]
    return min(finished) + FINISH_TOGETHER_S if finished and state.lineage.step > 0 else None


def launch(state: RunState, now: float, config: Config) -> Outcome:
    """Launch every unit that is due and has a place."""
    actions: list[Action] = []
    if state.ending is not None or state.allocation is None:
        return state, actions
    for unit in state.units:
        if unit.phase is not Phase.PENDING or now < unit.due or unit.retired:
            continue
        if not unit.is_lighthouse and (state.lineage.lost is not None or over_from(state, config) is not None):
            continue  # there is nobody to heal from
        picked = standby.pick(state, unit, config) if unit.group is not None else None
        place = spot(state, unit, now, config) if picked is None else picked[1]
        if place is None and unit.group is not None and (place := _last_resort(state, unit, now, config)) is not None:
            state, more = _forgive(state, place)
            actions += more
        if place is None:
            if unit.group is not None and unit.waits_for is None:
                state = swap(state, replace(unit, waits_for=""))  # for what: see explain
        elif picked is not None:
            group, empty = standby.take(state, unit, picked[0], place, now)
            group = replace(
                group,
                due=now + config.health.start_timeout_s,
                current=replace(group.current, begin_after=_begin_after(group, config)),
            )
            state = swap(swap(state, group), empty)
            actions.append(_record(state, group, now, config))
        else:
            unit = _new_attempt(unit, place, now, config)
            state = swap(state, unit)
            actions += [_record(state, unit, now, config), Launch(unit.id, unit.group, place, fence(unit))]
    return state, actions


def fence(unit: Unit) -> tuple[StepId, ...]:
    """Earlier steps of a unit whose names do not tell that they are over: a standby's may live on as a group's."""
    own = [StepId(unit.name, e.attempt) if unit.is_standby else e.ran_as for e in unit.exits]
    return tuple(step for step in own if step not in (None, unit.id))[-MOST_FENCED:]  # a refused launch has our name


def spot(state: RunState, unit: Unit, now: float, config: Config) -> Place | None:
    """Where a unit can be launched now; None: nowhere. Jobs that end soon are used only where no other has a place."""
    assert state.allocation is not None
    if unit.is_lighthouse:
        return Place(state.allocation.nodes[:1])  # on the controller's node: what kills one kills both
    if unit.is_standby:
        return standby.home(state, unit, config)
    taken = places(state.groups, but=unit)
    groups, every = config.groups, state.allocations(pool_of(unit.group, config))
    lasting = {one.name for one in state.job_pool.jobs if supply.lasts(one, state, now, config)}
    stay = [allocation for allocation in every if allocation.own or allocation.name in lasting]
    for avoid in dict.fromkeys((state.nodes.avoid | state.nodes.shunned, state.nodes.avoid)):
        for there in (stay, every):
            place = placement.place(groups.nodes, groups.per_node, there, taken, avoid, unit.place)
            if place is not None:
                return place
    return None


def _last_resort(state: RunState, unit: Unit, now: float, config: Config) -> Place | None:
    """A place on nodes that are only suspected, because a group kept failing there: better than none."""
    suspected = frozenset(node for node, _ in state.nodes.suspected)
    return (
        spot(replace(state, nodes=replace(state.nodes, avoid=state.nodes.avoid - suspected)), unit, now, config)
        if suspected
        else None
    )


def _forgive(state: RunState, place: Place) -> Outcome:
    """Take suspected nodes back, because no other is free."""
    back = [node for node in dict.fromkeys(node for node, _ in state.nodes.suspected) if node in place.nodes]
    suspected = tuple(pair for pair in state.nodes.suspected if pair[0] not in back)
    restored: list[Action] = [records.NodeRestored(node=node, reason="no other node is free") for node in back]
    return replace(
        state, nodes=replace(state.nodes, avoid=state.nodes.avoid - set(back), suspected=suspected)
    ), restored


def _new_attempt(unit: Unit, place: Place, now: float, config: Config) -> Unit:
    return Unit(
        name=unit.name,
        group=unit.group,
        phase=Phase.STARTING,
        attempt=unit.attempt + 1,
        place=place,
        reason=unit.reason,
        due=now + config.health.start_timeout_s,
        marks=replace(unit.marks, launched=now),
        pulses=(None,) * tasks_of(unit, config),
        exits=unit.exits,
        current=Attempt(begin_after=_begin_after(unit, config), hosts=(None,) * tasks_of(unit, config)),
    )


def _record(state: RunState, unit: Unit, now: float, config: Config) -> records.StepLaunched:
    assert unit.place is not None
    hosts = [str(host) for host in unit.current.hosts]
    if unit.current.ran_as is not None:
        table = ranks.table(hosts)
    else:
        table = ranks.expected(unit.place, 1 if unit.is_lighthouse else config.groups.workers)
    standby_step = None if unit.current.ran_as is None else str(unit.current.ran_as)
    own = state.allocation.name if state.allocation else None
    noticed = unit.marks.noticed
    return records.StepLaunched(
        unit=unit.name,
        group=unit.group,
        attempt=unit.attempt,
        nodes=unit.place.nodes,
        slot=unit.place.slot,
        allocation=unit.place.allocation or own,
        ranks=tuple(rank_row(row) for row in table),
        reason=unit.reason,
        standby=standby_step,
        down_s=None if noticed is None else round(now - noticed, 3),
    )


def rank_row(rank: Rank) -> records.RankRow:
    """One row of a rank table as the journal writes it."""
    return {"rank": rank.rank, "node": rank.node, "local_rank": rank.local_rank, "node_rank": rank.node_rank}


def explain(state: RunState, now: float, config: Config) -> Outcome:
    """Say of the groups for which nothing is free what they wait for, once a job has been asked for; others go on."""
    actions: list[Action] = []
    if state.ending is not None or state.lineage.lost is not None or over_from(state, config) is not None:
        return state, actions
    for unit in state.groups:
        if unit.phase is Phase.PENDING and unit.waits_for is not None and now >= unit.due and not unit.retired:
            state, more = _wait(state, unit, config)
            actions += more
    return state, actions


def _wait(state: RunState, unit: Unit, config: Config) -> Outcome:
    lost = ", ".join(sorted(state.nodes.avoid))
    reason = f"a free node: {lost} left out" if lost else "a free node"
    reason = supply.waits_for(state, unit, config) or reason
    if unit.waits_for == reason:
        return state, []
    coming = supply.comes(state, unit, config)
    waits = records.GroupWaits(group=unit.group_id, reason=reason, allocation=coming.name if coming else None)
    return swap(state, replace(unit, waits_for=reason)), [waits]


def _begin_after(unit: Unit, config: Config) -> float:
    """When the script of the next attempt may start: not before the Lighthouse has forgotten the one that died.

    A group that comes back quickly makes its manager, which sends heartbeats, and is then busy building its model. If
    the dead attempt has not expired by then, the survivors' quorum goes on to wait for the newcomer, up to
    join_timeout_ms (measured: survivors stalled 1.9 s instead of 1.0 s, which was until the newcomer's first step).
    """
    if unit.marks.noticed is None or unit.group is None or config.lighthouse.kind != "torchft":
        return 0.0  # ours is told at once, and does not let survivors wait for a newcomer
    lighthouse = config.lighthouse
    return unit.marks.noticed + (lighthouse.heartbeat_timeout_ms + 2 * lighthouse.quorum_tick_ms) / 1000 + 0.05
