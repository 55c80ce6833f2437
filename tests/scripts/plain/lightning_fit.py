"""Trains with Lightning, and keeps the two best models and the last state."""

import argparse
import os
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Data(lightning.LightningDataModule):
    def setup(self, **_):
        x = torch.randn(480, 8, generator=torch.Generator().manual_seed(1))
        self.data = TensorDataset(x, (x.square().sum(1) > 7).long())

    def train_dataloader(self):
        return DataLoader(self.data, 16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.data, 48)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))

    def training_step(self, batch):
        loss = cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch):
        self.log("loss", cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def on_validation_end(self):
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            loss = self.trainer.callback_metrics["loss"].item()
            print(f"evaluation at step {self.trainer.global_step}: {loss}", flush=True)

    def configure_optimizers(self):
        adamw = torch.optim.AdamW(self.parameters(), lr=1e-2)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(adamw, 1e-2, total_steps=steps)
        return {"optimizer": adamw, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


options = argparse.ArgumentParser()
options.add_argument("--out", type=Path, default="out")
options.add_argument("--resume", action="store_true")
args = options.parse_args()
lightning.seed_everything(3)
net = Net()
best = ModelCheckpoint(args.out, "{epoch}-{loss:.4f}", monitor="loss", save_top_k=2, save_last=True)
trainer = lightning.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    max_epochs=5,
    gradient_clip_val=1.0,
    callbacks=[best, EarlyStopping("loss", patience=3), LearningRateMonitor()],
    logger=CSVLogger(args.out),
    log_every_n_steps=1,
    enable_progress_bar=False,
    enable_model_summary=False,
)
last = args.out / "last.ckpt"
trainer.fit(net, datamodule=Data(), ckpt_path=str(last) if args.resume and last.exists() else None)
