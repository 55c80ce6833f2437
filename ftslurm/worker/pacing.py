"""Slows the imports of a standby down while they take CPU time from the groups that train on the same node.

The sign of that is the process's own wait for a CPU (/proc/thread-self/schedstat): it counts the CPUs that this Slurm
step may use, and no others. On idle CPUs nothing is slowed down.

A lower CPU priority would be simpler, but a plain user cannot take it back, and the standby becomes the group: Linux
refuses a lower nice value, and with it the way from SCHED_IDLE to SCHED_OTHER, unless RLIMIT_NICE allows it (measured
on Linux 6.18 as a user other than root, RLIMIT_NICE=0: EPERM and EACCES). A thread of low priority that does the
imports would do, but pools of threads that libraries start while they are imported (OpenBLAS) would keep its priority,
and some modules can be imported only in the main thread. So the process pauses between modules instead.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

SHARE = 0.25  # of one CPU, on average, while others want the CPUs
CROWDED = 0.05  # they do if this process has waited for a CPU for more than this share of the time that it ran
LEAST_S = 0.02  # CPU time after which that is looked at
LONGEST_S = 2.0  # a pause; one module (libtorch) may take a second


def pause_s(ran_s: float, waited_s: float | None) -> float:
    """Return how long to pause after having run for `ran_s` and waited for a CPU for `waited_s` (None: unknown)."""
    if waited_s is not None and waited_s <= CROWDED * ran_s:
        return 0.0
    return min(ran_s * (1 / SHARE - 1), LONGEST_S)


class _Pauses:
    """A finder that finds nothing: Python asks it before each import, and it sleeps."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()  # that of all imports, but for what a library does
        self._ran, self._waited = time.thread_time(), _waited_s()

    def find_spec(self, *_: Any) -> None:
        ran_s = time.thread_time() - self._ran if threading.get_ident() == self._thread else 0.0
        if ran_s < LEAST_S:
            return
        waited = _waited_s()
        time.sleep(pause_s(ran_s, None if waited is None or self._waited is None else waited - self._waited))
        self._ran, self._waited = time.thread_time(), _waited_s()  # the wait for a CPU after a pause does not count


def _waited_s() -> float | None:
    """Return how long this thread has waited for a CPU, in all; None: this kernel does not tell."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            ran, waited, _ = file.read().split()
    except (OSError, ValueError):
        return None
    return int(waited) / 1e9 if int(ran) else None


@contextlib.contextmanager
def paced() -> Iterator[None]:
    """Import at most SHARE of the time in this block while the CPUs are wanted by others."""
    pauses = _Pauses()
    sys.meta_path.insert(0, pauses)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # a library has made a list of its own
            sys.meta_path.remove(pauses)
