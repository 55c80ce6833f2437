"""Mistakes by which a training is wrong although nothing fails: people are told, and the last line says so."""

from __future__ import annotations

from harness import Backend

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
