"""Launch the units that are due, each at a free place, with a step of its own or with a warm standby."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ftslurm.config.schema import Config, standby_each
from ftslurm.core.groups import finishing, ranks, standby
from ftslurm.core.groups.placement import FreePlaces
from ftslurm.core.groups.reports import since
from ftslurm.core.groups.restart import LAUNCH_AGAIN_S, refused_wait_s
from ftslurm.core.jobs import supply
from ftslurm.core.state import transitions
from ftslurm.core.state.actions import Launch
from ftslurm.core.state.model import LIVE, Attempt, Nodes, Out, Phase, Place, StepId, Trait, Unit
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.units import pool_of, tasks_of
from ftslurm.protocol import records
from ftslurm.protocol.causes import Cause

STORE_WITHIN_S = 30.0  # of a standby, which has imported everything: measured 0.03 s, and 1 s on a busy machine
MOST_FENCED = 20  # earlier attempts whose end a launch ensures
MOST_NAMED = 3  # nodes that a group without a place cannot have
RETRIES_S = 30.0  # the longest wait between two launches of units that Slurm refuses


def over_from(turn: Turn) -> float | None:
    """Return from when on an unjoined group could only start a new history; None: one trains, or none has finished."""
    if not _is_ending(turn) or turn.table.names(Trait.ADOPTING):  # one of these may train
        return None
    return max(unit.exits[-1].time for unit in turn.table.in_phase(Phase.SUCCEEDED)) + finishing.TOGETHER_S


def _is_ending(turn: Turn) -> bool:
    """Return whether a group has finished and none is known to train: a new attempt has none to heal from."""
    if turn.independent or turn.lineage.step == 0:
        return False
    return bool(turn.table.names(Phase.SUCCEEDED)) and not finishing.train(turn)


def launch(turn: Turn) -> None:
    """Launch every unit that is due and has a place."""
    if not turn.goes_on or not turn.state.allocation.name:
        return
    due = _due(turn)
    if turn.nodes.unanswered:
        due = [unit for unit in due if unit.group is None or unit.marks.noticed is None]
    if turn.lineage.lost is not None or _is_ending(turn):
        due = [unit for unit in due if unit.is_lighthouse]
    finder = PlaceFinder(turn)
    for unit in due:
        picked = standby.pick(turn, unit) if unit.group is not None else None
        if picked is None and not _may_try(turn, unit):
            continue
        place = finder.find(unit) if picked is None else picked[1]
        if place is None:
            if unit.group is not None and unit.waits_for is None:
                turn.change(unit, waits_for="")  # explain fills in the reason
            continue
        if unit.group is not None:
            _forgive(turn, place)
        finder.remove(place, unit)
        turn.set(restarts=turn.state.restarts + transitions.is_restart(unit))
        if picked is not None:
            _take_over(turn, unit, picked[0], place)
        else:
            _launch_at(turn, unit, place)


def _may_try(turn: Turn, unit: Unit) -> bool:
    """Return whether a unit may be launched now: those that Slurm has refused are tried one after the other.

    A standby gives way to groups that Slurm refuses: its srun would take what they lack.
    """
    if unit.is_standby and any(map(_refused, turn.table.in_phase(Phase.PENDING, Phase.STARTING))):
        return turn.due(turn.now + LAUNCH_AGAIN_S, unit.name)  # look again then
    wait_s = refused_wait_s(turn.state.retries, RETRIES_S)
    return not (turn.state.retries and _refused(unit)) or turn.due(turn.state.retried + wait_s, unit.name)


def _refused(unit: Unit) -> bool:
    """Return whether the last launch came to nothing: Slurm has refused it, or srun had too few ports for it."""
    return bool(unit.exits) and unit.exits[-1].cause is Cause.START_FAILED


def _due(turn: Turn) -> list[Unit]:
    """Return the units that may be launched now: those that have become due, and those that wait for a place."""
    if not turn.awake:
        return []  # nothing has changed that could free a place
    waiting = turn.having(Trait.WAITING)
    if not standby_each(turn.config):  # else standby.follow has noticed those that have a place now
        waiting += turn.state.standbys
    units = turn.table.named({unit.name for unit in (*turn.attended(), *waiting)})
    pending = (unit for unit in units if unit.phase is Phase.PENDING and not unit.retired)
    return [unit for unit in pending if turn.due(unit.due, unit.name)]


def _take_over(turn: Turn, unit: Unit, warm: Unit, place: Place) -> None:
    """Turn a warm standby into a group's next attempt."""
    due = turn.now + turn.config.health.start_timeout_s
    unit = turn.put(transitions.take_standby(unit, warm, place, due, turn.now))
    turn.put(standby.refill(warm, unit.group, turn.now))
    turn.do(_record(turn, unit))


