"""Ends a Gloo process group at once, whatever it does.

torch itself cannot (2.13): its `abort` of a Gloo group does nothing, and dropping the last reference waits for all of
its collectives. They fail when a connection closes, but for two defects of Gloo. Each holds a collective until its
time-out although all peers are gone:

* A message for a collective that has failed already is never read, nor what comes after it on the connection, not even
  its end (`Pair::prepareRead` finds no buffer). This needs several collectives at a time.
* Who waits for a message that is partly sent or received is not told that the connection closes
  (`Pair::signalException`).

A receive that times out closes all connections of its group and tells who waits for them, so `end` begins a short one.
What the second defect still holds is not waited for: the collectives (`Collective`) are given up, and the last
reference is dropped in a thread, which ends at the latest with their time-out.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from ftslurm.worker import group_end

SETTLE_S = 1.0  # time for collectives to fail; after it none writes its tensors: whatever it sends or receives fails
TAG = 2**31 - 64  # of the first short receive; scripts and transports count from 0


@dataclass
class Life:
    """How long the collectives are waited for that a process group has begun, before it is made anew."""

    given_up_at: float = float("inf")


_lives: WeakKeyDictionary[Any, Life] = WeakKeyDictionary()


class Collective:
    """A collective of a Gloo group, as torch returned it, except that nobody waits for it when the group has ended."""

    def __init__(self, work: Any, life: Life) -> None:
        self._work, self._life = work, life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def wait(self, timeout: timedelta | None = None) -> Any:
        """Wait for it.

        Raises:
            Aborted: it hangs, and its group has ended or the time is over.
        """
        until = time.monotonic() + timeout.total_seconds() if timeout else float("inf")
        while not self._work.is_completed():
            if time.monotonic() > min(until, self._life.given_up_at):
                raise group_end.Aborted("a collective hangs: its time is over, or its process group has ended")
            with suppress(RuntimeError):  # its own is raised below
                self._work.wait(timedelta(seconds=SETTLE_S / 10))
        return self._work.wait()


def is_gloo(group: Any) -> bool:
    """Return whether it is a Gloo group, torchft's or one of torch's own (native_group.py)."""
    native = group_end.native_of(group)
    return isinstance(group, group_end.module().ProcessGroupGloo) if native is None else native.backend == "gloo"


def bounded(managed: Any, group: Any) -> Any:
    """Return what an allreduce of a Manager has returned; nobody waits for it for long after the group's end."""
    # torchft begins no work after an error.
    if hasattr(managed, "_work") and is_gloo(group := group_end.innermost(group)):
        over = getattr(group, "_pg", group) is None  # ended since the collective began
        managed._work = Collective(managed._work, Life(0.0) if over else _lives.setdefault(group, Life()))
    return managed


def end(group: Any) -> None:
    """End what the group does."""
    import torch  # a worker of a run that is not about tensors starts without it

    kept = [getattr(group, "_pg", group)]
    for number, _ in enumerate(os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")):  # each has its own connections
        with suppress(Exception):
            kept[0].recv_anysource([torch.empty(1)], TAG + number).wait(timedelta(milliseconds=1))
    _lives.setdefault(group, Life()).given_up_at = time.monotonic() + SETTLE_S
    if hasattr(group, "_pg"):  # torchft's, which is made anew for the next quorum
        _lives.pop(group, None)
        group.abort()
    threading.Thread(target=_drop, args=(kept,), name=f"{group_end.IN_TORCH}drop", daemon=True).start()


def _drop(kept: list[Any]) -> None:
    """Drop a group's last reference: the other threads have let go of it by then."""
    time.sleep(SETTLE_S)
    kept.clear()
