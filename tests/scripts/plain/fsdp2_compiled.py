"""Trains a sharded and compiled model with FSDP2, and saves with torch's distributed checkpoints."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x):
        return x + self.layers(x)


def batch(number):
    x = torch.randint(0, 16, (8, 4), generator=torch.Generator().manual_seed(number))
    return x, (x * 7 + 3) % 16


def state():
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "schedule": schedule.state_dict(), "step": step}


options = argparse.ArgumentParser()
options.add_argument("--out", type=Path, default="out")
options.add_argument("--resume", action="store_true")
args = options.parse_args()
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world,))
torch.manual_seed(5)
model = nn.Sequential(nn.Embedding(16, 16), Block(16), Block(16), nn.Linear(16, 16))
for block in model[1:3]:
    block.compile(backend="aot_eager")
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1, (n + 1) / 5) * (1 - n / 50))
step = 0
saved = sorted(args.out.glob("step-*/.metadata")) if args.resume else []  # written when all shards are
if saved:
    found = state()
    dcp.load(found, checkpoint_id=saved[-1].parent)
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    schedule.load_state_dict(found["schedule"])
    step = found["step"]
while step < 40:
    x, y = batch(step * world + rank)
    loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    step += 1
    if step % 5 == 0:
        dist.all_reduce(loss.detach())
        if rank == 0:
            print(f"evaluation at step {step}: {loss.item()}", flush=True)
        dcp.save(state(), checkpoint_id=args.out / f"step-{step:04}")
dist.destroy_process_group()
