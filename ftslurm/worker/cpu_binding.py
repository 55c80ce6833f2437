"""Binds a worker to the CPUs near its GPU (groups.bind), as torchrun's --numa-binding does for its workers.

torch's own functions for this need torch and NVML. A worker is bound before it imports torch, so that every thread and
every page of memory begins in the right place. The memory needs no policy of its own: Linux takes a page from the NUMA
node of the CPU that first writes to it, and from another one when that is full, where a strict policy would kill.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress

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
    if cpus:
        try:
            set_affinity(cpus)
        except OSError as error:
            return f"not bound to CPUs {written(cpus)}: {error.strerror} (groups.bind)"
    return said


def near(
    allowed: Collection[int], there: Sequence[Gpu], shown: Sequence[Gpu | None], workers: int, local_rank: int
) -> tuple[frozenset[int], str]:
    """Return the CPUs for a worker, none if it is not bound, and what its log says of that. Pure.

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
            have = f"only CPUs {written(cpus)} for {beside} GPUs" if cpus else "none"
            return frozenset(), (
                f"not bound (groups.bind): of the CPUs near GPU {gpu.address} this job has {have}; ask Slurm for CPUs "
                f"near the GPUs, as with cluster.sbatch.gres-flags=enforce-binding, or for whole nodes"
            )
        found |= cpus
    if len(found) in (0, len(allowed)):
        return frozenset(), ""
    names = ", ".join(gpu.address for gpu in own if gpu is not None)
    return found, f"bound to CPUs {written(found)} (near GPU {names})"


def set_affinity(cpus: Collection[int]) -> None:
    """Bind all threads of this process; new ones and child processes inherit it.

    Raises:
        OSError: the kernel refuses.
    """
    done: set[int] = set()
    while new := {int(name) for name in os.listdir("/proc/self/task")} - done:  # a thread may start meanwhile
        for thread in new:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cpus)
        done |= new


def written(cpus: Collection[int]) -> str:
    """Write numbers as the kernel does: 0-3,8."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][-1] == cpu - 1:
            parts[-1][1:] = [cpu]
        else:
            parts.append([cpu])
    return ",".join("-".join(map(str, part)) for part in parts)
