"""Where does a warm standby wait, and which of them becomes a group's next attempt?"""

from __future__ import annotations

from dataclasses import replace

from ftslurm.config.schema import Config
from ftslurm.core.groups import placement
from ftslurm.core.state.model import LIVE, Phase, Place, RunState, Unit
from ftslurm.core.state.units import places, pool_of

REFILL_S = 1.0  # a new one starts this long after the last was taken: its imports would slow down the one that joins


def home(state: RunState, unit: Unit, config: Config) -> Place | None:
    """Where a standby is to wait: on spare nodes, else on a free share of a node, else beside a group."""
    assert state.allocation is not None
    groups = config.groups
    taken = places(state.groups, but=unit, phases=LIVE | {Phase.PENDING})
    others = places(state.standbys, but=unit)
    if config.cluster.mode == "array":  # it has a job of its own, or waits for one
        return placement.place(groups.nodes, 1, state.allocations(0), [*taken, *others], state.nodes.avoid)
    used = frozenset(node for place in taken for node in place.nodes)
    spot = placement.place(groups.nodes, 1, state.allocations(0), others, state.nodes.avoid | used)
    if spot is None:
        spot = placement.place(
            groups.nodes, groups.per_node, state.allocations(0), [*taken, *others], state.nodes.avoid
        )
    if spot is None:
        beside = [place for place in taken if state.nodes.avoid.isdisjoint(place.nodes)]
        return min(reversed(beside), key=others.count, default=None)  # the loss of the first node ends the run anyway
    return spot


def pick(state: RunState, unit: Unit, config: Config) -> tuple[Unit, Place] | None:
    """The standby that becomes the next attempt of this group, and the place it then has; None: there is none.

    It must be ready, on sound nodes that have not just fallen silent, and on a share of them that no living group has.
    The place where the group was comes first, then nodes without any other group.
    """
    avoid = state.nodes.avoid | {look.node for look in state.nodes.looks}
    found: list[tuple[tuple[bool, int, str], Unit, Place]] = []
    living = places(state.groups, but=unit)
    used = {(place.allocation, node, place.slot) for place in living for node in place.nodes}
    usable = {
        None,
        *(job.name for job in state.job_pool.jobs if job.usable and job.pool == pool_of(unit.group, config)),
    }
    for standby in state.standbys:
        nodes = standby.place.nodes if standby.place is not None else ()
        if standby.phase is not Phase.RUNNING or standby.place is None or not avoid.isdisjoint(nodes):
            continue
        where = standby.place.allocation
        if where not in usable:
            continue
        slots = [s for s in range(config.groups.per_node) if all((where, node, s) not in used for node in nodes)]
        if config.standby.cuda:
            slots = [s for s in slots if s == standby.place.slot]  # its CUDA context is on that share's GPUs
        if slots:
            same = unit.place is not None and (unit.place.allocation, unit.place.nodes) == (where, nodes)
            old = unit.place if same else None
            slot = old.slot if old is not None and old.slot in slots else slots[0]
            crowd = sum(not set(nodes).isdisjoint(place.nodes) for place in living)
            found.append(((old is None, crowd, standby.name), standby, Place(nodes, slot, where)))
    return min(found, key=lambda one: one[0])[1:] if found else None


def take(state: RunState, unit: Unit, standby: Unit, place: Place, now: float) -> tuple[Unit, Unit]:
    """The group, going on as the standby's step, and the standby's unit, to be launched anew."""
    group = replace(
        standby,
        name=unit.name,
        group=unit.group,
        phase=Phase.STARTING,
        attempt=unit.attempt + 1,
        place=place,
        reason=unit.reason,
        marks=replace(unit.marks, launched=now, hello=now, ready=now),
        exits=unit.exits,
        current=replace(standby.current, ran_as=standby.id),
    )
    reason = f"group {unit.group} has taken the one before"
    due = now + REFILL_S
    return group, Unit(standby.name, None, attempt=standby.attempt, due=due, reason=reason, exits=standby.exits)
