"""Train a small classifier with torch's own DistributedDataParallel. Nothing here survives the loss of a process.

This is where `ftslurm help fault-tolerant` starts from: the page shows, as a diff, what makes it fault tolerant.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])


def batch(number: int, size: int) -> tuple[Tensor, Tensor]:
    """One batch of an endless data set in a fixed order: points, and on which side of a curved surface they lie."""
    x = torch.randn(size, 16, generator=torch.Generator().manual_seed(number))
    return x, (x.square().sum(1) > 15.3).long()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=128, help="examples per worker and step")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")

    torch.manual_seed(0)
    layers = [nn.Linear(16, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(args.width, 2)).to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for step in range(args.steps):
        optimizer.zero_grad()
        x, y = batch(step * WORLD_SIZE + RANK, args.batch_size)
        loss = cross_entropy(ddp(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        if RANK == 0 and step % 20 == 0:
            print(f"step {step} | loss {loss.item():.3f}", flush=True)

    x, y = batch(-1, 4096)  # never trained on
    with torch.no_grad():
        print(f"rank {RANK} | held-out loss {cross_entropy(model(x.to(device)), y.to(device)).item():.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
