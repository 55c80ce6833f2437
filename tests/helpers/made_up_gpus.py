"""The files by which the kernel names NVIDIA's GPUs, of a machine that does not exist."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def machine(root: Path, cpus: Sequence[str]) -> Path:
    """Make up a machine with a GPU for each of these lists of the CPUs near it; return its root."""
    for number, near in enumerate(cpus):
        address = f"0000:{16 + number:02x}:00.0"
        minor = len(cpus) - 1 - number  # the driver's numbers need not follow the bus
        about = f"Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}"
        write(root / f"proc/driver/nvidia/gpus/{address}/information", about)
        write(root / f"sys/bus/pci/devices/{address}/local_cpulist", near)
        write(root / f"dev/nvidia{minor}", "")
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
