"""Binds a worker to the CPUs near its GPU (groups.bind), as torchrun's --numa-binding does for its workers.

torch's own functions for this need torch and NVML. A worker is bound before it imports torch, so that every thread and
every page of memory begins in the right place. The memory needs no policy of its own: Linux takes a page from the NUMA
node of the CPU that first writes to it, and from another one when that is full, where a strict policy would kill.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ftslurm.worker import topology
from ftslurm.worker.topology import Gpu, Machine

VISIBLE = ("ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")  # the first that is set names the GPUs
LEAST = 0.5  # of its fair share of the CPUs: a worker that would have less near its GPU is not bound


@dataclass(frozen=True)
class Seat:
    """What a worker is told of its place, by --bind or the message `assign`: MODE:FIRST:TOTAL:WORKERS:GPUS."""

    mode: str  # auto or cores
    first: int  # number of its group's first worker among the run's workers on this machine
    total: int  # of these, at most
    workers: int  # of its group on this node
    gpus: int = 0  # of its group on this node; CUDA_VISIBLE_DEVICES shows these

    def __str__(self) -> str:
        return f"{self.mode}:{self.first}:{self.total}:{self.workers}:{self.gpus}"

    @classmethod
    def of(cls, text: str) -> Seat:
        mode, *numbers = text.split(":")
        return cls(mode, *map(int, numbers))


@dataclass(frozen=True)
class Binding:
    """The CPUs of a worker, None if it is not bound, and what its log says of that; "": nothing is worth a line."""

    cpus: frozenset[int] | None
    text: str = ""


def bind(wanted: str, index: int, local_rank: int) -> str:
    """Bind all threads of this process; return a line for its log, "" if there is nothing to say.

    Args:
        wanted: the seat.
        index: the worker's number among those of its group on this machine.
        local_rank: its number among those of its group on its node, which in a local run is only a name.
    """
    seat = Seat.of(wanted)
    here = topology.machine(os.sched_getaffinity(0))
    if not seat.gpus:
        found = without_gpus(here, seat, index)
    else:
        found = near_gpus(here, seat, local_rank, visible(os.environ, here.gpus))
    allocated = os.environ.get("SLURM_CPUS_ON_NODE", "")
    if seat.mode == "cores" and found.cpus and allocated.isdecimal() and int(allocated) < len(here.cpus):
        found = Binding(
            None,
            f"not bound (groups.bind=cores): the job has {allocated} of the {len(here.cpus)} CPUs that this process "
            f"may use. Slurm does not confine jobs here (ConstrainCores in cgroup.conf), so jobs would choose the same",
        )
    if found.cpus:
        try:
            set_affinity(found.cpus)
        except OSError as error:
            return f"not bound to CPUs {topology.written(found.cpus)}: {error.strerror} (groups.bind)"
    return found.text


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


def visible(environ: Mapping[str, str], gpus: Sequence[Gpu]) -> list[Gpu | None]:
    """Return the GPUs that CUDA shows, in its order; None for a name that is not understood, as a MIG instance's."""
    name = next((name for name in VISIBLE if name in environ), None)
    if name is None:
        return list(gpus)
    out: list[Gpu | None] = []
    for word in filter(None, environ[name].split(",")):
        if word.isdecimal():
            out.append(gpus[int(word)] if int(word) < len(gpus) else None)
        else:
            uuid = word.removeprefix("MIG-").partition("/")[0]  # MIG-GPU-<uuid>/1/0
            out.append(next((gpu for gpu in gpus if uuid.startswith("GPU-") and gpu.uuid.startswith(uuid)), None))
    return out


