"""Slows the imports of a standby down, so that they take little from the groups that train on the same node.

A lower CPU priority would be simpler, but a plain user cannot take it back, and the standby becomes the group: Linux
refuses a lower nice value, and with it the way from SCHED_IDLE to SCHED_OTHER, unless RLIMIT_NICE allows it (measured
on Linux 6.18 as a user other than root, RLIMIT_NICE=0: EPERM and EACCES). A thread of low priority that does the
imports would do, but pools of threads that libraries start while they are imported (OpenBLAS) would keep its priority,
and some modules can be imported only in the main thread. So the process pauses between modules instead.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

SHARE = 0.25  # of one CPU, on average
LONGEST_S = 2.0  # one module (libtorch) may take a second


class _Pauses:
    """A finder that finds nothing: Python asks it before each import, and it sleeps."""

    def __init__(self) -> None:
        self._used = time.process_time()

    def find_spec(self, *_: Any) -> None:
        used = time.process_time()
        time.sleep(min((used - self._used) * (1 / SHARE - 1), LONGEST_S))
        self._used = used


@contextlib.contextmanager
def paced() -> Iterator[None]:
    """Import at most SHARE of the time in this block."""
    pauses = _Pauses()
    sys.meta_path.insert(0, pauses)
    try:
        yield
    finally:
        sys.meta_path.remove(pauses)
