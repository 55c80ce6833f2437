"""What a process has cost so far, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on, which is the third."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, in seconds, user and system, without its children."""
    fields = stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS
