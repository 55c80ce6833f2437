"""The GPUs of this machine, as the kernel's files name them: those of the driver, and those that this process may use.

Every path is below a root, so that made-up machines can be read. What cannot be read is missing in the answer. No
library is asked: NVML and torch would cost a worker time before its imports, and a container may lack NVML.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ftslurm.guard.processes import read

VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")  # what names NVIDIA's GPUs, and AMD's
_INFORMATION = re.compile(r"^([^:\n]+):\s*(\S[^\n]*?)\s*$", re.MULTILINE)
_PROPERTY = re.compile(r"^(\w+) (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Gpu:
    """A GPU."""

    address: str  # on the PCI bus: 0000:3b:00
    device: str  # /dev/nvidia3
    cpus: frozenset[int]  # those near it; all, if the machine has one NUMA node; none: not known
    usable: bool = True  # the job's cgroup does not hide it


def known(root: Path = Path("/")) -> list[Gpu]:
    """Return the GPUs of the machine's driver as CUDA or HIP counts equal ones, also those of other jobs."""
    return list(_nvidia(root)) or list(_amd(root))


def _nvidia(root: Path) -> Iterator[Gpu]:
    for folder in sorted((root / "proc/driver/nvidia/gpus").glob("*")):  # in the order of the PCI bus
        about = dict(_INFORMATION.findall(read(folder / "information")))
        if minor := about.get("Device Minor"):  # a GPU that is lost cannot be asked
            device = root / "sys/bus/pci/devices" / folder.name.lower()
            yield _gpu(root, device, f"nvidia{minor}")


def _amd(root: Path) -> Iterator[Gpu]:
    folders = (root / "sys/class/kfd/kfd/topology/nodes").glob("[0-9]*")
    for folder in sorted(folders, key=lambda path: int(path.name)):  # in the order of the driver
        about = dict(_PROPERTY.findall(read(folder / "properties")))
        if (minor := about.get("drm_render_minor", "0")) != "0":
            device = (root / f"sys/class/drm/renderD{minor}/device").resolve()
            yield _gpu(root, device, f"dri/renderD{minor}")


def _gpu(root: Path, device: Path, name: str) -> Gpu:
    near = numbers(read(device / "local_cpulist").strip())
    return Gpu(pci(device.name), f"/dev/{name}", near, _usable(root / "dev" / name))


def visible(environ: Mapping[str, str], there: Sequence[Gpu]) -> list[Gpu | None]:
    """Return the GPUs that CUDA shows, in its order; None for what has another name, as a UUID or a MIG instance."""
    gpus = [gpu for gpu in there if gpu.usable]
    name = next((name for name in reversed(VARIABLES) if name in environ), None)
    if name is None:
        return list(gpus)
    shown = filter(None, environ[name].split(","))
    return [gpus[int(word)] if word.isdecimal() and int(word) < len(gpus) else None for word in shown]


def names(root: Path = Path("/")) -> dict[str, list[str]]:
    """Return the GPUs that this process may open, by the variable that would name them."""
    nvidia = sum(map(_usable, (root / "dev").glob("nvidia[0-9]*")))
    return {VARIABLES[not nvidia]: [*map(str, range(nvidia or sum(gpu.usable for gpu in _amd(root))))]}


def pci(address: str) -> str:
    """Return a PCI address as domain:bus:device in small letters; NVML's has a domain of eight digits."""
    head, _, tail = address.lower().partition(".")[0].partition(":")
    return f"{head[-4:]}:{tail}"


def numbers(text: str) -> frozenset[int]:
    """Return the numbers of a list as the kernel writes it: 0-3,8; none if it is not one."""
    out: set[int] = set()
    with suppress(ValueError):
        for part in text.split(",") if text else ():
            first, _, last = part.partition("-")
            out.update(range(int(first), int(last or first) + 1))
    return frozenset(out)


def _usable(device: Path) -> bool:
    """Whether this process may open a device. The kernel asks the cgroup here too, and the device is not woken."""
    return os.access(device, os.R_OK | os.W_OK)
