"""The smallest torchft training that can fail in every way; most tests run it.

TOY_DDP=0 avoids torch's DDP and optimizers, which import torch._dynamo: a second of CPU time in every process.
"""

import atexit
import hashlib
import os
import sys
import time
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # some tests run it from a script of their own
from toy_options import GROUP, RANK, WORLD_SIZE, args, begin, fail_if_told, last_step, note, work


class Descent:
    """Gradient descent with momentum."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.speed = [torch.zeros_like(p) for p in parameters]

    def zero_grad(self, _: bool = True) -> None:
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        with torch.no_grad():
            for p, speed in zip(self.parameters, self.speed, strict=True):
                speed.mul_(0.9).add_(p.grad)
                p.sub_(speed, alpha=1e-3)

    def state_dict(self) -> dict[str, list[torch.Tensor]]:
        return {"speed": self.speed}

    def load_state_dict(self, state: dict[str, list[torch.Tensor]]) -> None:
        for speed, loaded in zip(self.speed, state["speed"], strict=True):
            speed.copy_(loaded)


def digest() -> str:
    """Return the SHA-256 of all weights and of the optimizer's state, on which the next step depends."""
    speeds = optimizer.optim.speed if by_hand else [t for s in optimizer.optim.state.values() for t in s.values()]
    tensors = [*model.parameters(), *speeds]
    data = torch.cat([tensor.detach().float().flatten() for tensor in tensors])
    return hashlib.sha256(bytes(data.view(torch.uint8).tolist())).hexdigest()


def average() -> None:
    """Average all gradients, in several collectives at a time."""
    for average in [manager.allreduce(p.grad) for p in model.parameters()]:
        average.wait()


begin()
torch.manual_seed(args.seed)
hidden = [nn.Linear(32, 32) for _ in range(args.layers)]
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), *hidden, nn.Linear(32, 1))


def state_dict() -> dict[str, object]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def load_state_dict(state: dict[str, object]) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


kind = ProcessGroupGloo
if os.environ.get("FTSLURM_PROCESS_GROUP") == "native":
    from ftslurm.worker.native_group import native_group

    kind = partial(native_group, "gloo")
manager = Manager(
    pg=kind(timeout=timedelta(seconds=args.timeout)),
    min_replica_size=1,
    load_state_dict=load_state_dict,
    state_dict=state_dict,
    replica_id=f"toy_{GROUP}",
    timeout=timedelta(seconds=args.timeout),
)
print("heals by", type(manager._checkpoint_transport).__name__, flush=True)
by_hand = os.environ.get("TOY_DDP") == "0"
ddp = model if by_hand else DistributedDataParallel(manager, model)
parameters = list(model.parameters())
optimizer = Optimizer(manager, Descent(parameters) if by_hand else torch.optim.AdamW(parameters, lr=1e-2))
if WORLD_SIZE > 1:
    dist.init_process_group("gloo")
checkpointer = None
if os.environ.get("FTSLURM_CHECKPOINT_EVERY", "0") != "0" and not args.no_resume:
    from ftslurm.checkpoint import Checkpointer

    checkpointer = Checkpointer(manager, {"model": model, "optimizer": optimizer})
    print("restored", checkpointer.restore(), flush=True)

while (step := manager.current_step()) < last_step():
    data = torch.Generator().manual_seed(hash((args.seed, GROUP, RANK, step)))  # integers hash alike everywhere
    x = torch.randn(8, 16, generator=data)
    optimizer.zero_grad()
    if not args.beside:
        manager.num_participants()  # waits for the quorum: from here on the other groups depend on this one
    fail_if_told(step)
    work()
    loss = (ddp(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    if by_hand:
        average()
    if WORLD_SIZE > 1:
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= WORLD_SIZE
    participants = manager.num_participants()
    healed_to = manager.current_step()  # a heal moves it
    optimizer.step()
    now = manager.current_step()
    if checkpointer:
        checkpointer.step()
    print(f"step {now} loss {loss.item():.3f} participants {participants}", flush=True)
    if now == healed_to + 1:
        note(now, manager._quorum_id, participants, digest())
    time.sleep(args.pause)

if checkpointer:
    checkpointer.close()
weights = nn.utils.parameters_to_vector(model.parameters()).detach()
print(f"weights sha256={hashlib.sha256(bytes(weights.view(torch.uint8).tolist())).hexdigest()}", flush=True)
manager.shutdown(wait=False)
atexit.register(os._exit, 0)  # saves half a second of CPU time, in which Python frees what torch has loaded
