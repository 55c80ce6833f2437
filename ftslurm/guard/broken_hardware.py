"""Tells whether broken hardware is why a worker has ended, from the kernel log and from the end of the worker's log."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from ftslurm.guard import gpus, kernel_log
from ftslurm.guard.gpus import Gpu
from ftslurm.run.last_words import is_error, telling_end
from ftslurm.run.log_signs import find
from ftslurm.security.terminal import visible as printable

RECENT_S = 120.0  # a line of the kernel log that is older does not explain why a worker ends by itself
LONG_AGO_S = 3600.0  # the same for a worker that hangs
_MOST = 1000  # lines of the kernel log that are kept
_LONGEST = 200  # characters of what is told
_SOURCE = re.compile(r"(\[rank\d+\]: )?\s+(?!what\(\):|\|)\S")  # in a traceback


class KernelWatch:
    """The kernel's lines while a worker runs, with the times at which they were read."""

    def __init__(self, tail: kernel_log.Tail) -> None:
        self.tail = tail
        self.gpus = gpus.known() if tail.readable else []  # now: the driver may not answer about a GPU that is lost
        self.lines: deque[tuple[float, str]] = deque(maxlen=_MOST)

    def update(self) -> None:
        """Read what the kernel has written; guards call it every second."""
        if self.tail.readable:
            now = time.monotonic()
            self.lines.extend((now, line) for line in self.tail.lines())

    def since(self, seconds: float) -> list[str]:
        """Return the lines of the last seconds."""
        self.update()
        earliest = time.monotonic() - seconds
        return [line for read, line in self.lines if read >= earliest]


def in_kernel_log(lines: Iterable[str], there: Sequence[Gpu], own: Sequence[Gpu | None]) -> str:
    """Return the latest line of the kernel log that blames the node's hardware, with the GPU; empty: there is none.

    Args:
        lines: of the kernel log.
        there: the node's GPUs.
        own: those of the worker; others are of other ones. Empty, or None among them: not known.
    """
    for fault in reversed(kernel_log.parse(lines)):
        gpu = next((one for one in there if one.address == fault.gpu), None)
        if not (gpu is None or not own or None in own or gpu in own):
            continue
        is_xid = fault.sign.name.startswith("XID ")
        what = f"{fault.sign.name}, {fault.sign.meaning}" if is_xid else fault.text
        where = "" if fault.gpu is None else f"GPU {fault.gpu}"
        where += "" if gpu is None else f" ({gpu.device})"
        return f"{where}: {what}"[:_LONGEST] if where else f"the kernel says: {what}"[:_LONGEST]
    return ""


def in_log(text: str, local_rank: int | None) -> str:
    """Return the last line of a script's output that blames the node's hardware; empty: there is none.

    Args:
        text: the end of the output.
        local_rank: the worker's number on its node, which is said with the line.
    """
    for raw in reversed(re.split(r"[\r\n]+", text)):
        if not (is_error(raw) or "NCCL WARN" in raw or raw.startswith("NVRM: ")) or _SOURCE.match(raw):
            continue  # the data and the source of a training may speak of broken GPUs
        if find(raw) is not None:
            who = "before it had a rank" if local_rank is None else f"local rank {local_rank}"
            return f"{who}: {printable(raw.strip())}"[:_LONGEST]
    return ""


def report(
    kernel: KernelWatch, seconds: float, log: str | None, local_rank: int | None, environ: Mapping[str, str]
) -> str:
    """Return the line that blames the node's hardware for the end of a worker; empty: there is none.

    The kernel log knows best which GPU it is.

    Args:
        kernel: what the kernel has written.
        seconds: how old its lines may be.
        log: the worker's log.
        local_rank: the worker's number on its node.
        environ: of the worker.
    """
    lines = kernel.since(seconds)
    told = in_kernel_log(lines, kernel.gpus, gpus.visible(environ, kernel.gpus)) if lines else ""
    if told or log is None:
        return told
    return in_log(telling_end(log), local_rank)


def shared_memory(folder: str = "/dev/shm") -> str:  # noqa: S108 nothing is written there
    """Return the hint that the node's shared memory is full, the usual reason for a bus error; empty: it is not."""
    with suppress(OSError):
        disk = os.statvfs(folder)
        free, size = disk.f_bavail * disk.f_frsize >> 20, disk.f_blocks * disk.f_frsize >> 20
        if free < max(16, size // 100):
            return f"{folder} is full: {free} MB of {size} MB are free (fewer DataLoader workers, or a larger one)"
    return ""
