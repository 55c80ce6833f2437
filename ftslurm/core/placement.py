"""Which nodes does a group run on?"""

from __future__ import annotations

from collections.abc import Iterable

from ftslurm.core.model import Allocation, Place


def place(
    nodes: int,
    per_node: int,
    allocation: Allocation,
    taken: Iterable[Place],
    avoid: frozenset[str],
    prefer: Place | None = None,
) -> Place | None:
    """A free place for one group, or None if it has to wait.

    The same place again if it is free and sound (its page cache is warm and its data may be there); else neighbours
    in Slurm's order, since that order follows the network on most clusters; else whatever is nearest to that.
    Earlier nodes are filled first, so that spare nodes stay empty until they are needed.

    Args:
        nodes: nodes of a group, all different.
        per_node: slots of each node; the slot of a group is the same on all its nodes.
        taken: where the other groups run.
        avoid: nodes that were lost.
        prefer: where this group ran before.
    """
    used = {(node, spot.slot) for spot in taken for node in spot.nodes}

    def free(slot: int) -> list[int]:
        return [i for i, n in enumerate(allocation.nodes) if (n, slot) not in used and n not in avoid]

    if prefer is not None:
        sound = {allocation.nodes[i] for i in free(prefer.slot)}
        if len(prefer.nodes) == nodes and sound.issuperset(prefer.nodes):
            return prefer
    best: tuple[int, int, int] | None = None  # (how far apart, first node, slot): the smallest wins
    choice: list[int] = []
    for slot in range(per_node):
        candidates = free(slot)
        for first in range(len(candidates) - nodes + 1):
            window = candidates[first : first + nodes]
            score = (window[-1] - window[0], window[0], slot)
            if best is None or score < best:
                best, choice = score, window
    return None if best is None else Place(tuple(allocation.nodes[i] for i in choice), best[2])
