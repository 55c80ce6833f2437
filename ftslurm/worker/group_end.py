"""Ends what a process group of torchft does, so that nobody in this worker waits for it any longer.

Gloo       its connections are closed, and a collective that hangs all the same is given up (see below).
NCCL, XCCL the communicators are aborted in a thread: an abort may take long or hang. Only the inner group is aborted:
           torchft's `abort` also forgets the group when it returns, by then perhaps the one of the next quorum.
           So it is with torch's own groups for nccl2 (native_group.py).
baby       the child process is killed. Who waits for its answer gets an end of file; who waits for one of its futures
           gets an error from here, because torchft leaves them alone and they would wait for their time-out.

The next quorum makes the group anew. A kind of which that is not known is left alone (torchft's ProcessGroupTorchComms
cannot be used again after its abort): who waits in it waits for its own time-out.

Gloo
----

torch cannot end a Gloo group (2.13): its `abort` does nothing, and dropping the last reference waits for all of
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

import importlib
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from ftslurm.checkpoint.devices import on_this_device

SETTLE_S = 1.0  # time for collectives to fail; after it none writes its tensors: whatever it sends or receives fails
TAG = 2**31 - 64  # of the first short receive; scripts and transports count from 0
natives: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # what each of torch's own groups was made with
IN_TORCH = "ftslurm_torch_"  # the names of threads that are in the middle of C++ code, perhaps for long


class Aborted(RuntimeError):
    """A process group was aborted because a member of its quorum is gone, or because of an error in it."""


def end(group: Any) -> None:
    """End what the group does. Returns at once; an error is not raised, because the group is broken already."""
    with suppress(Exception):
        group = innermost(group)
        if has_child(group):
            _kill_child(group)
        elif is_gloo(group):
            _end_gloo(group)
        elif native_of(group) is not None:
            start_abort(group)
        elif not isinstance(group, module().ProcessGroupWrapper):
            return
        elif hasattr(group, "_errored"):  # a group of GPUs, whose abort may take long
            group._errored = Aborted("aborted by ftslurm")  # before the abort, as torchft does: it unblocks the stream
            start_abort(group._pg)
        else:
            group.abort()


def has_child(group: Any) -> bool:
    """Return whether a process group works in a child process (baby)."""
    return isinstance(group, module().ProcessGroupBaby)


def native_of(group: Any) -> Any:
    """Return what one of torch's own process groups was made with (native_group.py); None: it is none."""
    return natives.get(group) if natives and group is not None else None


def hold_exit() -> bool:
    """Tell whether threads are in torch: an ordinary exit of Python would kill them there, and so this process."""
    return any(thread.name.startswith(IN_TORCH) for thread in threading.enumerate())


def innermost(group: Any) -> Any:
    """Return the process group to which one passes everything on, such as ErrorSwallowingProcessGroupWrapper."""
    while isinstance(inner := getattr(group, "_pg", None), module().ProcessGroup):
        group = inner
    return group


def module() -> Any:
    """Return torchft's module of process groups."""
    return importlib.import_module("torchft.process_group")


def start_abort(inner: Any) -> None:
    """Abort the communicators of one of torch's groups in a thread."""
    threading.Thread(target=on_this_device(_abort), args=(inner,), name=f"{IN_TORCH}abort", daemon=True).start()


def _abort(inner: Any) -> None:
    with suppress(Exception):
        inner.abort()


def _kill_child(group: Any) -> None:
    child = group._p
    if child is not None:
        child.kill()
    with group._futures_lock:
        waiting, group._futures = group._futures, {}
    for one in waiting.values():
        with suppress(Exception):
            one.future.set_exception(Aborted("the process of its process group was killed"))


# --- Gloo -------------------------------------------------------------------------------------------------------------


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
                raise Aborted("a collective hangs: its time is over, or its process group has ended")
            with suppress(RuntimeError):  # its own is raised below
                self._work.wait(timedelta(seconds=SETTLE_S / 10))
        return self._work.wait()


def is_gloo(group: Any) -> bool:
    """Return whether it is a Gloo group, torchft's or one of torch's own (native_group.py)."""
    native = native_of(group)
    return isinstance(group, module().ProcessGroupGloo) if native is None else native.backend == "gloo"


def bounded(managed: Any, group: Any) -> Any:
    """Return what an allreduce of a Manager has returned; nobody waits for it for long after the group's end."""
    # torchft begins no work after an error.
    if hasattr(managed, "_work") and is_gloo(group := innermost(group)):
        over = getattr(group, "_pg", group) is None  # ended since the collective began
        managed._work = Collective(managed._work, Life(0.0) if over else _lives.setdefault(group, Life()))
    return managed


def _end_gloo(group: Any) -> None:
    """End what a Gloo group does."""
    import torch  # a worker of a run that is not about tensors starts without it

    kept = [getattr(group, "_pg", group)]
    for number, _ in enumerate(os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")):  # each has its own connections
        with suppress(Exception):
            kept[0].recv_anysource([torch.empty(1)], TAG + number).wait(timedelta(milliseconds=1))
    _lives.setdefault(group, Life()).given_up_at = time.monotonic() + SETTLE_S
    if hasattr(group, "_pg"):  # torchft's, which is made anew for the next quorum
        _lives.pop(group, None)
        group.abort()
    threading.Thread(target=_drop, args=(kept,), name=f"{IN_TORCH}drop", daemon=True).start()


def _drop(kept: list[Any]) -> None:
    """Drop a group's last reference: the other threads have let go of it by then."""
    time.sleep(SETTLE_S)
    kept.clear()
