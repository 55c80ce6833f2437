"""Ends what a process group of torchft does, so that nobody in this worker waits for it any longer.

Gloo       torchft's own abort closes its connections. It is done where it is asked for.
NCCL, XCCL the communicators are aborted in a thread: an abort may take long or hang. Only the inner group is aborted:
           torchft's `abort` also forgets the group when it returns, by then perhaps the one of the next quorum.
baby       the child process is killed. Who waits for its answer gets an end of file; who waits for one of its futures
           gets an error from here, because torchft leaves them alone and they would wait for their time-out.

The next quorum makes the group anew.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

CHILD = ("_p", "_futures", "_futures_lock")  # what a baby group has
NATIVE = ("torchft-nccl", "torchft-xccl")  # names of torchft's groups whose abort may take long


class Aborted(RuntimeError):
    """A process group was aborted because a member of its quorum is gone, or because of an error in it."""


def end(group: Any) -> None:
    """End what the group does. Returns at once; an error is not raised, because the group is broken already."""
    with contextlib.suppress(Exception):
        if all(hasattr(group, name) for name in CHILD):
            _kill_child(group)
        elif _name(group) in NATIVE:
            group._errored = Aborted("aborted by ftslurm")  # before the abort, as torchft does: it unblocks the stream
            threading.Thread(target=_abort, args=(group._pg,), name="ftslurm_abort_nccl", daemon=True).start()
        else:
            group.abort()


def _name(group: Any) -> str:
    return str(group.getBackendName()) if hasattr(group, "getBackendName") else ""


def _abort(inner: Any) -> None:
    with contextlib.suppress(Exception):
        inner.abort()


def _kill_child(group: Any) -> None:
    child = group._p
    if child is not None:
        child.kill()
    with group._futures_lock:
        waiting, group._futures = group._futures, {}
    for one in waiting.values():
        with contextlib.suppress(Exception):
            one.future.set_exception(Aborted("the process of its process group was killed"))
