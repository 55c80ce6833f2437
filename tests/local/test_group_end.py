"""Process groups of torchft end what they do when they are told: those in a child process, those of NCCL.

NCCL itself needs GPUs: without one it is shown that torchft's own class passes the abort to torch's, that nobody waits
for it, and that it does not touch the group of the next quorum.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import process_groups
import pytest
import torch
import torchft
from watched import manager_class

from ftslurm.worker import group_end, torchft_patches

TIMEOUT_S = 60
SOON_S = 20.0  # below that it was not the time-out
process_group: Any = importlib.import_module("torchft.process_group")
CHILD = f"""
import os, subprocess, sys, threading, time
from datetime import timedelta
from types import SimpleNamespace
import torch, torchft
sys.path.append({str(Path(process_groups.__file__).parent)!r})
from process_groups import set_up
from torch.distributed import TCPStore
from torch.distributed.distributed_c10d import AllreduceOptions
from torchft.process_group import ProcessGroupBabyGloo
from ftslurm.protocol.position import Position
from ftslurm.protocol.stages import Stage
from ftslurm.worker import quorum_abort

def reduce(pg):
    return pg.allreduce([torch.ones(1)], AllreduceOptions())

def told(quorums, quorum, what):
    threading.Timer(0.5, quorums.tell, (quorum,)).start()
    start = time.monotonic()
    try:
        what()
        error = "nothing"
    except Exception as raised:
        error = type(raised).__name__
    print(f"{{time.monotonic() - start:.1f}} {{error}}", flush=True)

def main():
    pg = ProcessGroupBabyGloo(timeout=timedelta(seconds={TIMEOUT_S}))
    rank = int(sys.argv[1])
    if rank == 1:
        set_up(pg, sys.argv[2], 3, 1, 2)
        reduce(pg).wait()
        sys.stdin.read()  # it takes no part in the next ones, and keeps its connections
        os._exit(0)
    manager = SimpleNamespace(_pg=pg, _quorum_id=3, _errored=None)
    quorums = quorum_abort.BrokenQuorums([manager], Position())
    quorums.install()
    quorums.cover(pg)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    other = subprocess.Popen([sys.executable, __file__, "1", str(store.port)], stdin=subprocess.PIPE)
    try:
        set_up(pg, store.port, 3, 0, 2)
        reduce(pg).wait()
        quorums.position.mark(1, Stage.COLLECTIVE)
        future = reduce(pg).get_future()
        told(quorums, 3, future.wait)
        quorums.joined.quorum = 4
        told(quorums, 4, lambda: set_up(pg, store.port, 4, 0, 2))
        print(pg._p.join(10) or pg._p.exitcode, flush=True)
    finally:
        other.kill()
    os._exit(0)

if __name__ == "__main__":
    main()
"""


@pytest.mark.nightly
def test_a_group_in_a_child_process_is_not_waited_for_when_its_quorum_is_broken(tmp_path: Path) -> None:
    script = tmp_path / "children.py"
    script.write_text(CHILD)
    command = [sys.executable, str(script), "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S * 3, check=False)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("ftslurm: ")]
    assert lines[0].endswith(" Aborted"), done.stdout + done.stderr
    assert lines[1].endswith(" Broken"), done.stdout + done.stderr
    assert max(float(line.split()[0]) for line in lines[:2]) < SOON_S
    assert lines[2] == "-9"  # nothing of it is left


# --- NCCL -------------------------------------------------------------------------------------------------------------


class Communicators:
    """torch's group under torchft's: an abort hangs until it is let go, as NCCL's may."""

    def __init__(self) -> None:
        self.aborting, self.let_go = threading.Event(), threading.Event()

    def abort(self) -> None:
        self.aborting.set()
        self.let_go.wait(60)


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torchft's own ProcessGroupNCCL, as after `configure`."""
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27))
    monkeypatch.setenv("TORCH_NCCL_NONBLOCKING_TIMEOUT", "60")
    made = process_group.ProcessGroupNCCL(timeout=timedelta(seconds=TIMEOUT_S))
    made._pg = Communicators()
    yield made
    made._pg = None


