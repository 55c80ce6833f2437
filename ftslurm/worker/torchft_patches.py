"""Mends defects of torchft 0.2.0.

Each patch names a defect, the evidence for it, and when it is not applied: that is read from what the installed torchft
has, whatever its version. tests/local/test_torchft_compat.py shows each defect without its patch and fails when
torchft no longer needs it. private_names.py has the names that the patches need, and the consequence without each.
"""

from __future__ import annotations

import abc
import functools
import importlib
import inspect
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ftslurm.worker import group_end
from ftslurm.worker.private_names import Patch


def before_import() -> None:
    """Prepare the environment and OpenTelemetry; call it before anything imports torchft.

    torchft's Rust half writes about six lines a step to stderr at its default level, info.

    Defect: with TORCHFT_USE_OTEL=true, `import torchft` raises TypeError under a current OpenTelemetry.
    Evidence: opentelemetry-sdk 1.45.2 declares `LogRecordExporter.force_flush` abstract and torchft's exporter, which
    keeps nothing that could be flushed, lacks it.
    Not applied: when the method is not abstract.
    """
    os.environ.setdefault("RUST_LOG", "warn")
    with suppress(ImportError):
        exporter: Any = getattr(importlib.import_module("opentelemetry.sdk._logs.export"), "LogRecordExporter", None)
        if "force_flush" in getattr(exporter, "__abstractmethods__", ()):
            exporter.force_flush = lambda *_: True
            abc.update_abstractmethods(exporter)


def mend_comm_hook() -> None:
    """Defect: a group that dies inside the gradients' allreduce takes every other group with it.

    Evidence: `_ManagedWork.wait` swallows the error and returns False without building the inner future; the hook of
    0.2.0 ignores the False and asserts the future: AssertionError in every survivor's backward(). After a first error
    `Manager.allreduce` returns a `_DummyWork`, whose future has no `_fut` either.
    Not applied: to torchft 0.3, whose `_ManagedWork` has mended it (its hook is the same).
    """
    if not hasattr(group_end.module().ProcessGroup, "configure"):  # torchft 0.3
        return
    import torch

    kind: Any = importlib.import_module("torchft.ddp").DistributedDataParallel

    @functools.wraps(kind._comm_hook)  # torch's DDP checks the hook's annotations
    def comm_hook(manager: Any, bucket: Any) -> Any:
        buffer = bucket.buffer()
        work = manager.allreduce(buffer)
        inner = getattr(work.get_future(), "_fut", None) if work.wait() else None
        if inner is None:  # the buffer's content no longer matters: should_commit will refuse this step
            inner = torch.futures.Future()
            inner.set_result(buffer)
        return inner

    kind._comm_hook = staticmethod(comm_hook)


def await_futures_of_children() -> None:
    """Defect: with a process group in a child process (baby) no step is ever committed.

    Evidence: the callbacks of `_ManagedWork` look up their link of the chain when they run, and the loop that builds
    the chain has passed it by then, unless the future is done already: "AssertionError" at `managed_fut._callback`. The
    futures of other process groups are done, because the work was waited for; those of a child come later.
    Not applied: when the callbacks do not share the variable. That is read in the source: running it would take a child
    process.
    """
    work: Any = importlib.import_module("torchft.manager")._ManagedWork
    if "nonlocal managed_fut" not in inspect.getsource(work._set_future_callback):
        return
    baby: Any = importlib.import_module("torchft.process_group").ProcessGroupBaby
    original = baby._get_future

    @functools.wraps(original)
    def get_future(group: Any, op_id: int, stream: Any) -> Any:
        future, done = original(group, op_id, stream), threading.Event()
        future.add_done_callback(lambda _: done.set())
        done.wait(group._timeout)
        return future

    baby._get_future = get_future


def refuse_pure_ddp() -> None:
    """Defect: the replicas of a `PureDistributedDataParallel` silently diverge from the first step.

    Evidence: it drops the work of `Manager.allreduce`. The sum arrives at a random time before or after the optimizer's
    step; the division by the number of groups, which `wait` does, never happens; an error is not noticed.
    Not applied: when the source of its constructor, where the gradients' hook is, waits. Until then it cannot be used
    safely, so constructing one is refused.
    """
    kind: Any = importlib.import_module("torchft.ddp").PureDistributedDataParallel
    if ".wait(" in inspect.getsource(kind.__init__):
        return

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError(
            "torchft.ddp.PureDistributedDataParallel never waits for its allreduce in this version of torchft: the "
            "replica groups would silently train different models. Use torchft.DistributedDataParallel instead."
        )

    kind.__init__ = refuse


INSTALLS: dict[Patch, Callable[[], None]] = {
    Patch.COMM_HOOK: mend_comm_hook,
    Patch.PURE_DDP: refuse_pure_ddp,
    Patch.BABY_FUTURES: await_futures_of_children,
}
