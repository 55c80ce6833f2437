"""Trains a network with features of Lightning that the example leaves out."""

import argparse
import hashlib
import os
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Data(lightning.LightningDataModule):  # type: ignore[misc]
    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:  # noqa: ARG002
        x = torch.rand(800, 2, generator=torch.Generator().manual_seed(1)) * 2 - 1
        self.data = TensorDataset(x, (x.norm(dim=1) < 0.8).long())

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.data, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.data, 64)


class Net(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, schedule: str) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
        self.schedule = schedule

    def configure_optimizers(self) -> dict[str, Any]:
        sgd = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        if self.schedule == "plateau":
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, factor=0.5, patience=0)
            return {"optimizer": sgd, "lr_scheduler": {"scheduler": plateau, "monitor": "loss", "interval": "epoch"}}
        return {"optimizer": sgd, "lr_scheduler": torch.optim.lr_scheduler.StepLR(sgd, 2, gamma=0.3)}

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss = cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        self.log("loss", cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def test_step(self, batch: torch.Tensor) -> None:
        self.net(batch)

    def on_validation_end(self) -> None:
        if not self.trainer.sanity_checking:
            loss, rate = self.trainer.callback_metrics["loss"].item(), self.trainer.optimizers[0].param_groups[0]["lr"]
            print(f"evaluation at step {self.trainer.global_step}: {loss}/{rate}", flush=True)


def main() -> None:
    from ftslurm.frameworks.lightning import FaultTolerantStrategy

    options = argparse.ArgumentParser()
    options.add_argument("--epochs", type=int, default=4)
    options.add_argument("--batch-size", type=int, default=16)
    options.add_argument("--schedule", default="epoch")
    options.add_argument("--out")
    args = options.parse_args()
    lightning.seed_everything(0)
    best = ModelCheckpoint(args.out, "{epoch}-{step}-{loss:.4f}", monitor="loss", save_top_k=2, save_last=True)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy=FaultTolerantStrategy(),
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", 1)),
        max_epochs=args.epochs,
        accumulate_grad_batches=3,
        gradient_clip_val=0.1,
        gradient_clip_algorithm="value",
        precision="bf16-mixed",
        val_check_interval=0.5,
        callbacks=[EarlyStopping("loss", patience=20), best, LearningRateMonitor()],
        logger=CSVLogger(f"{args.out}/csv-{os.environ['REPLICA_GROUP_ID']}"),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    net = Net(args.schedule)
    trainer.fit(net, datamodule=Data(args.batch_size))
    print("best", *(Path(path).name for path in sorted(best.best_k_models)), f"{best.best_model_score}", flush=True)
    assert all(Path(path).exists() for path in best.best_k_models), best.best_k_models
    weights = [p.detach().contiguous().view(torch.uint8).flatten() for p in net.parameters()]
    print(f"weights sha256={hashlib.sha256(bytes(torch.cat(weights).tolist())).hexdigest()}", flush=True)
    trainer.test(net, DataLoader([torch.zeros(2)]), ckpt_path="best", verbose=False)


if __name__ == "__main__":
    main()
