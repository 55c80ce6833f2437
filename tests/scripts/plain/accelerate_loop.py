"""Trains with Accelerate, saves with save_state in the middle of an epoch, and goes on from there."""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

options = argparse.ArgumentParser()
options.add_argument("--out", type=Path, default="out")
options.add_argument("--resume", action="store_true")
args = options.parse_args()
accelerator = Accelerator(
    cpu=True, gradient_accumulation_steps=2, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True)
)
set_seed(7)
x = torch.randn(416, 8, generator=torch.Generator().manual_seed(1))
data = TensorDataset(x, (x.square().sum(1) > 7).long())
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 104)
loader = DataLoader(data, 8, shuffle=True, generator=torch.Generator())
loader, model, optimizer, schedule = accelerator.prepare(loader, model, optimizer, schedule)

update, last = 0, sorted(args.out.glob("update-*/complete")) if args.resume else []
if last:
    accelerator.load_state(str(last[-1].parent))
    update = int(last[-1].read_text())
begun, skip = divmod(2 * update, len(loader))
for epoch in range(begun, 4):
    loader.set_epoch(epoch)
    model.train()
    for points, inside in accelerator.skip_first_batches(loader, skip) if epoch == begun and skip else loader:
        with accelerator.accumulate(model):
            loss = cross_entropy(model(points), inside)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            update += 1
            if update % 5 == 0:
                folder = accelerator.save_state(str(args.out / f"update-{update:04}"))
                accelerator.wait_for_everyone()  # each rank has saved its random numbers
                if accelerator.is_main_process:
                    (Path(folder) / "complete").write_text(str(update))
    model.eval()
    with torch.no_grad():
        loss = cross_entropy(accelerator.unwrap_model(model)(x), data.tensors[1])
    accelerator.print(f"evaluation at step {update}: {loss.item()}", flush=True)
accelerator.end_training()
