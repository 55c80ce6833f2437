"""The Manager of a run: `from torchft import Manager` gives the script RunManager.

It is torchft's, and each override calls torchft's own method. What it adds: progress.py, unhealed.py and commits.py
look on; buffers.py averages buffers; lineage_guard.py checks each answer about a quorum before torchft uses it; the
first error of a step ends what the process group does (group_end.py); one of torch's own meets the others in the
quorum's store (native_group.py).
Import it late: it imports torchft.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from ftslurm.worker import buffers, group_end
from ftslurm.worker.closed_servers import Client

if TYPE_CHECKING:
    from ftslurm.worker.session import Watchers

Base: Any = importlib.import_module("torchft.manager").Manager


class RunManager(Base):  # type: ignore[misc]
    """torchft's Manager, watched."""

    _ftslurm: ClassVar[Watchers]  # the one name beside torchft's: scripts have names of their own in subclasses
    _client: Any
    _pg: Any

    @functools.wraps(Base.__init__)  # type: ignore[misc]  # some frameworks read its arguments
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        call = inspect.signature(Base).bind(*args, **kwargs)
        choose(call)
        self._ftslurm.unhealed.over = True
        super().__init__(*call.args, **call.kwargs)
        self._client = Client(self._client, has_stepped=lambda: self._ftslurm.lineage.reached())
        self._ftslurm.quorums.cover(self._pg)

    def start_quorum(self, *args: Any, **kwargs: Any) -> None:
        """Load first what the last quorum's thread has fetched: torchft forgets it if the script has not voted."""
        if self._quorum_future is not None:
            self._quorum_future.result()
        if self._healing and self._pending_state_dict is not None:
            self._apply_pending_state_dict()
        if self._ftslurm.compared is not None:
            self._ftslurm.compared.step_begins(self)
        if self._ftslurm.beside is not None:
            self._ftslurm.beside.step_begins(self)
        self._ftslurm.commits.step_begins()
        self._ftslurm.progress.seeks_quorum(self)
        super().start_quorum(*args, **kwargs)

    def _async_quorum(self, allow_heal: bool = True, *args: Any, **kwargs: Any) -> None:
        watchers, beside = self._ftslurm, self._ftslurm.beside

        def answered(quorum: Any) -> None:
            watchers.lineage.check(self, allow_heal, quorum)
            if beside is not None:
                beside.answered(self, quorum, allow_heal)
                self._client.quorum = quorum
            watchers.quorums.joined.quorum = quorum.quorum_id
            if os.environ.get("FTSLURM_LIGHTHOUSE") == "torchft":
                # Its ids begin anew when it is relaunched: what members of an earlier quorum of this id have left in
                # the store is elsewhere.
                quorum.store_address = f"{quorum.store_address}/{quorum.max_step}"
            if (native := group_end.native_of(self._pg)) is not None:
                native.address = f"{quorum.store_address}/torchft/{quorum.quorum_id}/{self._group_rank}"

        watchers.lineage.managers.add(self)
        self._client.answered = answered
        super()._async_quorum(allow_heal, *args, **kwargs)
        if beside is not None:
            beside.has_quorum(self, self._client.quorum, allow_heal)
        watchers.progress.has_quorum(self)

    def _reconfigure_pg(self, communicator_id: int, handles: list[str]) -> None:
        """Set up the process group for a quorum (torchft 0.3)."""
        if (native := group_end.native_of(self._pg)) is None:
            super()._reconfigure_pg(communicator_id, handles)
            return
        options = importlib.import_module("torchft.process_group").ReconfigureOptions()
        options.uuid, options.handles, options.timeout = communicator_id, handles, self._timeout
        native.meet(self._pg, self._ftslurm.quorums, options)

    def disallow_state_dict_read(self) -> None:
        """Forbid that a group heals from this one, between two syncs of LocalSGD and DiLoCo."""
        if self._ftslurm.compared is not None:
            self._ftslurm.compared.trains_apart(self)
        super().disallow_state_dict_read()

    def _apply_pending_state_dict(self) -> None:
        if self._ftslurm.compared is not None:
            self._ftslurm.compared.state_changes(self)
        if self._ftslurm.beside is not None:
            self._ftslurm.beside.completes(self)
        loads = self._pending_state_dict is not None
        super()._apply_pending_state_dict()
        if self._ftslurm.beside is not None and loads:
            self._ftslurm.beside.loaded(self)

    def wait_quorum(self) -> None:
        """Wait for the quorum."""
        began = time.monotonic()
        super().wait_quorum()
        self._ftslurm.progress.has_waited(self, time.monotonic() - began)

    def allreduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Average a tensor: the same memory, as a tensor that needs no gradient.

        LocalSGD averages clones of weights, which need one. For such a tensor torch (2.11 and 2.13) adds a hook when
        Gloo has begun already. Gloo's thread, which copies the average of a tensor on a GPU into it, removes all hooks
        at that moment: the process dies of SIGSEGV.
        """
        self._ftslurm.progress.reduces(self, tensor)
        self._ftslurm.commits.averaged = True
        group = self._pg
        if getattr(tensor, "requires_grad", False):
            tensor = tensor.detach()
        return group_end.bounded(super().allreduce(tensor, *args, **kwargs), group)

    def report_error(self, e: Exception) -> None:
        """End what the process group does at the first error of a step; it is made anew for the next quorum.

        Gloo's allreduce is a ring. Only the neighbours of a dead group see its connections close; torchft reports the
        error and asks for the next quorum, but keeps its own connections. So a group further round the ring would wait
        in the collective, and the others for it in the quorum: 10.2 s with four groups, the process group's time-out.
        The same holds for rings of NCCL, and for process groups in a child process.
        """
        first = self.errored() is None
        super().report_error(e)
        if first:
            group = self._pg
            if (native := group_end.native_of(group)) is not None:
                self._pg = native.again()
                if getattr(self._checkpoint_transport, "_pg", None) is group:
                    self._checkpoint_transport._pg = self._pg
            group_end.end(group)

    def should_commit(self, *args: Any, **kwargs: Any) -> bool:
        """Vote on the step."""
        compared, commits = self._ftslurm.compared, self._ftslurm.commits
        if compared is not None:
            compared.state_changes(self)
        means: Iterable[Any] = ()
        if buffers.is_wanted():
            averaged = commits.averaged
            means = buffers.average(self)
            commits.averaged = averaged  # by the script
        self._ftslurm.progress.votes(self)
        committed = bool(super().should_commit(*args, **kwargs))
        for buffer, mean in means if committed else ():
            buffer.detach().copy_(mean.view_as(buffer))
        if self._ftslurm.beside is None or not self._ftslurm.beside.apart:
            if compared is not None and committed:
                compared.has_committed(self)
            commits.has_voted(self, committed)
        self._ftslurm.progress.has_voted(self, committed)
        return committed

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        """End the Manager. The script may read its weights after that."""
        if self._ftslurm.beside is not None:
            self._ftslurm.beside.finish()
        self._ftslurm.progress.shuts_down(self)
        super().shutdown(*args, **kwargs)


def choose(call: inspect.BoundArguments) -> None:
    """Set the arguments of a new Manager that the run decides.

    torchft reads TORCHFT_CONNECT_TIMEOUT_SEC, but connects with the argument, except to heal. Its managers send ten
    heartbeats a second, which nobody needs who is told of deaths: with steps of a second they are ten of eleven
    requests to the Lighthouse (benchmarks/scale_lighthouse.py). torchft's own Lighthouse is not told of any, and a run
    with it has no such variable.
    """
    by_script = {*call.arguments}
    call.apply_defaults()
    given = call.arguments
    if (milliseconds := os.environ.get("FTSLURM_MANAGER_HEARTBEAT_MS")) and "heartbeat_interval" not in by_script:
        given["heartbeat_interval"] = timedelta(milliseconds=int(milliseconds))
    if seconds := os.environ.get("TORCHFT_CONNECT_TIMEOUT_SEC"):
        given["connect_timeout"] = timedelta(seconds=int(seconds))
    if given.get("checkpoint_transport", "") is None and os.environ.get("FTSLURM_TRANSPORT") == "process_group":
        import torch
        from torchft.checkpointing.pg_transport import PGTransport

        device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in given["pg"].name() else "cpu"
        given["checkpoint_transport"] = PGTransport(given["pg"], given["timeout"], torch.device(device))


def install(watchers: Watchers) -> None:
    """Put RunManager in the place of torchft's class wherever a module has it by its name."""
    RunManager._ftslurm = watchers
    watchers.unhealed.install()
    watchers.commits.install()
    watchers.quorums.install()
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("Manager") is Base:
            module.Manager = RunManager  # type: ignore[attr-defined]
