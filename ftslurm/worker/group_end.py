"""Ends what a process group of torchft does, so that nobody in this worker waits for it any longer.

Gloo       its connections are closed, and a collective that hangs all the same is given up (gloo_end.py).
NCCL, XCCL the communicators are aborted in a thread: an abort may take long or hang. Only the inner group is aborted:
           torchft's `abort` also forgets the group when it returns, by then perhaps the one of the next quorum.
           So it is with torch's own groups for nccl2 (native_group.py).
baby       the child process is killed. Who waits for its answer gets an end of file; who waits for one of its futures
           gets an error from here, because torchft leaves them alone and they would wait for their time-out.

The next quorum makes the group anew. A kind of which that is not known is left alone (torchft's ProcessGroupTorchComms
cannot be used again after its abort): who waits in it waits for its own time-out.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from typing import TYPE_CHECKING, Any

from ftslurm.checkpoint.devices import on_this_device

if TYPE_CHECKING:
    from ftslurm.worker.native_group import Native

IN_TORCH = "ftslurm_torch_"  # the names of threads that are in the middle of C++ code, perhaps for long


class Aborted(RuntimeError):
    """A process group was aborted because a member of its quorum is gone, or because of an error in it."""


def end(group: Any) -> None:
    """End what the group does. Returns at once; an error is not raised, because the group is broken already."""
    from ftslurm.worker import gloo_end  # imports this module

    with contextlib.suppress(Exception):
        group = innermost(group)
        if has_child(group):
            _kill_child(group)
        elif gloo_end.is_gloo(group):
            gloo_end.end(group)
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


def native_of(group: Any) -> Native | None:
    """Return what one of torch's own process groups was made with; None: it is none."""
    natives = sys.modules.get("ftslurm.worker.native_group")  # whoever makes one has imported it
    return natives.NATIVES.get(group) if natives and group is not None else None


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
