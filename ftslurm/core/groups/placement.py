"""Choose the nodes on which a group runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from immutables import Map

from ftslurm.core.groups.verdict import kind
from ftslurm.core.state.model import NOWHERE, Allocation, Place, Unit
from ftslurm.protocol.causes import Blame

_NO_LEAVES: Map[str, str] = Map()


class FreePlaces:
    """The free places during one decision. Mutable: `remove` marks one as taken."""

    def __init__(
        self,
        nodes: int,
        per_node: int,
        allocations: Iterable[Allocation],
        taken: Iterable[Place],
        avoid: frozenset[str],
        leaf_of: Mapping[str, str] = _NO_LEAVES,
    ) -> None:
        """Find the free places.

        Args:
            nodes: nodes of a group, all different.
            per_node: slots of each node; the slot of a group is the same on all its nodes.
            taken: where groups run.
            avoid: nodes that are not used.
            leaf_of: the leaf switch or block of each node, as far as Slurm knows it.
        """
        used = {(spot.allocation, spot.slot, node) for spot in taken for node in spot.nodes}
        self._nodes, self._per_node, self._leaf_of = nodes, per_node, leaf_of
        self._order = {  # where each node stands in its allocation
            _key(allocation): {node: i for i, node in enumerate(_by_leaf(allocation.nodes, leaf_of))}
            for allocation in allocations
        }
        self._free = {
            (key, slot): {node: None for node in order if (key, slot, node) not in used and node not in avoid}
            for key, order in self._order.items()
            for slot in range(per_node)
        }
        self._with_room = dict.fromkeys(key for key in self._order if self._has_room(key))

    def find(self, prefer: Place = NOWHERE) -> Place | None:
        """Return a free place for one group, or None if it has to wait.

        The last place again if it is free and sound (its page cache is warm and its data may be there); else nodes of
        one leaf switch or block, if Slurm knows them and one has room, first one of the last place; else neighbours in
        Slurm's order, since that order follows the network on most clusters; else the nodes closest together.
        Earlier allocations, and in them earlier nodes, are filled first, so that spare nodes stay empty until they are
        needed. All nodes of a group are in one allocation, because a Slurm step is.

        Args:
            prefer: the group's last place.
        """
        free = self._free.get((prefer.allocation, prefer.slot), {})
        if len(prefer.nodes) == self._nodes and all(node in free for node in prefer.nodes):
            return prefer
        return next((spot for key in self._with_room if (spot := self._first(key, prefer)) is not None), None)

    def remove(self, place: Place) -> None:
        """Mark a place as taken by a group."""
        free = self._free.get((place.allocation, place.slot), {})
        for node in place.nodes:
            free.pop(node, None)
        if not self._has_room(place.allocation):
            self._with_room.pop(place.allocation, None)

    def _has_room(self, key: str | None) -> bool:
        return any(len(self._free.get((key, slot), ())) >= self._nodes for slot in range(self._per_node))

    def _first(self, key: str | None, prefer: Place) -> Place | None:
        """Return the first of the places in one allocation whose nodes are closest together; None: none is free."""
        order = self._order[key]
        last = {self._leaf_of.get(node) for node in prefer.nodes}
        best: tuple[int, bool, int, int, int] | None = None  # (leaves, moved, apart, first, slot): the smallest wins
        choice: list[str] = []
        for slot in range(self._per_node):
            free = list(self._free[key, slot])
            for i in range(len(free) - self._nodes + 1):
                window = free[i : i + self._nodes]
                leaves = {self._leaf_of.get(node) for node in window}
                first, apart = order[window[0]], order[window[-1]] - order[window[0]]
                moved = bool(last) and not leaves <= last
                score = (len(leaves), moved, apart, first, slot)
                if best is None or score < best:
                    best, choice = score, window
                if score[:3] == (1, False, self._nodes - 1):
                    break  # adjacent nodes: no later place is better
        return None if best is None else Place(tuple(choice), best[-1], key)


def _by_leaf(nodes: Sequence[str], leaf_of: Mapping[str, str]) -> Sequence[str]:
    """Return nodes with those of one leaf beside each other."""
    order = {leaf: i for i, leaf in enumerate(dict.fromkeys(leaf_of.get(node) for node in nodes))}
    return sorted(nodes, key=lambda node: order[leaf_of.get(node)])


def _key(allocation: Allocation) -> str | None:
    return None if allocation.own else allocation.name


TWICE = 2  # failures of one group on one node, and none elsewhere, that make the node suspect


def suspect(unit: Unit, groups: Iterable[Unit], window_s: float) -> str | None:
    """Return the only node on which a group keeps failing in ways in which no group fails elsewhere, or None.

    Args:
        unit: the group. Failures count that are less than window_s older than its last one.
        groups: all groups.
    """
    ends = [e for e in unit.exits if e.launched and e.cause.row.blame is Blame.IF_AGAIN]
    ends = [e for e in ends if ends[-1].time - e.time < window_s]
    where = [{e.node} if e.node else set(e.nodes) for e in ends]
    if len(ends) < TWICE or len(common := set.intersection(*where)) != 1:
        return None
    (node,) = common
    elsewhere = [
        e
        for group in groups
        for e in group.exits
        if ends[-1].time - e.time < window_s and node not in ((e.node,) if e.node else e.nodes)
    ]
    return node if sum(all(kind(e) != kind(other) for other in elsewhere) for e in ends) >= TWICE else None
