"""Judges what the partitions have that a request can mean, and whether that is certain. Pure.

A partition need not be named: a constraint, a QOS, an account or a plugin of the site may choose it. Then every
partition can be meant, and only sbatch knows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ftslurm.protocol.value_class import Value
from ftslurm.slurm.parse import Partition, partition_names

UNKNOWN_TO_SLURM = "cluster.sbatch.gpus-per-node=false: the nodes have GPUs that Slurm does not know"


class Offer(Value):
    """What a request can mean."""

    rows: Sequence[Partition]  # all that can be meant: the job will be in one of their partitions
    likely: Sequence[Partition]  # those of them that Slurm takes if nothing else chooses
    certain: bool  # no others can be meant
    missing: Collection[str] = ()  # names of which there is no partition

    def nodes(self, cpus: int, gpus: int) -> float:
        """Return how many nodes of this size one partition has at most."""
        found = dict[str, float]()
        for row in self.rows:
            if row.cpus >= cpus and row.gpus >= gpus:
                found[row.name] = found.get(row.name, 0) + row.nodes
        return max(found.values(), default=0)


def meant(rows: Sequence[Partition], wanted: str, choosers: Sequence[str] = ()) -> Offer:
    """Return what a request can mean.

    Args:
        wanted: the partitions that it names, separated by commas.
        choosers: what else may choose one if it names none.
    """
    if wanted:
        names = wanted.split(",")
        mine = [row for row in rows if row.name in names]
        return Offer(mine, mine, True, set(names) - {row.name for row in rows})
    default = [row for row in rows if row.default]
    certain = bool(default) and not choosers
    return Offer(default if certain else rows, default or rows, certain)


def named(rows: Sequence[Partition]) -> str:
    """Return the partitions of some rows as a phrase."""
    names = partition_names(rows)
    return f"partition {names}" if names.count(",") < 4 else "the cluster"
