"""Choose the nodes on which a warm standby waits, and the standby that becomes a group's next attempt.

standby.count=N     N standbys for any group, from the start: on spare nodes, else beside a group
standby.count=each  standby-007 waits beside group 7, for that group only, from the group's first committed step on: its
                    imports slow no group's start. When it is taken, the next is launched once the group is back.
standby.count=auto  the same, for the groups on whose nodes standbys leave half of the free memory
"""

from __future__ import annotations

from ftslurm.config.schema import AUTO, Config, most_groups, standby_each
from ftslurm.core.groups.placement import FreePlaces
from ftslurm.core.state.model import LIVE, OVER, RUNS, Phase, Place, Unit, replace
from ftslurm.core.state.transitions import stop
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.unit_names import group_unit, standby_number, standby_unit
from ftslurm.core.state.units import pool_of
from ftslurm.protocol import messages, records
from ftslurm.protocol.causes import Cause

WARM_RATIO = 1.5  # private memory of a warm process to that of a worker with torch imported (measured: 221 and 148 MB)
SPARE_SHARE = 0.5  # the standbys of a node take at most this share of the memory that is left there (auto)
REFILL_S = 1.0  # delay of the next launch after a standby was taken: its imports would slow the joining group


def home(turn: Turn, unit: Unit) -> Place | None:
    """Return the place of a standby: on spare nodes, else on a free share of a node, else beside a group."""
    if standby_each(turn.config):
        return _beside(turn, standby_number(unit.name))
    taken = [group.place for group in turn.table.in_phase(*LIVE, Phase.PENDING) if group.place.nodes]
    others = [standby.place for standby in turn.state.standbys if standby.phase in LIVE]
    if turn.config.job_per_group:  # it has a job of its own, or waits for one
        return _place(turn, 1, [*taken, *others])
    used = frozenset(node for place in taken for node in place.nodes)
    spot = _place(turn, 1, others, used) or _place(turn, turn.config.groups.per_node, [*taken, *others])
    beside = [place for place in taken if _is_usable(turn, place)]
    return spot or min(reversed(beside), key=others.count, default=None)  # the run ends with its first node anyway


def _place(turn: Turn, per_node: int, taken: list[Place], avoid: frozenset[str] = frozenset()) -> Place | None:
    there, never = turn.state.allocations(0), turn.nodes.unusable | avoid
    return FreePlaces(turn.config.groups.nodes, per_node, there, taken, never, turn.nodes.leaf_of).find()


def pick(turn: Turn, unit: Unit) -> tuple[Unit, Place] | None:
    """Return the standby that becomes the next attempt of this group, and its place then; None: there is none.

    It must be ready and not stopped, on sound nodes that have not just fallen silent, and on a share of them that no
    living group has. The last place of the group comes first, then nodes without any other group.
    """
    nodes, config, old = turn.nodes, turn.config, unit.place
    own = turn.table.named([standby_unit(unit.group_id)]) if standby_each(config) else turn.state.standbys
    ready = [standby for standby in own if standby.phase is Phase.RUNNING and not standby.is_stopped]
    if not ready:
        return None
    avoid = nodes.unusable | nodes.last | nodes.looks.keys()
    jobs = {None, *(one.name for one in turn.state.allocations(pool_of(unit.group, config)))}
    found: list[tuple[tuple[bool, int, str], Unit, Place]] = []
    for standby in ready:
        place = standby.place
        if not avoid.isdisjoint(place.nodes):
            continue
        near = turn.table.near(*place.nodes)
        living = [u.place for u in near if u.group is not None and u.phase in LIVE and u.name != unit.name]
        used = {spot.slot for spot in living if spot.allocation == place.allocation}
        slots = [slot for slot in range(config.groups.per_node) if slot not in used]
        if slots and place.allocation in jobs:
            moved = (old.allocation, old.nodes) != (place.allocation, place.nodes)
            slot = slots[0] if moved or old.slot not in slots else old.slot
            found.append(((moved, len(living), standby.name), standby, replace(place, slot=slot)))
    return min(found, key=lambda one: one[0])[1:] if found else None


def refill(standby: Unit, group: int | None, now: float) -> Unit:
    """Return the unit of a standby that a group has taken, to be launched again after REFILL_S."""
    reason = f"group {group} has taken the one before"
    due = now + REFILL_S
    return Unit(standby.name, None, attempt=standby.attempt, due=due, reason=reason, exits=standby.exits)


# --- one beside each group ------------------------------------------------------------------------------------------


def follow(turn: Turn) -> None:
    """Have one standby beside each group that trains; end those whose group has left the place or the run."""
    if not standby_each(turn.config) or not turn.goes_on:
        return
    for number in {standby_number(u.name) if u.is_standby else u.group for u in turn.attended()} - {None}:
        assert number is not None
        own = turn.table.by_name.get(standby_unit(number))
        beside = _beside(turn, number)
        if own is None:
            if beside is not None:
                due = turn.now + REFILL_S
                turn.put(Unit(standby_unit(number), None, due=due, reason="its group trains"))
        elif own.phase is Phase.PENDING and beside is not None:
            turn.wake(own.name)
        elif _is_astray(turn, own, number):
            stop(turn, own, Cause.CANCELLED)


def _beside(turn: Turn, number: int) -> Place | None:
    """Return the place of a group if its standby may wait there now.

    Groups in jobs that were asked for later have none: such a job is given back when its group leaves it.
    """
    group, config = turn.table.by_name.get(group_unit(number)), turn.config
    if group is None or group.retired or group.place.allocation is not None:
        return None
    trains = group.joined or (turn.independent and group.phase is Phase.RUNNING)
    roomy = config.standby.count != AUTO or len(group.current.roomy) == config.groups.nodes
    return group.place if trains and roomy and _is_usable(turn, group.place) else None


def _is_usable(turn: Turn, place: Place) -> bool:
    return turn.nodes.unusable.isdisjoint(place.nodes)


def _is_astray(turn: Turn, own: Unit, number: int) -> bool:
    """Return whether a standby's step is neither where its group is, nor where that wants to come back."""
    if own.phase not in RUNS or own.adopting:
        return False
    group = turn.table.by_name.get(group_unit(number))
    if group is None or group.retired or group.phase in OVER:
        return True
    return group.phase in RUNS and group.place != own.place


def told_room(turn: Turn, said: messages.Room, unit: Unit) -> None:
    """Record whether a node on which a group trains has memory to spare for a standby; say so once if it has not."""
    if turn.config.standby.count != AUTO or not standby_each(turn.config):
        return
    need = needs_mb(said.worker_mb, turn.config)
    if need <= said.available_mb * SPARE_SHARE:
        turn.attempt(unit, roomy=unit.current.roomy | {said.task})
        return
    if NO_ROOM in turn.state.warnings:
        return
    node = unit.node_of(said.task)
    reason = (
        f"{node} has {said.available_mb / 1024:.1f} GiB of memory left beside group {unit.group}, and warm processes "
        f"there would take {need / 1024:.1f} GiB, more than half: standby.count=each starts them all the same"
    )
    turn.set(warnings=turn.state.warnings | {NO_ROOM})
    turn.do(records.StandbyGivenUp(unit=standby_unit(unit.group_id), reason=reason))


NO_ROOM = "standby.count=auto: no memory to spare"


def needs_mb(worker_mb: int, config: Config) -> int:
    """Return the memory that the standbys of all groups on one node take."""
    groups = config.groups
    here = groups.nodes * most_groups(config) if config.local else groups.per_node
    return int(worker_mb * WARM_RATIO * groups.workers * here)