def test_an_abort_of_nccl_is_passed_on_and_not_waited_for(nccl: Any) -> None:
    inner, started = nccl._pg, time.monotonic()
    group_end.end(nccl)
    assert inner.aborting.wait(10)
    assert time.monotonic() - started < SOON_S
    assert isinstance(nccl._errored, group_end.Aborted)  # should_commit asks for it
    inner.let_go.set()


def test_a_late_abort_leaves_the_group_of_the_next_quorum_alone(nccl: Any) -> None:
    inner = nccl._pg
    group_end.end(nccl)
    assert inner.aborting.wait(10)
    nccl._pg = later = Communicators()
    inner.let_go.set()
    for thread in threading.enumerate():
        if thread.name.endswith("abort"):
            thread.join(10)
    assert nccl._pg is later
    assert not later.aborting.is_set()


def test_the_first_error_of_a_step_aborts_whatever_process_group_it_is(nccl: Any) -> None:
    inner, kind = nccl._pg, manager_class()
    manager = kind.__new__(kind)
    manager._errored, manager._pg = None, nccl
    manager.report_error(RuntimeError("a peer is gone"))
    assert inner.aborting.wait(10)
    inner.let_go.set()
    made = nccl._pg = Communicators()
    manager.report_error(RuntimeError("a second error of the same step"))
    assert not made.aborting.wait(0.1)


def test_an_error_of_an_abort_is_not_the_users() -> None:
    class Fails(process_group.ProcessGroupWrapper):  # type: ignore[misc]
        def abort(self, **_: bool) -> None:
            asked.append("abort")
            raise RuntimeError("already gone")

    asked: list[str] = []
    group_end.end(Fails())
    assert asked == ["abort"]


def test_what_a_wrapper_passes_everything_on_to_is_aborted(nccl: Any) -> None:
    inner = nccl._pg
    group_end.end(process_group.ErrorSwallowingProcessGroupWrapper(process_group.FakeProcessGroupWrapper(nccl)))
    assert inner.aborting.wait(10)
    assert isinstance(nccl._errored, group_end.Aborted)
    inner.let_go.set()


def test_a_kind_that_is_not_known_to_be_made_anew_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchft's own ProcessGroupTorchComms, over a stand-in for its library: it has one communicator for all time."""
    operations = SimpleNamespace(**dict.fromkeys(("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG")))
    library: Any = SimpleNamespace(TorchComm=object, TorchWork=object, ReduceOp=operations)
    monkeypatch.setitem(sys.modules, "torchcomms", library)
    monkeypatch.delitem(sys.modules, "torchft.torchcomms", raising=False)
    comm = SimpleNamespace(get_backend=str, get_device=lambda: torch.device("cpu"), finalize=lambda: None)
    group = importlib.import_module("torchft.torchcomms").ProcessGroupTorchComms(comm)
    group_end.end(group)
    assert group.comm is comm


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nccl_itself_can_be_aborted_and_made_anew() -> None:
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = process_group.ProcessGroupNCCL(timeout=timedelta(seconds=TIMEOUT_S))
    for quorum in (1, 2):
        process_groups.set_up(group, store.port, quorum, 0, 1)
        tensor = torch.ones(4, device="cuda")
        group.allreduce([tensor], torch.distributed.ReduceOp.SUM).wait()
        torch.cuda.synchronize()
        assert tensor.sum().item() == 4
        group_end.end(group)
        deadline = time.monotonic() + SOON_S
        while group_end.hold_exit():
            assert time.monotonic() < deadline, "the abort hangs"
            time.sleep(0.01)


# --- futures that come later ------------------------------------------------------------------------------------------


def test_the_defect_of_later_futures_is_found_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    original = process_group.ProcessGroupBaby._get_future
    monkeypatch.setattr(process_group.ProcessGroupBaby, "_get_future", original)
    torchft_patches.await_futures_of_children()
    found = process_group.ProcessGroupBaby._get_future is not original
    manager: Any = SimpleNamespace(wrap_future=lambda future, _: future)
    later: Any = torch.futures.Future()
    work = torchft.manager._ManagedWork(manager, SimpleNamespace(get_future=lambda: later), [torch.ones(1)])
    work.get_future().then(lambda future: future.value())
    work._set_future_callback()
    later.set_result(None)
    with pytest.raises(RuntimeError, match="AssertionError") if found else nullcontext():
        work._managed_fut_tail._fut.wait()
