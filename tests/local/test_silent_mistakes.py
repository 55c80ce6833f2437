"""Mistakes by which a training is wrong although nothing fails: people are told, and the last line says so."""

from __future__ import annotations

import re

import pytest
from harness import Backend, Run

from ftslurm.worker.commits import NOT_CHANGED

SCRIPT = """
import os
import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

class Half(torch.optim.SGD):  # as an optimizer of a framework that accumulates two micro-batches
    calls = 0
    def step(self, closure=None):
        self.calls += 1
        return super().step(closure) if self.calls % 2 == 0 else None

torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
inner = Half(model.parameters(), lr=1e-2)
def load(state):
    model.load_state_dict(state["model"])
    inner.load_state_dict(state["optimizer"])
def save():
    return {"model": model.state_dict(), "optimizer": inner.state_dict()}
manager = Manager(pg=ProcessGroupGloo(), min_replica_size=2, load_state_dict=load, state_dict=save)
ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
while manager.current_step() < 110:
    optimizer.zero_grad()
    ddp(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    if manager.current_step() == 50 and os.environ["REPLICA_GROUP_ID"] == "1":
        with torch.no_grad():
            model.weight.add_(1.0)
"""


def test_commits_of_micro_batches_and_groups_that_differ_are_told(local: Backend) -> None:
    run = local.start("groups.count=2", "groups.min=2", script=local.script(SCRIPT))
    run.finish(warns=True)
    (warning,) = {str(line["text"]) for line in run.named("warning")}
    assert NOT_CHANGED in warning
    (differ,) = run.named("replicas_differ")
    assert (differ["step"], differ["groups"]) == (100, [0, 1])
    assert run.text.count("no majority shows which are wrong") >= 1
    assert f"{run.dir.name} succeeded: all groups finished; groups differ, see the warning" in run.text
    code, status = run.ask("status")
    assert (code, "weights or optimizer differ" in status) == (0, True)


BUFFERS = """
import hashlib, os, signal
from datetime import timedelta
import torch
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.local_sgd import DiLoCo, LocalSGD

KIND, GROUP, RANK = os.environ["KIND"], int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["RANK"])
END, DIES = int(os.environ["END"]), int(os.environ["DIES"])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4), nn.BatchNorm1d(4))
model.register_buffer("constant", torch.rand(3))
constant = model.constant.clone()
if KIND == "fsdp":
    from torch.distributed.fsdp import fully_shard
    torch.distributed.init_process_group("gloo")
    fully_shard(model)
inner = torch.optim.SGD(model.parameters(), lr=1e-2)

def load(state):
    model.load_state_dict(state["model"])
    inner.load_state_dict(state["optimizer"])

def save():
    return {"model": model.state_dict(), "optimizer": inner.state_dict(), "own": torch.rand(3)}

manager = Manager(
    pg=ProcessGroupGloo(), min_replica_size=2, load_state_dict=load, state_dict=save,
    use_async_quorum=KIND == "ddp", timeout=timedelta(seconds=60),
)
torch.manual_seed(100 + GROUP)

def work(net):
    net(torch.randn(8, 4) * (GROUP + 1) + RANK).pow(2).mean().backward()
    if (GROUP, RANK, os.environ["FTSLURM_ATTEMPT"]) == (1, 0, "0") and manager.current_step() == DIES:
        os.kill(os.getpid(), signal.SIGKILL)

def tell():
    floats = [one for one in model.buffers() if one.is_floating_point()]
    told = hashlib.sha256(b"".join(one.numpy().tobytes() for one in floats)).hexdigest()[:16]
    print(f"step {manager.current_step()}: {told} {torch.equal(model.constant, constant)}", flush=True)

if KIND in ("localsgd", "diloco"):
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    local = LocalSGD(manager, model, inner, 3) if KIND == "localsgd" else DiLoCo(manager, [model], inner, outer, 3)
    with local:
        while (before := manager.current_step()) < END:
            inner.zero_grad()
            work(model)
            inner.step()
            if manager.current_step() != before:
                tell()
else:
    optimizer = Optimizer(manager, inner)
    net = DistributedDataParallel(manager, model) if KIND == "ddp" else model
    while manager.current_step() < END:
        optimizer.zero_grad()
        work(net)
        for one in model.parameters() if KIND != "ddp" else ():
            manager.allreduce(one.grad.to_local() if KIND == "fsdp" else one.grad).wait()
        optimizer.step()
        if manager._commit_failures == 0:
            tell()
"""
TOLD = re.compile(r"^step (\d+): (\w{16}) (True|False)$", re.MULTILINE)


