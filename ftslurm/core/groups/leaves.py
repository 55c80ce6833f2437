"""Choose the nodes of a group within one leaf of the network: a leaf switch (topology/tree), a block (topology/block).

Ten thousand groups may be placed in one decision, so the leaves are in heaps: those without enough free nodes are
dropped for good, because within a decision nodes are only taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

Free = Mapping[int, Sequence[int]]  # slot -> indices of its free nodes, in order


class Leaves:
    """The free nodes of one allocation, by leaf. Mutable: `remove` marks nodes as taken."""

    def __init__(self, names: Sequence[str], leaf_of: Mapping[str, str], free: Free, nodes: int) -> None:
        """Sort the free nodes.

        Args:
            names: the nodes of the allocation; indices in `free` refer to it.
            leaf_of: the leaf of each node. A node without one is a leaf by itself.
            nodes: nodes of a group.
        """
        self._nodes = nodes
        self._leaf_at = [leaf_of.get(name, f"node {name}") for name in names]
        self._free: dict[str, dict[int, list[int]]] = {}
        for slot, indices in free.items():
            for i in indices:
                self._free.setdefault(self._leaf_at[i], {}).setdefault(slot, []).append(i)
        self._tight = [(self._total(leaf), self._first(leaf), leaf) for leaf in self._free]  # the fullest first
        self._wide = {  # of each slot, the emptiest first
            slot: [(-len(slots[slot]), slots[slot][0], leaf) for leaf, slots in self._free.items() if slot in slots]
            for slot in free
        }
        for heap in (self._tight, *self._wide.values()):
            heapify(heap)

    def find(self, last: Sequence[str], index: Mapping[str, int]) -> tuple[int, list[int]] | None:
        """Return the slot and the indices of free nodes for one group; None: there are not enough.

        A leaf of the group's last nodes if it has room, with those of them that are free; else the leaf with the least
        room that suffices, so that large leaves stay free for large groups; else as few leaves as possible.

        Args:
            last: the group's last nodes.
        """
        there = [i for node in last if (i := index.get(node)) is not None]
        for leaf, _ in Counter(self._leaf_at[i] for i in there).most_common():
            if (found := self._within(leaf, there)) is not None:
                return found
        while self._tight:
            total, first, leaf = self._tight[0]
            current = (total, first) == (self._total(leaf), self._first(leaf))
            if current and (found := self._within(leaf, ())) is not None:
                return found
            heappop(self._tight)  # it is no longer so, or no slot has enough nodes left
        spread = [choice for slot in self._wide if (choice := self._across(slot)) is not None]
        return min(spread)[1:] if spread else None

    def remove(self, slot: int, indices: Sequence[int]) -> None:
        """Mark nodes as taken."""
        for leaf in dict.fromkeys(self._leaf_at[i] for i in indices):
            free = self._free.get(leaf, {}).get(slot, [])
            left = [i for i in free if i not in indices]
            if len(left) == len(free):
                continue
            self._free[leaf][slot] = left
            if total := self._total(leaf):
                heappush(self._tight, (total, self._first(leaf), leaf))
            if left:
                heappush(self._wide[slot], (-len(left), left[0], leaf))

    def _total(self, leaf: str) -> int:
        return sum(len(free) for free in self._free.get(leaf, {}).values())

    def _first(self, leaf: str) -> int:
        return min((free[0] for free in self._free.get(leaf, {}).values() if free), default=-1)

    def _within(self, leaf: str, last: Sequence[int]) -> tuple[int, list[int]] | None:
        """Return free nodes of one leaf: those of `last`, and the others closest together."""
        best: tuple[int, int, int, int, list[int]] | None = None
        for slot, free in self._free.get(leaf, {}).items():
            kept = [i for i in last if _holds(free, i)][: self._nodes]
            need, rest = self._nodes - len(kept), [i for i in free if i not in kept] if kept else free
            for first in range(len(rest) - need + 1):
                window = rest[first : first + need]
                apart = window[-1] - window[0] if window else 0
                score = (-len(kept), apart, window[0] if window else kept[0], slot)
                if best is None or score < best[:4]:
                    best = (*score, sorted(kept + window))
                if apart <= need - 1:
                    break  # adjacent nodes: no later ones are closer
        return None if best is None else (best[3], best[4])

    def _across(self, slot: int) -> tuple[int, int, list[int]] | None:
        """Return the number of leaves, the slot, and free nodes of as few leaves as possible."""
        heap, used, found = self._wide[slot], list[tuple[int, int, str]](), list[int]()
        while heap and len(found) < self._nodes:
            count, first, leaf = entry = heappop(heap)
            free = self._free[leaf][slot]
            if free and (-count, first) == (len(free), free[0]) and entry not in used:
                used.append(entry)
                found += free[: self._nodes - len(found)]
        for entry in used:
            heappush(heap, entry)
        return (len(used), slot, sorted(found)) if len(found) == self._nodes else None


def _holds(ordered: Sequence[int], value: int) -> bool:
    at = bisect_left(ordered, value)
    return at < len(ordered) and ordered[at] == value
