"""The warning that nothing will heal a training, and its absence, with real torch, torchft and process groups."""

from __future__ import annotations

import json

import loaded
import pytest
from harness import Backend
from quick import ask

from ftslurm.config.schema import shipped
from ftslurm.worker.unhealed import WARNING

# Each case runs in a fork of a process with all imports, which take longest. Prints for each case the number of steps
# at the warning, and its text. Holders of a process group outlive their case: torch 2.13 destroys Gloo's with the GIL
# held, which its last allreduce may need to end (56297 of PyTorch).
CASES = """
import json, os, sys, tempfile
import torch, torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import torchft
from torchft.coordination import LighthouseServer
from watched import watchers
from ftslurm.worker.unhealed import Watch
from ftslurm.worker import run_manager

def model():
    torch.set_num_threads(1)
    return nn.Linear(4, 4)

def train(model, optimizer, steps):
    global taken
    kept.extend([model, optimizer])
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        taken += 1
        optimizer.step()

def inside_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

def manager():
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(), min_replica_size=1, state_dict=dict, load_state_dict=dict.update,
        rank=0, world_size=1, store_addr="localhost", store_port=store.port, hostname="localhost",
        lighthouse_addr=lighthouse.address().replace(os.uname().nodename, "localhost"),
    )
    kept.extend([store, lighthouse, manager])
    return manager

def plain_ddp():
    inside_group()
    ddp = DistributedDataParallel(model())
    train(ddp, torch.optim.SGD(ddp.parameters()), 12)

def short_ddp_that_tidies_up():
    inside_group()
    ddp = DistributedDataParallel(model())
    train(ddp, torch.optim.SGD(ddp.parameters()), 3)
    dist.destroy_process_group()

def ddp_without_an_optimizer():
    inside_group()
    ddp = DistributedDataParallel(model())
    kept.append(ddp)
    ddp(torch.ones(2, 4)).sum().backward()

def no_distributed():
    net = model()
    train(net, torch.optim.AdamW(net.parameters()), 12)

def one_with_a_hook_of_its_own():
    from torch.optim.optimizer import register_optimizer_step_post_hook
    register_optimizer_step_post_hook(lambda *_: None)
    no_distributed()

def no_training():
    torch.ones(3).sum()

def torchfts_ddp():
    net = model()
    m = manager()
    ddp = torchft.DistributedDataParallel(m, net)
    train(ddp, torchft.Optimizer(m, torch.optim.SGD(net.parameters())), 12)
    assert m.current_step() == 12
    m.shutdown(wait=False)

def hsdp_with_a_late_manager():
    from torch.distributed.fsdp import fully_shard
    inside_group()
    mesh = dist.init_device_mesh("cpu", (1,))
    net = fully_shard(model(), mesh=mesh)
    inner = torch.optim.AdamW(net.parameters())
    train(net, inner, 1)  # creates the optimizer's state
    m = manager()
    train(net, torchft.Optimizer(m, inner), 12)
    m.shutdown(wait=False)


for case in (plain_ddp, short_ddp_that_tidies_up, ddp_without_an_optimizer, no_distributed, no_training, torchfts_ddp,
             hsdp_with_a_late_manager, one_with_a_hook_of_its_own):
    if os.fork() == 0:
        taken, kept, told = 0, [], []
        watching = watchers(warn=lambda text: told.append([taken, text]))
        run_manager.install(watching)
        watch = watching.unhealed
        case()
        watch.ended()
        print(json.dumps([case.__name__, told]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, case
"""
TOLD = {
    "plain_ddp": 10,  # after how many steps
    "short_ddp_that_tidies_up": 3,
    "ddp_without_an_optimizer": 0,
    "no_distributed": 10,
    "no_training": None,
    "torchfts_ddp": None,
    "hsdp_with_a_late_manager": None,
    "one_with_a_hook_of_its_own": 10,
}


def test_who_trains_without_a_manager_is_told_and_nobody_else() -> None:
    done = loaded.run(CASES)
    assert done.returncode == 0, done.stderr
    cases = (json.loads(line) for line in done.stdout.splitlines())
    told = {case: [one for one in said if one[1] == WARNING] for case, said in cases}  # others are worker/commits.py's
    assert told == {case: [] if steps is None else [[steps, WARNING]] for case, steps in TOLD.items()}


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_the_user_of_a_plain_ddp_script_is_told_once_wherever_he_looks(local: Backend, count: int) -> None:
    """With so many groups of so many workers."""
    run = local.start(
        *(f"groups.count={count}", f"groups.workers={count}"),
        script=shipped("examples") / "plain_ddp.py",
        args={"steps": 30},
    ).finish(warns=True)
    (warning,) = run.named("warning")
    said = str(warning["text"])
    assert said == WARNING
    assert f"warning: {said}" in run.text  # as it was followed
    assert run.text.count(said) == 1
    for group in range(count):
        assert run.rank_log(group).count(f"ftslurm: warning: {said}") == 1
        assert "warning" not in run.rank_log(group, rank=1)  # if there is one
    assert said in ask(run, "status")[1]
    assert json.loads(ask(run, "status", "--json")[1])["warnings"] == [said]