def near_gpus(machine: Machine, seat: Seat, local_rank: int, shown: Sequence[Gpu | None]) -> Binding:
    """Decide for a worker that has GPUs. Pure."""
    mine = _own(shown, local_rank, seat.workers)
    known = [gpu for gpu in mine if gpu is not None and gpu.numa_node is not None]
    if not mine or len(known) < len(mine):
        strict = seat.mode == "cores"
        return Binding(None, "not bound (groups.bind=cores): its GPU's NUMA node is not known" if strict else "")
    if seat.mode == "cores" and 1 < seat.workers < len(shown):
        return Binding(
            None, f"not bound (groups.bind=cores): {seat.workers} workers may share {len(shown)} GPUs anyhow"
        )
    sharing = max(1, -(-seat.workers // len(shown)))  # workers that use the same GPU
    cpus: set[int] = set()
    for gpu in known:
        near = machine.numa_nodes.get(gpu.numa_node or 0, frozenset())
        beside = [other for other in machine.gpus if other.numa_node == gpu.numa_node]
        slices = len(beside) * sharing
        number = beside.index(gpu) * sharing + min(local_rank // len(shown), sharing - 1)
        fair = LEAST * len(machine.cpus) / (len(machine.gpus) * sharing)
        if len(near) / slices < fair:
            return Binding(None, _too_few(gpu, near, slices))
        cpus |= near if seat.mode == "auto" else _slice(_cores_in(machine, near), number, slices)
    names = ", ".join(f"GPU {machine.gpus.index(gpu)} at {gpu.address}" for gpu in known)
    return _chosen(machine, seat, cpus, names)


def _own(shown: Sequence[Gpu | None], local_rank: int, workers: int) -> list[Gpu | None]:
    """Return the GPUs of a worker: that of its local rank, or all if the script may divide them in another way."""
    if not shown or (workers < len(shown)):
        return list(shown)
    return [shown[local_rank % len(shown)]]


def _too_few(gpu: Gpu, near: Collection[int], workers: int) -> str:
    have = f"only CPUs {topology.written(near)} for {workers} workers" if near else "none of its CPUs"
    return (
        f"not bound (groups.bind): GPU {gpu.address} is at NUMA node {gpu.numa_node}, of which this job has {have}; "
        f"ask Slurm for CPUs near the GPUs, as with cluster.sbatch.gres-flags=enforce-binding, or for whole nodes"
    )


def without_gpus(machine: Machine, seat: Seat, index: int) -> Binding:
    """Decide for a worker without a GPU: the workers of a machine are divided among its NUMA nodes, if that is even.

    Pure.
    """
    nodes, total, number = list(machine.numa_nodes.values()), seat.total, seat.first + index
    count = len(nodes)
    even = count > 1 and len({len(cpus) for cpus in nodes}) == 1 and (total % count == 0 or count % total == 0)
    if seat.mode == "cores":
        if number >= total or len(machine.cpus) < total:
            return Binding(
                None, f"not bound (groups.bind=cores): {len(machine.cpus)} CPUs for {total} workers on this machine"
            )
        return _chosen(machine, seat, _slice(machine.cores, number, total), "")
    if not even or number >= total:
        return Binding(None)
    first, last = number * count // total, max((number + 1) * count // total, number * count // total + 1)
    return _chosen(machine, seat, frozenset().union(*nodes[first:last]), "")


def _cores_in(machine: Machine, cpus: Collection[int]) -> list[frozenset[int]]:
    return [core & frozenset(cpus) for core in machine.cores if not core.isdisjoint(cpus)]


def _slice(cores: Sequence[frozenset[int]], number: int, count: int) -> frozenset[int]:
    """Return one of `count` slices: whole cores, or hardware threads if there are too few cores."""
    units = cores if len(cores) >= count else [frozenset({cpu}) for core in cores for cpu in sorted(core)]
    first, last = number * len(units) // count, (number + 1) * len(units) // count
    return frozenset().union(*units[first:last])


def _chosen(machine: Machine, seat: Seat, cpus: Collection[int], gpus: str) -> Binding:
    if not cpus:
        return Binding(None, f"not bound (groups.bind={seat.mode}): there are fewer CPUs than workers")
    if len(cpus) == len(machine.cpus):
        return Binding(None)
    nodes = [number for number, mine in machine.numa_nodes.items() if not mine.isdisjoint(cpus)]
    where = f"NUMA node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}" if nodes else ""
    about = ", ".join(filter(None, [where, gpus]))
    return Binding(frozenset(cpus), f"bound to CPUs {topology.written(cpus)}" + (f" ({about})" if about else ""))
