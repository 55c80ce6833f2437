"""Writes the stacks of a worker to its log: when it crashes, and when somebody asks, also if it is stuck.

The worker registers Python's faulthandler for a real-time signal: a handler in C, which needs neither the GIL nor the
main thread. A stopped worker is continued for a moment. The guard adds the kernel's view of each thread, which is
available even if no signal reaches the worker.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
from pathlib import Path

from ftslurm.guard import processes
from ftslurm.protocol.position import Position
from ftslurm.protocol.traces import STACKS
from ftslurm.security import owned_files

SIGNAL = signal.SIGRTMIN + 7
PATIENCE_S = 0.8  # longest wait for the stacks; the controller gets its answer within a second


def register(position: Position, descriptor: int) -> None:
    """Have the signal write all stacks to a copy of this file descriptor, and a crash to itself; called in the worker.

    It is a copy because scripts close and replace stdout and stderr; `dump` sees whether they have closed that, too.
    """
    faulthandler.enable(descriptor)
    before, position.log = position.log, os.dup(descriptor)
    faulthandler.register(SIGNAL, file=position.log, all_threads=True, chain=False)
    if before:
        os.close(before)


def dump(pid: int, position: Position, log: str | None, who: str, by: str) -> int | None:
    """Have the worker write its stacks, and add the kernel's view; called in the guard. Takes at most a second.

    Returns how many bytes they are; None: the log cannot be written.

    Args:
        log: the rank's log; None: the worker has none yet, and both write to stderr.
        who: the name of the worker, for the heading.
        by: the requester, for the heading.
    """
    letter, place = processes.state(pid), position.read()
    where = f"step {place.step}, {place.stage.doing} for {place.since_s:.1f} s" if place else "before the script runs"
    heading = f"{STACKS}{who}, pid {pid}, state {letter or 'gone'}, {where}; asked for by {by}"
    kernel = "".join(f"ftslurm:   {line}\n" for line in processes.threads(pid))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        sink = os.dup(2) if log is None else owned_files.open_fd(Path(log), flags)
    except OSError:
        return None  # the file system is gone
    with os.fdopen(sink, "wb", 0), contextlib.suppress(OSError):
        size = os.fstat(sink).st_size
        os.write(sink, f"{heading}\nftslurm: its threads, as the kernel sees them:\n{kernel}".encode())
        if letter not in (None, "Z"):
            if _listens(pid, position.log, sink):
                _ask(pid, sink, stopped=letter == "T")
            else:
                os.write(sink, b"ftslurm: no stacks: it does not take the signal for them\n")
        return os.fstat(sink).st_size - size
    return None


def _listens(pid: int, descriptor: int, sink: int) -> bool:
    """Return whether the handler is registered and its descriptor is still the log, not a file of the script's."""
    if not descriptor or not processes.catches(pid, SIGNAL):
        return False
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/fd/{descriptor}"), os.fstat(sink))
    except OSError:
        return False


def _ask(pid: int, sink: int, stopped: bool) -> None:
    """Send the signal and wait until the stacks are written."""
    size = os.fstat(sink).st_size
    os.kill(pid, SIGNAL)
    if stopped:
        os.kill(pid, signal.SIGCONT)
    start = changed = time.monotonic()
    last = size
    while (now := time.monotonic()) < start + PATIENCE_S:
        grown = os.fstat(sink).st_size
        if grown != last:
            last, changed = grown, now
        elif grown != size and now > changed + 0.03:
            break  # the stacks are complete
        time.sleep(0.002)
    if stopped:
        os.kill(pid, signal.SIGSTOP)  # it must not go on training before it is killed
    if last == size:
        os.write(sink, b"ftslurm: no stacks: it did not answer the signal\n")
