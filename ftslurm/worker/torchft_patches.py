"""Patches for defects of torchft 0.2.0.

Each patch names a defect, the evidence for it, and when it is not applied: `after_import` tests the behaviour of the
installed torchft, whatever its version. tests/local/test_torchft_compat.py shows each defect without its patch and
fails when torchft no longer needs it.
"""

import abc
import functools
import importlib
import inspect
import os
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from ftslurm.worker import group_end, patch_fit

_applied_during_import: list[str] = []


def before_import() -> None:
    """Prepare the environment and the import system; call it before anything imports torchft.

    torchft's Rust half writes about six lines a step to stderr at its default level, info.
    """
    os.environ.setdefault("RUST_LOG", "warn")
    sys.meta_path.insert(0, _OtelFinder())


def after_import(left_out: list[str]) -> list[str]:
    """Apply the patches that the imported torchft needs; return their names.

    Args:
        left_out: gets a sentence for each patch that this torchft may need, but that does not fit it.
    """
    import torchft

    applied = list(_applied_during_import)
    for patch in _PATCHES:
        with patch_fit.optional(left_out, patch.name, patch.without):
            patch_fit.require(torchft, *patch.needs)
            if patch.is_needed(torchft):
                patch.mend(torchft)
                applied.append(patch.name)
    return applied


