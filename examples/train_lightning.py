"""Train a small network with Lightning's Trainer, made fault tolerant by `ftslurm.frameworks.lightning`.

Only the strategy differs from a script for one group. To try it:

    ftslurm job.script=example:train_lightning.py job.args.steps=60 job.total_steps=60 groups.count=2 \
        checkpoint.every=20 faults=kill_one
"""

import argparse
import hashlib
import os

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from ftslurm.frameworks.lightning import FaultTolerantStrategy


def points(count: int, seed: int) -> TensorDataset:
    """Points, inside or outside a circle."""
    x = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return TensorDataset(x, (x.norm(dim=1) < 0.8).long())


class Net(lightning.LightningModule):
    def __init__(self, lr: float, weight_decay: float) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
        self.lr, self.weight_decay = lr, weight_decay

    def configure_optimizers(self) -> dict:
        adamw = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.LambdaLR(adamw, lambda step: max(0.0, 1 - step / steps))
        return {"optimizer": adamw, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor]) -> None:
        self.log("loss", cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            loss = self.trainer.callback_metrics["loss"].item()
            print(f"evaluation at step {self.trainer.global_step}: {loss}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--lr", type=float, default=1e-2)
    options.add_argument("--weight-decay", type=float, default=1e-2)
    options.add_argument("--patience", type=int, default=3, help="evaluations without progress before the end")
    args = options.parse_args()

    lightning.seed_everything(0)  # the first weights, the same in all groups
    trainer = lightning.Trainer(
        strategy=FaultTolerantStrategy(),
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", 1)),
        max_steps=args.steps,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[EarlyStopping("loss", patience=args.patience, strict=False)],  # no evaluation in less than an epoch
        enable_checkpointing=False,  # checkpoint.every saves
        logger=False,  # each group would log its own run
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    net = Net(args.lr, args.weight_decay)
    train = DataLoader(points(1024, seed=1), args.batch_size, shuffle=True)
    trainer.fit(net, train, DataLoader(points(512, seed=2), args.batch_size))
    weights = [p.detach().cpu().contiguous().view(torch.uint8).flatten() for p in net.parameters()]
    print(f"weights sha256={hashlib.sha256(bytes(torch.cat(weights).tolist())).hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
