"""The memory that is left on a node, and what a worker takes of it."""

from __future__ import annotations

import contextlib

from ftslurm.guard.processes import memory_cgroups, read


def available_mb(root: str = "/sys/fs/cgroup", meminfo: str = "/proc/meminfo") -> int:
    """Return how many MiB processes here can still take: of the node, or of the memory cgroup with the least room."""
    return min([_field(meminfo, "MemAvailable:"), *(_headroom_mb(folder) for folder in memory_cgroups(root))])


def private_mb(pid: int) -> int:
    """Return the memory of a process that it shares with no other, in MiB; 0: it is gone.

    Files it has mapped, most of torch's libraries, are in memory once for all processes of a node.
    """
    return _field(f"/proc/{pid}/status", "RssAnon:", default=0)


def _headroom_mb(folder: str) -> int:
    """Return how much a memory cgroup (v2 or v1) still takes until its limit, file caches left out."""
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max", there is no limit
            room = int(read(f"{folder}/{limit}")) - int(read(f"{folder}/{used}"))
            caches = _field(f"{folder}/memory.stat", "inactive_file", default=0, unit=1 << 20)
            return max(0, room >> 20) + caches
    return _NO_LIMIT_MB


_NO_LIMIT_MB = 1 << 40


def _field(path: str, name: str, default: int = _NO_LIMIT_MB, unit: int = 1 << 10) -> int:
    """Return a number of a file in /proc or /sys, in MiB; `unit` is how many of the file's units make one."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in read(path).splitlines():
            if line.startswith(name):
                return int(line.split()[1]) // unit
    return default
