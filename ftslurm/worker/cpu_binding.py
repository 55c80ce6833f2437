"""Binds a worker to the CPUs near its GPU (groups.bind), as torchrun's --numa-binding does for its workers.

torch's own functions for this need torch and NVML. A worker is bound before it imports torch, so that every thread and
every page of memory begins in the right place. The memory needs no policy of its own: Linux takes a page from the NUMA
node of the CPU that first writes to it, and from another one when that is full, where a strict policy would kill.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from ftslurm.guard import gpus
from ftslurm.guard.gpus import Gpu

LEAST = 0.5  # of its fair share of the CPUs: a worker that would have less near its GPU is not bound


def bind(workers: int, local_rank: int) -> str:
    """Bind all threads of this process; return a line for its log, "" if there is nothing to say.

    Args:
        workers: how many its group has on this node.
        local_rank: its number among them.
    """
    there = [gpu for gpu in gpus.known() if gpu.usable]
    shown = gpus.visible(os.environ, there)
    cpus, said = near(os.sched_getaffinity(0), there, shown, workers, local_rank)
    if not cpus:
        return said
    try:
        for thread in os.listdir("/proc/self/task"):  # new threads and child processes inherit it
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cpus)
    except OSError as error:
        return f"not bound to the CPUs {said}: {error.strerror} (groups.bind)"
    listed = Path("/proc/self/status").read_text().partition("Cpus_allowed_list:\t")[2].partition("\n")[0]
    return f"bound to CPUs {listed} ({said})"


def near(
    allowed: Collection[int], there: Sequence[Gpu], shown: Sequence[Gpu | None], workers: int, local_rank: int
) -> tuple[frozenset[int], str]:
    """Return the CPUs for a worker and where they are; if it is not bound, none, and what its log says of that. Pure.

    Args:
        allowed: the CPUs that the job has.
        there: the GPUs that the job has on this machine.
        shown: those that the group sees.
        workers: of the group on this node.
        local_rank: the worker's number among them.
    """
    own = shown if workers < len(shown) else shown[local_rank % max(1, len(shown)) :][:1]
    found = frozenset[int]()
    for gpu in own:
        if gpu is None or not gpu.cpus:
            return frozenset(), ""
        cpus, beside = gpu.cpus.intersection(allowed), sum(other.cpus == gpu.cpus for other in there)
        if len(cpus) / beside < LEAST * len(allowed) / len(there):
            return frozenset(), (
                f"not bound (groups.bind): this job has {len(cpus)} CPUs near GPU {gpu.address}, where {beside} of its "
                "GPUs are; ask Slurm for CPUs near the GPUs, as with cluster.sbatch.gres-flags=enforce-binding, or for "
                "whole nodes"
            )
        found |= cpus
    if len(found) in (0, len(allowed)):
        return frozenset(), ""
    return found, f"near GPU {', '.join(gpu.address for gpu in own if gpu is not None)}"