class _OtelFinder(MetaPathFinder):
    """Defect: with TORCHFT_USE_OTEL=true, `import torchft` raises TypeError under a current OpenTelemetry.

    Evidence: opentelemetry-sdk 1.45.2 declares `LogRecordExporter.force_flush` abstract and torchft's `TeeLogExporter`
    lacks it. torchft/__init__.py creates an exporter, so the class must be patched between its definition and that.
    Not applied: when the class is not abstract.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torchft.otel":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _OtelLoader(name, spec.loader.path)
        return spec


class _OtelLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        tee: Any = getattr(module, "TeeLogExporter", None)
        if "force_flush" in getattr(tee, "__abstractmethods__", ()):
            tee.force_flush = _flush_every_exporter
            abc.update_abstractmethods(tee)
            _applied_during_import.append("otel-force-flush")


def _flush_every_exporter(tee: Any, timeout_millis: int = 30_000) -> bool:
    flushed = [exporter.force_flush(timeout_millis) for exporter in tee._exporters]
    return all(flushed)


def _comm_hook_trusts_a_failed_allreduce(torchft: Any) -> bool:
    failed = SimpleNamespace(wait=lambda: False, get_future=lambda: SimpleNamespace(_fut=None))
    manager = SimpleNamespace(allreduce=lambda _: failed)
    try:
        torchft.ddp.DistributedDataParallel._comm_hook(manager, SimpleNamespace(buffer=lambda: None))
    except (AssertionError, AttributeError):
        return True
    return False


def _mend_comm_hook(torchft: Any) -> None:
    """Defect: a group that dies inside the gradients' allreduce takes every other group with it.

    Evidence: `_ManagedWork.wait` swallows the error and returns False without building the inner future; the hook of
    0.2.0 ignores the False and asserts the future: AssertionError in every survivor's backward(). After a first error
    `Manager.allreduce` returns a `_DummyWork`, whose future has no `_fut` either.
    Not applied: when the original hook survives a failed allreduce (torchft-nightly 2026.10.26 does).
    """
    import torch

    @functools.wraps(torchft.ddp.DistributedDataParallel._comm_hook)  # torch's DDP checks the hook's annotations
    def comm_hook(manager: Any, bucket: Any) -> Any:
        buffer = bucket.buffer()
        work = manager.allreduce(buffer)
        inner = getattr(work.get_future(), "_fut", None) if work.wait() else None
        if inner is None:  # the buffer's content no longer matters: should_commit will refuse this step
            inner = torch.futures.Future()
            inner.set_result(buffer)
        return inner

    torchft.ddp.DistributedDataParallel._comm_hook = staticmethod(comm_hook)


def _errors_leave_peers_waiting(torchft: Any) -> bool:
    aborts: list[str] = []
    manager = SimpleNamespace(_errored=None, _pg=SimpleNamespace(abort=lambda *_, **__: aborts.append("abort")))
    torchft.manager.Manager.report_error(manager, RuntimeError("detection"))
    return not aborts


def _abort_on_error(torchft: Any) -> None:
    """Defect: with four groups or more, a death makes the others wait for the process group's time-out.

    Evidence: Gloo's allreduce is a ring. Only the neighbours of the dead group see its connections close; they report
    the error and ask for the next quorum, but keep their own connections. So a group further round the ring still waits
    in the collective, and they wait for it in the quorum. Measured with 4 groups: survivors stalled 10.2 s, which was
    the process group's time-out, whatever the Lighthouse's timing. With the patch, the first error of a step closes
    this group's connections. The same holds for rings of NCCL, and for process groups in a child process
    (group_end.py).
    Not applied: when report_error aborts the process group by itself.
    """
    original = torchft.manager.Manager.report_error

    @functools.wraps(original)
    def report_error(manager: Any, e: Exception) -> None:
        first = manager._errored is None
        original(manager, e)
        if first:
            group_end.end(manager._pg)  # it is rebuilt for the next quorum

    torchft.manager.Manager.report_error = report_error


def _later_futures_find_no_callback(torchft: Any) -> bool:
    # Reads the source: running it would take a child process.
    work = getattr(torchft.manager, "_ManagedWork", None)
    return work is not None and "nonlocal managed_fut" in inspect.getsource(work._set_future_callback)


def _await_futures_of_children(_: Any) -> None:
    """Defect: with a process group in a child process (baby) no step is ever committed.

    Evidence: the callbacks of `_ManagedWork` look up their link of the chain when they run, and the loop that builds
    the chain has passed it by then, unless the future is done already: "AssertionError" at `managed_fut._callback`. The
    futures of other process groups are done, because the work was waited for; those of a child come later.
    Not applied: when the callbacks do not share the variable.
    """
    baby: Any = importlib.import_module("torchft.process_group").ProcessGroupBaby
    original = baby._get_future

    @functools.wraps(original)
    def get_future(group: Any, op_id: int, stream: Any) -> Any:
        future, done = original(group, op_id, stream), threading.Event()
        future.add_done_callback(lambda _: done.set())
        done.wait(group._timeout)
        return future

    baby._get_future = get_future


def _pure_ddp_never_waits(torchft: Any) -> bool:
    # The test calls the gradient's hook itself: a real backward() starts autograd's threads, and then a script that
    # forks cannot use autograd in its children.
    waits: list[object] = []
    manager = SimpleNamespace(allreduce=lambda _: SimpleNamespace(wait=lambda *timeout: waits.append(timeout)))
    parameter = SimpleNamespace(grad=object())
    parameter.register_post_accumulate_grad_hook = lambda hook: hook(parameter)
    torchft.ddp.PureDistributedDataParallel(manager, SimpleNamespace(parameters=lambda: [parameter]))
    return not waits


def _refuse_pure_ddp(torchft: Any) -> None:
    """Defect: the replicas of a `PureDistributedDataParallel` silently diverge from the first step.

    Evidence: it drops the work of `Manager.allreduce`. The sum arrives at a random time before or after the optimizer's
    step; the division by the number of groups, which `wait` does, never happens; an error is not noticed.
    Not applied: when its gradient hook waits. Until then it cannot be used safely, so constructing one is refused.
    """

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError(
            "torchft.ddp.PureDistributedDataParallel never waits for its allreduce in this version of torchft: the "
            "replica groups would silently train different models. Use torchft.DistributedDataParallel instead."
        )

    torchft.ddp.PureDistributedDataParallel.__init__ = refuse


def _manager_ignores_the_variable(torchft: Any) -> bool:
    # Reads the source: running a Manager needs a server and, on a GPU, creates a CUDA context. An unneeded patch is
    # harmless.
    return "connect_timeout=connect_timeout" in inspect.getsource(torchft.manager.Manager.__init__)


def _honour_connect_timeout(torchft: Any) -> None:
    """Defect: TORCHFT_CONNECT_TIMEOUT_SEC is read, but not used to connect.

    Evidence: ManagerServer and ManagerClient get the constructor's argument (torchft/manager.py:330, 338), only the
    client of a heal gets the variable's value: with 2 in the environment and 12 as argument, giving up took 19 s.
    Not applied: when `Manager.__init__` no longer passes on the bare argument. With the patch, the variable overrides
    the argument, as torchft's other variables do.
    """

    def edit(arguments: dict[str, Any]) -> None:
        if seconds := os.environ.get("TORCHFT_CONNECT_TIMEOUT_SEC"):
            arguments["connect_timeout"] = timedelta(seconds=int(seconds))

    edit_arguments(torchft.manager.Manager, edit)


def _heartbeats_may_be_fewer(_: Any) -> bool:
    return "FTSLURM_MANAGER_HEARTBEAT_MS" in os.environ


def _send_fewer_heartbeats(torchft: Any) -> None:
    """Defect: each manager sends ten heartbeats a second, which nobody needs who is told of deaths.

    Evidence: with steps of a second they are ten of eleven requests to the Lighthouse (benchmarks/scale_lighthouse.py).
    Not applied: with torchft's Lighthouse, which knows of a death only by silence, and to a Manager whose script passes
    a heartbeat_interval.
    """
    interval = timedelta(milliseconds=int(os.environ["FTSLURM_MANAGER_HEARTBEAT_MS"]))
    edit_arguments(torchft.manager.Manager, lambda arguments: arguments.setdefault("heartbeat_interval", interval))


def _sessions_end_with_an_error(_: Any) -> bool:
    # Reads the source: running it would take a server, a client and two ports. An unneeded patch hides nothing else.
    server = importlib.import_module("torchft.parameter_server")
    return "self.finish()" in inspect.getsource(server.ParameterServer.__init__)


def _let_sessions_end(_: Any) -> None:
    """Defect: every session of a ParameterServer ends with a traceback on stderr, also without an error.

    Evidence: its request handler closes the connection before it runs the session, and http.server flushes it after
    that: "ValueError: I/O operation on closed file". torchft itself logs the exceptions of `forward`.
    Not applied: when the handler no longer calls `finish` by itself.
    """
    server: Any = importlib.import_module("torchft.parameter_server")

    class QuietServer(server._IPv6HTTPServer):  # type: ignore[misc]
        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exc_info()[1], ValueError):
                super().handle_error(request, client_address)

    server._IPv6HTTPServer = QuietServer


def edit_arguments(manager_class: Any, edit: Callable[[dict[str, Any]], None]) -> None:
    """Have `edit` change the arguments of each new Manager. It gets those that the script gives, by name."""
    original = manager_class.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> None:
        call = signature.bind(*args, **kwargs)
        edit(call.arguments)
        original(*call.args, **call.kwargs)

    manager_class.__init__ = init


class _Patch(NamedTuple):
    name: str
    is_needed: Callable[[Any], bool]
    mend: Callable[[Any], None]
    needs: tuple[str, ...]  # internals of the package torchft, see patch_fit.require
    without: str  # consequence for the user without the patch


_PATCHES = (
    _Patch(
        "ddp-comm-hook",
        _comm_hook_trusts_a_failed_allreduce,
        _mend_comm_hook,
        ("ddp.DistributedDataParallel._comm_hook(state, bucket)",),
        "the death of one group may end the scripts of the others, which use torchft's DistributedDataParallel",
    ),
    _Patch(
        "pure-ddp",
        _pure_ddp_never_waits,
        _refuse_pure_ddp,
        ("ddp.PureDistributedDataParallel(manager, module)",),
        "with PureDistributedDataParallel groups may train different models: use DistributedDataParallel",
    ),
    _Patch(
        "abort-on-error",
        _errors_leave_peers_waiting,
        _abort_on_error,
        (
            "manager.Manager.report_error(e)",
            "manager.Manager._errored",
            "manager.Manager._pg",
            "process_group.ProcessGroupWrapper.abort()",
        ),
        "with four groups or more the survivors of a death may wait for the process group's time-out",
    ),
    _Patch(
        "baby-future",
        _later_futures_find_no_callback,
        _await_futures_of_children,
        ("process_group.ProcessGroupBaby._get_future(op_id, stream)", "process_group.ProcessGroupBaby._timeout"),
        "with a process group in a child process (ProcessGroupBaby...) no step may be committed",
    ),
    _Patch(
        "connect-timeout",
        _manager_ignores_the_variable,
        _honour_connect_timeout,
        ("manager.Manager(connect_timeout)",),
        "TORCHFT_CONNECT_TIMEOUT_SEC may be ignored",
    ),
    _Patch(
        "heartbeats",
        _heartbeats_may_be_fewer,
        _send_fewer_heartbeats,
        ("manager.Manager(heartbeat_interval)",),
        "the Lighthouse takes more CPU time with hundreds of groups",
    ),
    _Patch(
        "session-end",
        _sessions_end_with_an_error,
        _let_sessions_end,
        (),
        "each session of a ParameterServer may end with a traceback in the log, which means nothing",
    ),
)
