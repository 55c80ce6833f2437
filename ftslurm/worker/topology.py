"""Reads from /sys and /proc which CPUs, NUMA nodes and GPUs of this machine a process may use.

Every path is below a root, so that made-up machines can be read. What cannot be read is missing in the answer. No
library is asked: NVML and torch would cost a worker time before its imports, and a container may lack NVML.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_INFORMATION = re.compile(r"^([^:\n]+):\s*(\S[^\n]*?)\s*$", re.MULTILINE)
_PROPERTY = re.compile(r"^(\w+) (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process may open."""

    address: str  # on the PCI bus
    numa_node: int | None  # None: unknown, or the machine has none
    uuid: str = ""


@dataclass(frozen=True)
class Machine:
    """What a process may use of its machine."""

    cpus: frozenset[int]
    numa_nodes: Mapping[int, frozenset[int]]  # number of a NUMA node -> those of `cpus` in it; none is empty
    cores: tuple[frozenset[int], ...]  # `cpus` by physical core, neighbours together
    gpus: tuple[Gpu, ...]  # as CUDA or HIP counts equal GPUs


def machine(allowed: Collection[int], root: Path = Path("/")) -> Machine:
    """Describe this machine as far as a process with this affinity may use it."""
    cpus, found = frozenset(allowed), {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        if mine := numbers(_text(folder / "cpulist")) & cpus:
            found[int(folder.name.removeprefix("node"))] = mine
    nodes = dict(sorted(found.items()))
    gpus = tuple(_nvidia(root)) or tuple(_amd(root))
    return Machine(cpus, nodes, _cores(cpus, nodes, root), gpus)


def numbers(text: str) -> frozenset[int]:
    """Return the numbers of a list as the kernel writes it: 0-3,8; none if it is not one."""
    out: set[int] = set()
    with suppress(ValueError):
        for part in text.split(",") if text else ():
            first, _, last = part.partition("-")
            out.update(range(int(first), int(last or first) + 1))
    return frozenset(out)


def written(cpus: Collection[int]) -> str:
    """Write numbers as the kernel does: 0-3,8."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][-1] == cpu - 1:
            parts[-1][1:] = [cpu]
        else:
            parts.append([cpu])
    return ",".join("-".join(map(str, part)) for part in parts)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _cores(cpus: frozenset[int], nodes: Mapping[int, frozenset[int]], root: Path) -> tuple[frozenset[int], ...]:
    """Return the CPUs by core, those of a NUMA node together: hardware threads of a core share its caches."""
    home = {cpu: node for node, mine in nodes.items() for cpu in mine}
    found = set()
    for cpu in cpus:
        siblings = _text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        found.add((numbers(siblings) & cpus) | {cpu})
    return tuple(sorted(found, key=lambda core: (home.get(min(core), -1), min(core))))


def _nvidia(root: Path) -> Iterator[Gpu]:
    """Yield NVIDIA's GPUs in the order of the PCI bus, without those that the job's cgroup hides."""
    for folder in sorted((root / "proc/driver/nvidia/gpus").glob("*")):
        about = dict(_INFORMATION.findall(_text(folder / "information")))
        if _usable(root / f"dev/nvidia{about.get('Device Minor', '')}"):
            yield Gpu(folder.name, _numa_node(root / "sys/bus/pci/devices" / folder.name), about.get("GPU UUID", ""))


def _amd(root: Path) -> Iterator[Gpu]:
    """Yield AMD's GPUs in the order of their driver, without those that the job's cgroup hides."""
    folders = (root / "sys/class/kfd/kfd/topology/nodes").glob("[0-9]*")
    for folder in sorted(folders, key=lambda path: int(path.name)):
        about = dict(_PROPERTY.findall(_text(folder / "properties")))
        minor = about.get("drm_render_minor", "0")
        if minor != "0" and _usable(root / f"dev/dri/renderD{minor}"):
            device = (root / f"sys/class/drm/renderD{minor}/device").resolve()
            yield Gpu(device.name, _numa_node(device), f"GPU-{int(about.get('unique_id', '0')):016x}")


VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")  # what names NVIDIA's GPUs, and AMD's


def visible_gpus(root: Path = Path("/")) -> dict[str, list[str]]:
    """Return the GPUs that this process may open, by the variable that would name them."""
    nvidia = [path for path in (root / "dev").glob("nvidia[0-9]*") if _usable(path)]
    name, found = (VARIABLES[0], nvidia) if nvidia else (VARIABLES[1], [*_amd(root)])
    return {name: list(map(str, range(len(found))))}


def _numa_node(device: Path) -> int | None:
    with suppress(ValueError):
        return number if (number := int(_text(device / "numa_node"))) >= 0 else None
    return None


def _usable(device: Path) -> bool:
    """Whether this process may open a device. The kernel asks the cgroup here too, and the device is not woken."""
    return os.access(device, os.R_OK | os.W_OK)
