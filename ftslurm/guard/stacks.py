"""What is a worker doing right now? Its stacks, written into its log, however stuck it is.

The worker registers Python's faulthandler for a real-time signal: a handler in C that needs neither the GIL nor the
main thread's help. A stopped worker is woken for a moment. What the kernel says about each thread is added by the
guard, so that even a worker that no signal reaches leaves something.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time

from ftslurm.guard import processes
from ftslurm.protocol.position import Position

SIGNAL = signal.SIGRTMIN + 7
PATIENCE_S = 0.8  # how long the stacks may take to arrive; the controller is told within a second


def register(position: Position, descriptor: int) -> None:
    """In the worker: from now on the signal writes all stacks to a copy of this file descriptor.

    A copy, because scripts close and replace stdout and stderr.
    """
    before, position.log = position.log, os.dup(descriptor)
    faulthandler.register(SIGNAL, file=position.log, all_threads=True, chain=False)
    if before:
        os.close(before)


def dump(pid: int, position: Position, log: str | None, who: str, by: str) -> None:
    """In the guard: have the worker write its stacks, and add what the kernel knows; takes at most a second.

    Args:
        log: the rank's log; None while the worker has none, then stderr is where both write.
        who: the worker, for the heading.
        by: who wants to know.
    """
    letter, place = processes.state(pid), position.read()
    where = f"step {place.step}, {place.stage.doing} for {place.since_s:.1f} s" if place else "before the script runs"
    heading = f"ftslurm: stacks of {who}, pid {pid}, state {letter or 'gone'}, {where}; asked for by {by}"
    kernel = "".join(f"ftslurm:   {line}\n" for line in processes.threads(pid))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        sink = os.dup(2) if log is None else os.open(log, flags, 0o600)
    except OSError:
        return  # the file system is gone; nothing can be left there
    with contextlib.suppress(OSError):
        os.write(sink, f"{heading}\nftslurm: its threads, as the kernel sees them:\n{kernel}".encode())
        if letter is None or letter == "Z":
            return
        if _listens(pid, position.log, sink):
            _ask(pid, sink, stopped=letter == "T")
        else:
            os.write(sink, b"ftslurm: no stacks: it does not take the signal for them\n")
    os.close(sink)


def _listens(pid: int, descriptor: int, sink: int) -> bool:
    """Whether the handler is there and would write into the very file that we have open, not into one of the script's
    that has taken the number."""
    if not descriptor or not processes.catches(pid, SIGNAL):
        return False
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/fd/{descriptor}"), os.fstat(sink))
    except OSError:
        return False


def _ask(pid: int, sink: int, stopped: bool) -> None:
    """Send the signal and wait until what it brings has been written."""
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
            break  # something has come, and nothing more
        time.sleep(0.002)
    if stopped:
        os.kill(pid, signal.SIGSTOP)  # it must not go on training before it is killed
    if last == size:
        os.write(sink, b"ftslurm: no stacks: it did not answer the signal\n")
