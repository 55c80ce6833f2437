"""What other users and tools see of this process: its command line, and the name that top shows."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable

PR_SET_NAME = 15


def hide(values: Iterable[str]) -> None:
    """Overwrite values in the command line. Never raises."""

    def without(line: bytes) -> bytes:
        for data in filter(None, map(os.fsencode, values)):
            line = line.replace(data, b"*" * len(data))
        return line

    _rewrite(without)


def of_rank(script: str, group: int, rank: int, attempt: int, guard: bool) -> None:
    """Say that this process is a rank of a group, or its guard, which has been started by the same command."""
    name = os.path.basename(script)
    what = f"{name} group {group} rank {rank} attempt {attempt}"
    _entitle(f"ftslurm guard: {what}" if guard else f"ftslurm: {what}", f"{group}.{rank}:{'guard' if guard else name}")


def of_run(role: str, run: str) -> None:
    """Say what this process is for a run: its controller, its keeper, a pilot, the Lighthouse."""
    _entitle(f"ftslurm {role}: {run}", f"ft:{role.lower()}")


def leave_process_tree() -> None:
    """Hide this process and what it starts from Slurm's proctrack/linuxproc; the death of its parent ends it.

    When a job ends, linuxproc signals all descendants of the batch process: it would end the sruns that the controller
    has in other jobs, and with them these jobs' steps. proctrack/pgid and proctrack/cgroup signal the batch process
    alone. linuxproc overlooks a process whose name has a blank, and so does not find its children (22.05).
    """
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_NAME, b"ft controller", 0, 0, 0)


def _entitle(title: str, short: str) -> None:
    """Put in front of the command line what the process is, for ps and pgrep -f; `short`: for top, in 15 bytes."""
    import ctypes

    _rewrite(lambda line: b"\0".join((os.fsencode(title), line))[: len(line) - 1] + b"\0")
    # Slurm's proctrack/linuxproc would not find a process whose name has a space, and leave it alive.
    name = os.fsencode(re.sub(r"[\s()]", "_", short))[:15]
    ctypes.CDLL(None).prctl(PR_SET_NAME, name, 0, 0, 0)


def _rewrite(change: Callable[[bytes], bytes]) -> None:
    """Replace the bytes of the command line by as many others."""
    import ctypes  # a hundredth of a second, which not all can spend

    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", "rb") as file:
            numbers = file.read().rpartition(b")")[2].split()
        begin, end = int(numbers[45]), int(numbers[46])  # arg_start and arg_end: fields 48 and 49 of proc(5)
        line = ctypes.string_at(begin, end - begin)
        with open("/proc/self/cmdline", "rb") as file:
            if file.read() == line:
                ctypes.memmove(begin, change(line), len(line))
