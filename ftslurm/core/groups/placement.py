"""Which nodes does a group run on?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ftslurm.core.groups.restart import HARMLESS, unexplained
from ftslurm.core.state.model import Allocation, Cause, Exit, Place


def place(
    nodes: int,
    per_node: int,
    allocations: Iterable[Allocation],
    taken: Iterable[Place],
    avoid: frozenset[str],
    prefer: Place | None = None,
) -> Place | None:
    """A free place for one group, or None if it has to wait.

    The same place again if it is free and sound (its page cache is warm and its data may be there); else neighbours
    in Slurm's order, since that order follows the network on most clusters; else whatever is nearest to that.
    Earlier allocations, and in them earlier nodes, are filled first, so that spare nodes stay empty until they are
    needed. All nodes of a group are of one allocation, because a step is.

    Args:
        nodes: nodes of a group, all different.
        per_node: slots of each node; the slot of a group is the same on all its nodes.
        taken: where the other groups run.
        avoid: nodes that were lost.
        prefer: where this group ran before.
    """
    every, taken = list(allocations), list(taken)
    for allocation in every:
        if prefer is not None and prefer.allocation == _key(allocation) and len(prefer.nodes) == nodes:
            sound = {allocation.nodes[i] for i in _free(allocation, prefer.slot, taken, avoid)}
            if sound.issuperset(prefer.nodes):
                return prefer
    found = (_within(nodes, per_node, allocation, taken, avoid) for allocation in every)
    return next((spot for spot in found if spot is not None), None)


def _key(allocation: Allocation) -> str | None:
    return None if allocation.own else allocation.name


def _free(allocation: Allocation, slot: int, taken: Sequence[Place], avoid: frozenset[str]) -> list[int]:
    """Indices of the nodes of which this share is free. Jobs on one node have each their part of it."""
    used = {node for spot in taken for node in spot.nodes if (spot.allocation, spot.slot) == (_key(allocation), slot)}
    return [i for i, node in enumerate(allocation.nodes) if node not in used and node not in avoid]


def _within(
    nodes: int, per_node: int, allocation: Allocation, taken: Sequence[Place], avoid: frozenset[str]
) -> Place | None:
    best: tuple[int, int, int] | None = None  # (how far apart, first node, slot): the smallest wins
    choice: list[int] = []
    for slot in range(per_node):
        candidates = _free(allocation, slot, taken, avoid)
        for first in range(len(candidates) - nodes + 1):
            window = candidates[first : first + nodes]
            score = (window[-1] - window[0], window[0], slot)
            if best is None or score < best:
                best, choice = score, window
    if best is None:
        return None
    return Place(tuple(allocation.nodes[i] for i in choice), best[2], _key(allocation))


TWICE = 2  # so many failures of one group on one node, and none elsewhere, speak against the node


def suspect(exits: Sequence[Exit], window_s: float) -> str | None:
    """The node on which a group keeps failing, and nowhere else; None: there is no such node.

    Args:
        exits: every exit of the group, oldest first; those of the last window_s count, like in its budget.
    """
    recent = [e for e in unexplained(exits) if exits[-1].time - e.time < window_s]
    ends = [e for e in recent if e.launched and e.cause not in _INNOCENT]
    if len(ends) < TWICE:
        return None
    blamed = [{e.node} if e.node is not None else set(e.nodes) for e in ends]
    common = set.intersection(*blamed)
    return min(common) if len(common) == 1 else None


_INNOCENT = HARMLESS | {Cause.NODE_LOST, Cause.LIGHTHOUSE_LOST}  # they do not speak against the node