def train(local: Backend, kind: str, buffers: str, end: int, dies: int, *words: str) -> Run:
    env = {"KIND": kind, "END": end, "DIES": dies, "OMP_NUM_THREADS": 1}
    line = [
        "groups.count=2",
        "groups.min=2",
        "job.longest_step_s=300",
        *(f"job.env.{name}='{value}'" for name, value in env.items()),
        *words,
    ]
    return local.start(*line, f"health.buffers={buffers}", script=local.script(BUFFERS)).finish(
        warns=buffers == "report"
    )


def buffers_of(run: Run, rank: int = 0) -> dict[int, set[str]]:
    """Return the buffers of all groups after each step."""
    found = dict[int, set[str]]()
    for path in run.dir.glob(f"logs/group-*/attempt-*/rank-{rank}.log"):
        for step, told, is_constant in TOLD.findall(path.read_text()):
            assert is_constant == "True"
            found.setdefault(int(step), set()).add(told)
    return found


def test_buffers_that_differ_are_told_once_and_the_end_says_so(local: Backend) -> None:
    run = train(local, "ddp", "report", 210, -1)
    (warning,) = {str(line["text"]) for line in run.named("warning")}
    assert warning.startswith(
        "buffers differ between groups, among those of default.model.1, default.model.4, default.model: "
    )
    assert f"{run.dir.name} succeeded: all groups finished; buffers differ, see the warning" in run.text
    for verb in (("status",), ("status", "--json"), ("report",)):
        assert "buffers differ between groups" in " ".join(run.ask(*verb)[1].split())
    assert run.named("replicas_differ") == []
    assert len(buffers_of(run)[100]) == 2


def test_averaged_buffers_are_equal_after_each_step_also_in_a_group_that_heals(local: Backend) -> None:
    run = train(local, "ddp", "average", 110, 13)
    assert run.named("warning") == []
    assert f"{run.dir.name} succeeded: all groups finished" in run.text
    found = buffers_of(run)
    assert {len(one) for one in found.values()} == {1}
    assert len(found) == 110


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["plain", "fsdp", "localsgd", "diloco"])
def test_buffers_are_averaged_whatever_the_groups_do(local: Backend, kind: str) -> None:
    run = train(local, kind, "average", 40, 13, f"groups.workers={1 + (kind == 'fsdp')}")
    for rank in range(1 + (kind == "fsdp")):
        found = buffers_of(run, rank)
        assert sorted(found) == [*range(1, 41)]
        assert {len(one) for one in found.values()} == {1}


EVALUATES = """
import os, time
import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

model = torch.nn.Linear(4, 4)
inner = torch.optim.SGD(model.parameters(), lr=1e-2)
manager = Manager(
    pg=ProcessGroupGloo(), min_replica_size=2, load_state_dict=model.load_state_dict, state_dict=model.state_dict
)
ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
while manager.current_step() < 40:
    optimizer.zero_grad()
    ddp(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    if manager.current_step() == 30 and os.environ["REPLICA_GROUP_ID"] == "0":
        time.sleep(600)
"""


@pytest.mark.nightly
def test_a_group_that_waits_in_vain_for_one_that_evaluates_says_so(local: Backend) -> None:
    few = ("groups.count=2", "groups.min=2", "restart=never", "job.longest_step_s=12")
    run = local.start(*few, script=local.script(EVALUATES)).finish(code=1, outcome="failed")
    (exited,) = run.named("step_exited", group=1)
    told = (
        r"the wait for the others has timed out: rank 0 of group 0 has taken no step for (\d+) s\. .*job.longest_step_s"
    )
    match = re.match(told, str(exited["error"]))
    assert match is not None
    assert 11 <= int(match[1]) <= 30
    assert "rank 0 of group 0 has taken no step" in " ".join(run.text.split("failed: ")[-1].split())


OTHER_DATA = """
import os
import torch
from torch.utils.data import DataLoader
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from ftslurm.data import Batches

group = int(os.environ["REPLICA_GROUP_ID"])
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
state = {"load_state_dict": model.load_state_dict, "state_dict": model.state_dict, "use_async_quorum": False}
manager = Manager(pg=ProcessGroupGloo(), min_replica_size=1, init_sync=False, **state)
ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, torch.optim.SGD(model.parameters()))
data = torch.ones(40 + group * (os.environ["MISTAKE"] == "length"), 4)
loader = DataLoader(data, 4, shuffle=True)
batches = Batches(loader, manager, seed=group * (os.environ["MISTAKE"] == "seed"))
while manager.current_step() < 5:
    optimizer.zero_grad()
    for x in batches.take():
        ddp(x).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "mistake", ["seed", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("length", "none"))]
)
def test_groups_that_share_different_data_are_told(local: Backend, mistake: str) -> None:
    run = local.start("groups.count=2", "groups.min=2", f"job.env.MISTAKE={mistake}", script=local.script(OTHER_DATA))
    told = [True] * (mistake != "none")
    run.finish(warns=bool(told))
    texts = [str(line["text"]) for line in run.named("warning")]
    assert ["groups read different data (data: 4" in text for text in texts] == told
