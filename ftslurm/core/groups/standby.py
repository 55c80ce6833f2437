"""Choose the nodes on which a warm standby waits, and the standby that becomes a group's next attempt."""

from __future__ import annotations

from ftslurm.config.schema import Config
from ftslurm.core.groups import placement
from ftslurm.core.jobs import queue
from ftslurm.core.state.model import LIVE, Phase, Place, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.units import places, pool_of

REFILL_S = 1.0  # delay of the next launch after a standby was taken: its imports would slow the joining group


def home(state: RunState, unit: Unit, config: Config) -> Place | None:
    """Return the place of a standby: on spare nodes, else on a free share of a node, else beside a group."""
    assert state.allocation is not None
    groups = config.groups
    taken = places(state.groups, but=unit, phases=LIVE | {Phase.PENDING})
    others = places(state.standbys, but=unit)
    if config.cluster.mode == "array":  # it has a job of its own, or waits for one
        return _place(state, 1, [*taken, *others], state.nodes.closed, config)
    used = frozenset(node for place in taken for node in place.nodes)
    spot = _place(state, 1, others, state.nodes.closed | used, config)
    if spot is None:
        spot = _place(state, groups.per_node, [*taken, *others], state.nodes.closed, config)
    if spot is None:
        beside = [place for place in taken if state.nodes.closed.isdisjoint(place.nodes)]
        return min(reversed(beside), key=others.count, default=None)  # the loss of the first node ends the run anyway
    return spot


def _place(state: RunState, per_node: int, taken: list[Place], avoid: frozenset[str], config: Config) -> Place | None:
    leaf_of = state.nodes.leaf_of
    return placement.place(config.groups.nodes, per_node, state.allocations(0), taken, avoid, leaf_of=leaf_of)


def pick(state: RunState, unit: Unit, config: Config) -> tuple[Unit, Place] | None:
    """Return the standby that becomes the next attempt of this group, and its place then; None: there is none.

    It must be ready, on sound nodes that have not just fallen silent, and on a share of them that no living group has.
    The last place of the group comes first, then nodes without any other group.
    """
    avoid = state.nodes.unusable | {look.node for look in state.nodes.looks}
    found: list[tuple[tuple[bool, int, str], Unit, Place]] = []
    for standby in state.standbys:
        place = standby.place
        if standby.phase is not Phase.RUNNING or place is None or not avoid.isdisjoint(place.nodes):
            continue
        if not _usable(state, place.allocation, pool_of(unit.group, config)):
            continue
        near = {other.name: other for node in place.nodes for other in state.table.near(node)}.values()
        living = [u.place for u in near if u.group is not None and u.phase in LIVE and u.place and u.name != unit.name]
        used = {spot.slot for spot in living if spot.allocation == place.allocation}
        slots = [slot for slot in range(config.groups.per_node) if slot not in used]
        if config.standby.cuda:
            slots = [slot for slot in slots if slot == place.slot]  # its CUDA context is on that share's GPUs
        if slots:
            same = unit.place is not None and (unit.place.allocation, unit.place.nodes) == (
                place.allocation,
                place.nodes,
            )
            old = unit.place if same else None
            slot = old.slot if old is not None and old.slot in slots else slots[0]
            spot = Place(place.nodes, slot, place.allocation)
            found.append(((old is None, len(living), standby.name), standby, spot))
    return min(found, key=lambda one: one[0])[1:] if found else None


def _usable(state: RunState, allocation: str | None, pool: int) -> bool:
    """Return whether a step may be started in this allocation for a group of this pool."""
    job = None if allocation is None else queue.job(state, allocation)
    return allocation is None or (job is not None and job.usable and job.pool == pool)


def refill(standby: Unit, group: int | None, now: float) -> Unit:
    """Return the unit of a standby that a group has taken, to be launched again after REFILL_S."""
    reason = f"group {group} has taken the one before"
    due = now + REFILL_S
    return Unit(standby.name, None, attempt=standby.attempt, due=due, reason=reason, exits=standby.exits)
