"""Trains two networks with features of Accelerate that the example leaves out."""

import argparse
import hashlib

import torch
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from ftslurm.frameworks.accelerate import Accelerator

options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, default=4)
options.add_argument("--batch-size", type=int, default=16)
args = options.parse_args()
set_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3, mixed_precision="bf16")
x = torch.rand(800, 2, generator=torch.Generator().manual_seed(1)) * 2 - 1
data = TensorDataset(x, (x.norm(dim=1) < 0.8).long())
encoder = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1))
head, decoder = nn.Linear(16, 2), nn.Linear(16, 2)
parts = [{"params": encoder.parameters()}, {"params": [*head.parameters(), *decoder.parameters()], "lr": 3e-3}]
sgd = torch.optim.SGD(parts, lr=1e-2, momentum=0.9)
loader = DataLoader(data, args.batch_size, sampler=WeightedRandomSampler([1 + n % 3 for n in range(800)], 800))
held_out = DataLoader(TensorDataset(x[:100], data.tensors[1][:100]), 16)
encoder, head, decoder, optimizer, loader, held_out = accelerator.prepare(encoder, head, decoder, sgd, loader, held_out)
teacher = nn.Linear(2, 2).requires_grad_(False)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, factor=0.5, patience=0)
average = torch.optim.swa_utils.AveragedModel(accelerator.unwrap_model(encoder))
accelerator.register_for_checkpointing(plateau, average, teacher)

for _ in accelerator.epochs(args.epochs, loader):
    encoder.train()
    for points, inside in accelerator.batches():
        with accelerator.accumulate(encoder, head, decoder):
            with accelerator.autocast():
                code = encoder(points)
                loss = cross_entropy(head(code), inside) + 0.01 * mse_loss(head(code), teacher(points))
                restored = mse_loss(decoder(code), points)
            accelerator.backward(loss, retain_graph=True)
            accelerator.backward(restored)
            if accelerator.sync_gradients:
                accelerator.clip_grad_value_(encoder.parameters(), 0.1)
            optimizer.step()
            if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:
                average.update_parameters(accelerator.unwrap_model(encoder))
            optimizer.zero_grad()
    encoder.eval()
    with torch.no_grad():
        pairs = [accelerator.gather_for_metrics((head(encoder(p)), i)) for p, i in held_out]
    assert sum(len(i) for _, i in pairs) == 100
    metric = accelerator.agree(cross_entropy(*map(torch.cat, zip(*pairs, strict=True))).item())
    plateau.step(metric)
    accelerator.print(f"evaluation at step {accelerator.updates}: {metric}", flush=True)
models = (encoder, head, decoder, average)
weights = [p.detach().contiguous().view(torch.uint8).flatten() for m in models for p in m.parameters()]
print(f"weights sha256={hashlib.sha256(bytes(torch.cat(weights).tolist())).hexdigest()}", flush=True)
accelerator.end_training()
