"""What a node has, read there: GPUs, the kernel's log, packages, network, limits. Judges nothing."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ftslurm.checks import gpu_readings
from ftslurm.checks.gpu_readings import GpuReading
from ftslurm.guard import gpus, interfaces, kernel_log
from ftslurm.guard.kernel_log import KernelFault
from ftslurm.security import programs

PACKAGES = ("torch", "torchft", "ftslurm")
IMPORT_S = 120.0
IMPORT = """
import sys, time, json, importlib
begun, name = time.monotonic(), sys.argv[1]
module = importlib.import_module(name)
found = {"seconds": time.monotonic() - begun, "version": str(getattr(module, "__version__", ""))}
try:
    from importlib.metadata import version
    found["version"] = found["version"] or version(name)
except Exception:
    pass
if name == "torch":
    kinds = (("CUDA", "cuda"), ("ROCm", "hip"))
    found["build"] = " ".join(f"{kind} {getattr(module.version, name, None)}" for kind, name in kinds
                              if getattr(module.version, name, None))
    found["devices"] = module.cuda.device_count()
    if found["devices"]:
        try:
            module.zeros(8, device="cuda").sum().item()
        except Exception as error:
            found["cuda_error"] = str(error).splitlines()[0][:300]
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Hardware:
    """The GPUs of a node, and what its kernel says."""

    gpus: int = 0  # that this process may use
    readings: Sequence[GpuReading] | str | None = None  # by nvidia-smi, or why it says nothing; None: there is none
    kernel: Sequence[KernelFault] | None = None  # signs of broken hardware in its log; None: it may not be read
    uptime_s: float = 0.0


def of_hardware(visible: str | None) -> Hardware:
    """Look at the GPUs and at the kernel's log.

    Args:
        visible: CUDA_VISIBLE_DEVICES; None: all GPUs.
    """
    ((variable, mine),) = gpus.names().items()
    readings: Sequence[GpuReading] | str | None = None
    if mine and variable == gpus.VARIABLES[0] and shutil.which("nvidia-smi"):
        try:
            readings = gpu_readings.read(visible)
        except gpu_readings.NoAnswer as why:
            readings = str(why)
    lines = kernel_log.read()
    signs = None if lines is None else kernel_log.parse(lines)
    return Hardware(len(mine), readings, signs, time.clock_gettime(time.CLOCK_MONOTONIC))


def network() -> tuple[str, dict[str, str], list[str]]:
    """Return what the node's own name stands for, its interfaces, and its devices for InfiniBand."""
    own = sorted(interfaces.resolve(socket.gethostname()), key=interfaces.is_loopback)
    there = {name: its[0] for name, its in interfaces.known().items() if its and not interfaces.is_loopback(its[0])}
    fast = list[str]()
    with suppress(OSError):
        fast = sorted(os.listdir("/sys/class/infiniband"))
    return own[0] if own else "", there, fast


def locked_kb() -> int | None:
    """Return how many kB of memory a process may lock; None: any."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if limit == resource.RLIM_INFINITY else limit // 1024


def imported(name: str) -> dict[str, Any]:
    """Return how long the import of a module takes and its version, or its error. Another process imports it."""
    command = programs.code(IMPORT, name)
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=IMPORT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not imported within {IMPORT_S:g} s"}
    try:
        return dict(json.loads(done.stdout.decode().splitlines()[-1]))
    except (ValueError, IndexError):
        last = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": last[-1][:300]}
