"""Trains a classifier with features of transformers' Trainer that the example leaves out."""

import argparse
import hashlib
import os
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from ftslurm.frameworks.transformers import Trainer


class Parity(Dataset):  # type: ignore[misc]
    def __init__(self, numbers: range) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> dict[str, Any]:
        digits = [int(digit) for digit in f"{self.numbers[place]:04}"]
        return {"input_ids": torch.tensor(digits), "labels": sum(digits) % 2}


class Report(TrainerCallback):  # type: ignore[misc]
    def on_evaluate(self, _: object, state: Any, __: object, metrics: dict[str, float], **___: object) -> None:
        print(f"evaluation at step {state.global_step}: {metrics['eval_accuracy']}/{metrics['eval_loss']}", flush=True)


def accuracy(predictions: tuple[Any, Any]) -> dict[str, Any]:
    return {"accuracy": float((predictions[0].argmax(1) == predictions[1]).mean())}


options = argparse.ArgumentParser()
options.add_argument("--epochs", type=float, default=3)
options.add_argument("--batch-size", type=int, default=8)
options.add_argument("--out")
args = options.parse_args()
set_seed(0)
shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
model = BertForSequenceClassification(BertConfig(vocab_size=10, max_position_embeddings=8, **shape))
trainer = Trainer(
    model=model,
    train_dataset=Parity(range(0, 10_000, 49)),
    eval_dataset=Parity(range(0, 10_000, 97)),
    compute_metrics=accuracy,
    callbacks=[EarlyStoppingCallback(2), Report()],
    args=TrainingArguments(
        output_dir=args.out,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        max_grad_norm=0.5,
        label_smoothing_factor=0.1,
        lr_scheduler_type="reduce_lr_on_plateau",
        lr_scheduler_kwargs={"patience": 0},
        learning_rate=1e-2,
        bf16=True,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    ),
)
trainer.train()
kept = sorted(name for name in os.listdir(trainer.args.output_dir) if name.startswith("checkpoint-"))
print("kept", *kept, "best", os.path.basename(trainer.state.best_model_checkpoint), flush=True)
weights = [p.detach().contiguous().view(torch.uint8).flatten() for p in model.parameters()]
print(f"weights sha256={hashlib.sha256(bytes(torch.cat(weights).tolist())).hexdigest()}", flush=True)
