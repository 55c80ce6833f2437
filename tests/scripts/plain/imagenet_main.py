"""Trains as the ImageNet example of PyTorch does, with DistributedDataParallel and a checkpoint after each epoch."""

import argparse
import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("-b", "--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--out", type=Path, default="out")
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()


def save_checkpoint(state, is_best):
    path = args.out / "checkpoint.pth.tar"
    torch.save(state, f"{path}.part")
    os.replace(f"{path}.part", path)
    if is_best:
        shutil.copyfile(path, args.out / "model_best.pth.tar")


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(11)
layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64, 10)]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.3)
scaler = torch.amp.GradScaler("cpu")
start_epoch = best_acc1 = 0
args.out.mkdir(exist_ok=True, parents=True)
if args.resume and (args.out / "checkpoint.pth.tar").is_file():
    checkpoint = torch.load(args.out / "checkpoint.pth.tar")
    start_epoch, best_acc1 = checkpoint["epoch"], checkpoint["best_acc1"]
    model.load_state_dict(checkpoint["state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    scaler.load_state_dict(checkpoint["scaler"])
generator = torch.Generator().manual_seed(0)
labels = torch.randint(0, 10, (400,), generator=generator)
images = torch.randn(10, 1, 8, 8, generator=generator)[labels] + torch.randn(400, 1, 8, 8, generator=generator)
train, val = TensorDataset(images[:320], labels[:320]), TensorDataset(images[320:], labels[320:])
sampler = DistributedSampler(train)
train_loader = DataLoader(train, args.batch_size // world, sampler=sampler, num_workers=1)
val_loader = DataLoader(val, args.batch_size // world, sampler=DistributedSampler(val, shuffle=False))
for epoch in range(start_epoch, args.epochs):
    sampler.set_epoch(epoch)
    model.train()
    for x, y in train_loader:
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    model.eval()
    correct = torch.zeros(1)
    with torch.no_grad():
        for x, y in val_loader:
            correct += (model(x).argmax(1) == y).sum()
    dist.all_reduce(correct)
    acc1 = correct.item() / len(val)
    scheduler.step()
    if rank == 0:
        print(f"evaluation at step {epoch + 1}: {acc1}", flush=True)
        state = {"epoch": epoch + 1, "best_acc1": max(acc1, best_acc1), "state_dict": model.state_dict()}
        state |= {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        save_checkpoint(state | {"scaler": scaler.state_dict()}, acc1 > best_acc1)
    best_acc1 = max(acc1, best_acc1)
dist.destroy_process_group()
