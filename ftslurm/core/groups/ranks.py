"""Number the tasks of a step as torchrun does, from the nodes they run on."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.core.state.model import Place, Unit
from ftslurm.protocol.messages import Rank


def table(hosts: Sequence[str]) -> tuple[Rank, ...]:
    """Return the rank table of one group's step.

    Args:
        hosts: hosts[task] is the node on which that task runs, in the order of Slurm's task ids.

    Returns:
        One Rank per task, in the same order. Nodes are numbered as their first task appears, and workers of
        a node have adjacent ranks, as with torchrun, however Slurm has distributed the tasks.
    """
    order = list(dict.fromkeys(hosts))
    first = {node: sum(hosts.count(before) for before in order[:i]) for i, node in enumerate(order)}
    seen: dict[str, int] = {}
    out = []
    for node in hosts:
        local = seen.get(node, 0)
        seen[node] = local + 1
        out.append(Rank(rank=first[node] + local, node=node, local_rank=local, node_rank=order.index(node)))
    return tuple(out)


def expected(place: Place, workers: int) -> tuple[str, ...]:
    """Return the node of each task of a step at `place` if Slurm distributes its tasks in blocks, as requested."""
    return tuple(node for node in place.nodes for _ in range(workers))


def of(unit: Unit) -> tuple[Rank, ...]:
    """Return the rank table of a unit's step, whose tasks have reported their nodes."""
    return table([str(host) for host in unit.current.hosts])