def _launch_at(turn: Turn, unit: Unit, place: Place) -> None:
    """Launch a unit's next attempt with a step of its own."""
    due = turn.now + turn.config.health.start_timeout_s
    check = _to_check(turn, unit, place)
    if turn.state.retries and _refused(unit):
        turn.set(retries=turn.state.retries + 1, retried=turn.now)
    attempt = Attempt(hosts=(None,) * tasks_of(unit, turn.config), checking=frozenset(check))
    unit = turn.put(transitions.launch(unit, place, due, turn.now, attempt))
    turn.do(_record(turn, unit), Launch(unit.id, unit.group, place, fence(unit), check))


def _to_check(turn: Turn, unit: Unit, place: Place) -> tuple[str, ...]:
    """Return the nodes on which a step begins with health.preflight: those that have not passed.

    A group checks its share of the GPUs. A standby sees those of all groups, and checks none that others use.
    """
    if not turn.config.health.preflight or unit.is_lighthouse:
        return ()
    near = turn.table.near(*place.nodes) if unit.is_standby else ()
    if any(one.phase in LIVE and one.name != unit.name and not one.is_lighthouse for one in near):
        return ()
    return tuple(node for node in place.nodes if node not in turn.nodes.passed)


def store_within_s(unit: Unit, config: Config) -> float:
    """Return how long a step may take from its assignment until its store is up.

    A standby has nothing left to import: without a store it is stopped or has lost its node.
    """
    limit_s = config.health.start_timeout_s
    return limit_s if unit.current.ran_as is None else min(limit_s, STORE_WITHIN_S)


def fence(unit: Unit) -> tuple[StepId, ...]:
    """Return a unit's earlier steps with a standby's name: the name does not show that the step is over."""
    own = [StepId(unit.name, e.attempt) if unit.is_standby else e.ran_as for e in unit.exits]
    return tuple(step for step in own if step not in (None, unit.id))[-MOST_FENCED:]  # a refused launch has its name


class PlaceFinder:
    """Finds places for the units that one decision launches. Mutable: it lives as long as the decision."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._free: dict[int, list[FreePlaces]] = {}  # by pool; empty: nothing is free

    def find(self, unit: Unit) -> Place | None:
        """Return the place where a unit can be launched now; None: there is none."""
        config = self._turn.config
        if unit.is_lighthouse:
            return Place(lighthouse_node(self._turn))
        if unit.is_standby:
            return standby.home(self._turn, unit)
        pool = pool_of(unit.group, config)
        if pool not in self._free:
            self._free[pool] = self._free_places(pool)
        found = next((place for free in self._free[pool] if (place := free.find(unit.place)) is not None), None)
        if found is None:
            self._free[pool] = []
        return found

    def remove(self, place: Place, unit: Unit) -> None:
        """Mark a place as taken by a unit."""
        for free in (one for every in self._free.values() for one in every if unit.group is not None):
            free.remove(place)

    def _free_places(self, pool: int) -> list[FreePlaces]:
        """Return the free places, the best first: not on nodes that are drained, not in jobs that end soon.

        The last resort are nodes that are only left out because a group kept failing there.
        """
        state, groups = self._turn.state, self._turn.config.groups
        every, stay = state.allocations(pool), supply.lasting(self._turn, pool)
        living = [unit.place for unit in state.table.in_phase(*LIVE)]
        never = state.nodes.unusable | supply.given_back(self._turn)
        blamed = state.nodes.those(lambda node: node.out is Out.BLAMED and not (node.drained or node.shunned))
        kinds = dict.fromkeys(
            (avoid, there)
            for out in (never, never - blamed)
            for avoid in (out | state.nodes.last, out)
            for there in (stay, every)
        )
        return [
            FreePlaces(groups.nodes, groups.per_node, there, living, avoid, state.nodes.leaf_of)
            for avoid, there in kinds
        ]


def lighthouse_node(turn: Turn) -> tuple[str, ...]:
    """Return the node of the Lighthouse: the controller's, as both fail together, unless it is lost or drained."""
    known = turn.nodes
    away = known.out(Out.LOST, Out.CUT)
    return tuple(sorted(turn.state.allocation.nodes, key=lambda node: (node in away, known.of(node).drained)))[:1]


