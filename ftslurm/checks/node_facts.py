"""What a node has, read on that node: GPUs, the kernel's log, packages, network, limits. Judges nothing."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ftslurm.checks import gpu_readings
from ftslurm.checks.gpu_readings import GpuReading
from ftslurm.guard import gpus, interfaces, kernel_log
from ftslurm.security import programs

PATIENCE_S = 40.0  # for a file to be seen on the other side; NFS caches names for up to 30 s by default
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
    kernel: Sequence[str] | None = None  # lines of its log with signs of broken hardware; None: it may not be read
    uptime_s: float = 0.0


@dataclass(frozen=True)
class Facts:
    """All that doctor looks at."""

    hardware: Hardware
    slurm_gpus: int  # that Slurm has given the job, whoever makes them
    python: str
    python_version: str
    imports: Mapping[str, Mapping[str, Any]]  # of PACKAGES
    address: str  # what the node's own name stands for
    interfaces: Mapping[str, str]
    infiniband: Sequence[str]
    ports: int  # that the kernel hands out
    files: int  # limits
    locked_kb: int | None  # None: none


@dataclass
class FolderFacts:
    """How the folder of runs behaves between doctor's machine and a node."""

    path: str = ""
    shared: bool = False
    size_s: float | None = None  # until doctor's machine sees what the node has written; None: not within the limit
    exclusive: bool = True  # whether a file that must not exist is refused to the node if it was made there
    fsync_s: float = 0.0  # the median
    fsync_longest_s: float = 0.0
    problem: str = ""


@dataclass
class NodeFacts:
    """What was learnt of one node."""

    name: str
    job: str = ""
    started_s: float = 0.0  # 0: its program has not begun
    problem: str = ""  # why something is not known
    folder: FolderFacts | None = None
    facts: Facts | None = None
    ahead_s: float = -3600.0  # its clock before ours, less the time that its quickest line took
    tried: Mapping[str, str] = field(default_factory=dict)  # what a run does there -> why it fails, "" if it does not
    place: Sequence[Any] = ()  # host and free port
    reached: Mapping[str, str] = field(default_factory=dict)  # another node -> why it was not reached, "" if it was


def read_facts(raw: Mapping[str, Any]) -> Facts:
    """Return facts that have come as JSON.

    Raises:
        TypeError, KeyError: another version of ftslurm has written them.
    """
    found = dict(raw["hardware"])
    if isinstance(found["readings"], list):
        found["readings"] = [GpuReading(**one) for one in found["readings"]]
    return Facts(**{**raw, "hardware": Hardware(**found)})


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
    signs = None if lines is None else [line for line in lines if kernel_log.parse([line])][-1000:]
    return Hardware(len(mine), readings, signs, time.clock_gettime(time.CLOCK_MONOTONIC))


def of_node() -> Facts:
    """Look at everything."""
    own = sorted(interfaces.resolve(socket.gethostname()), key=interfaces.is_loopback)
    there = {name: its[0] for name, its in interfaces.known().items() if its and not interfaces.is_loopback(its[0])}
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        low, high = map(int, file.read().split())
    fast = list[str]()
    with suppress(OSError):
        fast = sorted(os.listdir("/sys/class/infiniband"))
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return Facts(
        of_hardware(None),
        int(os.environ.get("SLURM_GPUS_ON_NODE") or 0),
        sys.executable,
        sys.version.split()[0],
        {name: imported(name) for name in PACKAGES},
        *(own[0] if own else "", there, fast, high - low + 1),
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        None if locked == resource.RLIM_INFINITY else locked // 1024,
    )


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
