"""Train a small network with Accelerate, made fault tolerant by `ftslurm.frameworks.accelerate`.

What differs from a script for one group: the Accelerator is ftslurm's, the schedule counts updates of all groups, and
`epochs` and `batches` give what is still to be trained. To try it:

    ftslurm job.script=example:train_accelerate.py groups.count=2 checkpoint.every=20 faults=kill_one
"""

import argparse
import hashlib
import math

import torch
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from ftslurm.frameworks.accelerate import Accelerator


class Patience:
    """Early stopping. It is registered for checkpointing: a group that comes back knows how long the others waited."""

    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.waited = patience, math.inf, 0

    def is_over(self, loss: float) -> bool:
        self.waited = 0 if loss < self.best else self.waited + 1
        self.best = min(loss, self.best)
        return self.waited >= self.patience

    def state_dict(self) -> dict:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict) -> None:
        self.best, self.waited = state["best"], state["waited"]


def points(count: int, seed: int) -> TensorDataset:
    """Points, inside or outside a circle."""
    x = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return TensorDataset(x, (x.norm(dim=1) < 0.8).long())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--epochs", type=int, default=8)
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--lr", type=float, default=1e-2)
    options.add_argument("--patience", type=int, default=3, help="evaluations without progress before the end")
    args = options.parse_args()

    set_seed(0)  # the first weights, the same in all groups
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
    adamw = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train = DataLoader(points(1024, seed=1), args.batch_size, shuffle=True)
    held_out = DataLoader(points(512, seed=2), args.batch_size)
    model, optimizer, train, held_out = accelerator.prepare(model, adamw, train, held_out)
    updates = args.epochs * accelerator.updates_per_epoch(train) * accelerator.num_processes  # as Accelerate counts
    schedule = accelerator.prepare(torch.optim.lr_scheduler.CosineAnnealingLR(adamw, updates))
    patience = Patience(args.patience)
    accelerator.register_for_checkpointing(patience)

    for _ in accelerator.epochs(args.epochs, train):
        model.train()
        for x, inside in accelerator.batches():
            with accelerator.accumulate(model):
                accelerator.backward(cross_entropy(model(x), inside))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            pairs = [accelerator.gather_for_metrics((model(x), inside)) for x, inside in held_out]
        loss = accelerator.agree(cross_entropy(*map(torch.cat, zip(*pairs, strict=True))).item())
        accelerator.print(f"evaluation at step {accelerator.updates}: {loss}", flush=True)
        if patience.is_over(loss):
            break

    weights = [p.detach().cpu().contiguous().view(torch.uint8).flatten() for p in model.parameters()]
    print(f"weights sha256={hashlib.sha256(bytes(torch.cat(weights).tolist())).hexdigest()}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