def has_room(turn: Turn, pool: int, beside: Iterable[Unit], avoid: str = "") -> bool:
    """Return whether there is a free place for a group beside these units, not on a node, where steps last."""
    groups, taken = turn.config.groups, [unit.place for unit in beside]
    never = turn.nodes.unusable | {avoid}
    free = FreePlaces(groups.nodes, groups.per_node, supply.lasting(turn, pool), taken, never)
    return free.find() is not None


def _forgive(turn: Turn, place: Place) -> None:
    """Use nodes again that are suspected, or that other runs have found broken, because no other is free."""
    for name in place.nodes:
        if turn.nodes.of(name).out or turn.nodes.of(name).noted:
            turn.node(name, noted=False)
            turn.take_back(name, "no other node is free")


def _record(turn: Turn, unit: Unit) -> records.StepLaunched:
    ran_as, workers = unit.current.ran_as, 1 if unit.is_lighthouse else turn.config.groups.workers
    return records.StepLaunched(
        **unit.names,
        nodes=unit.place.nodes,
        slot=unit.place.slot,
        allocation=unit.place.allocation or turn.state.allocation.name,
        hosts=ranks.expected(unit.place, workers) if ran_as is None else tuple(map(str, unit.current.hosts)),
        reason=unit.reason,
        standby=None if ran_as is None else str(ran_as),
        down_s=since(unit.marks.died, turn.now),
    )


def explain(turn: Turn) -> None:
    """Record what the groups without a place wait for, once a job has been requested; the others continue."""
    if not turn.awake or not turn.goes_on or turn.lineage.lost is not None or over_from(turn) is not None:
        return
    free = a_free_node(turn.nodes)
    coming = dict[int, Iterator[supply.Awaited]]()  # by pool
    for unit in turn.having(Trait.WAITING):
        if unit.phase is not Phase.PENDING or unit.retired or not turn.due(unit.due, unit.name):
            continue
        pool = pool_of(unit.group, turn.config)
        if pool not in coming:
            coming[pool] = supply.coming(turn, pool)
        reason, job = next(coming[pool])
        reason = reason or free
        if unit.waits_for != reason:
            turn.do(records.GroupWaits(group=unit.group_id, reason=reason, allocation=job))
            turn.change(unit, waits_for=reason)


def a_free_node(nodes: Nodes) -> str:
    """Say what groups without a place wait for, with the nodes that they cannot have.

    Many have no names, and no number: each change of this text is a line for each group that waits.
    """
    kinds = (
        ("left out", nodes.out(Out.LOST, Out.BLAMED, Out.CUT, Out.GONE)),
        ("left out by health.preflight", nodes.out(Out.UNFIT)),
        ("drained", nodes.drained - nodes.out()),
    )
    out = "; ".join(f"{_names(some)} {how}" for how, some in kinds if some)
    return f"a free node: {out}" if out else "a free node"


def _names(nodes: Collection[str]) -> str:
    return ", ".join(sorted(nodes)) if len(nodes) <= MOST_NAMED else f"more than {MOST_NAMED} nodes"
