"""A small training that saves with ftslurm.checkpoint, in all the ways torchft trains, for the checkpoint tests."""

import argparse
import hashlib
import json
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from ftslurm.checkpoint import Checkpointer

GROUP, RANK, WORLD_SIZE = (int(os.environ.get(name, default)) for name, default in
                           (("REPLICA_GROUP_ID", 0), ("RANK", 0), ("WORLD_SIZE", 1)))  # fmt: skip
parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=["plain", "fsdp"], default="plain")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--step-time", type=float, default=0.02)
parser.add_argument("--width", type=int, default=16, help="of the model; 1024 makes its state about 25 MB")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--report", help="a JSON line per event, in REPORT-GROUP-RANK")
parser.add_argument("--until", help="go on until this file says after which step to end")
parser.add_argument("--wait", action="store_true", help="for each save: no step is so quick that one is put off")
args = parser.parse_args()


class Numbers:
    """A data set with a position."""

    def __init__(self) -> None:
        self.at = 0

    def __next__(self) -> int:
        self.at += 1
        return self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def report(event: str, **fields: object) -> None:
    if args.report:
        with open(f"{args.report}-{GROUP}-{RANK}", "a") as file:
            file.write(json.dumps({"event": event, "time": time.time(), "pid": os.getpid(), **fields}) + "\n")


def digest(*trees: object) -> str:
    """Return the SHA-256 of every bit of a state, with whole DTensors."""
    out = hashlib.sha256()

    def walk(node: object) -> None:
        if isinstance(node, torch.Tensor):
            whole = node.full_tensor() if hasattr(node, "full_tensor") else node
            out.update(f"{node.dtype} {tuple(node.shape)}".encode())
            out.update(bytes(whole.detach().contiguous().reshape(-1).view(torch.uint8).tolist()))
        elif isinstance(node, dict):
            for key in sorted(node, key=repr):
                out.update(repr(key).encode())
                walk(node[key])
        elif isinstance(node, (list, tuple)):
            for item in node:
                walk(item)
        else:
            out.update(repr(node).encode())

    for tree in trees:
        walk(tree)
    return out.hexdigest()


torch.manual_seed(args.seed)
torch.set_num_threads(1)
if WORLD_SIZE > 1:
    dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(16, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.Linear(args.width, 1))
if args.kind == "fsdp":
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)


def state_dict() -> dict[str, object]:
    return {"model": model.state_dict(), "optimizer": inner.state_dict(), "scheduler": scheduler.state_dict()}


def load_state_dict(state: dict[str, object]) -> None:
    model.load_state_dict(state["model"])
    inner.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])


def last_step() -> int:
    if not args.until:
        return int(args.steps)
    return int(open(args.until).read()) if os.path.exists(args.until) else 10**9


manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
    min_replica_size=1,
    load_state_dict=load_state_dict,
    state_dict=state_dict,
    replica_id=f"saving_{GROUP}",
    timeout=timedelta(seconds=10),
    use_async_quorum=args.kind == "plain",
)
inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(inner, 1000)
optimizer = Optimizer(manager, inner)
net = DistributedDataParallel(manager, model) if args.kind == "plain" and WORLD_SIZE == 1 else model
numbers = Numbers()
checkpointer = Checkpointer(manager, {"model": model, "optimizer": optimizer, "scheduler": scheduler}, numbers)


def everything() -> str:
    return digest(model.state_dict(), inner.state_dict(), scheduler.state_dict(), manager.state_dict())


report("restored", step=checkpointer.restore(), at=numbers.at, digest=everything(), manager=manager.state_dict())
while (before := manager.current_step()) < last_step():
    batch = next(numbers)
    optimizer.zero_grad()
    loss = net(torch.randn(4, 16, generator=torch.Generator().manual_seed(batch * 100 + GROUP))).square().mean()
    loss.backward()
    if net is model:  # across the groups first: in the first step some ranks contribute zeros
        grads = [p.grad.to_local() if args.kind == "fsdp" else p.grad for p in model.parameters()]
        for work in [manager.allreduce(grad) for grad in grads]:
            work.wait()
        if args.kind == "plain":
            for grad in grads:
                dist.all_reduce(grad)
    time.sleep(args.step_time)
    optimizer.step()
    if (now := manager.current_step()) > before:
        scheduler.step()
    bits = everything() if args.report and now > before else None
    started = time.perf_counter()
    checkpointer.step()
    if args.wait and checkpointer._saving:
        checkpointer._saving.result()
    if bits:
        blocked = time.perf_counter() - started
        report("step", step=now, at=numbers.at, digest=bits, blocked=blocked, rank=manager.participating_rank())
checkpointer.close()
report("end", step=manager.current_step(), digest=everything())
manager.shutdown(wait=False)
