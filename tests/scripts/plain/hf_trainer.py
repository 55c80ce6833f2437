"""Trains a small language model with transformers' Trainer, and keeps the best model."""

import argparse
import os
from pathlib import Path

import torch
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class Report(TrainerCallback):
    def on_evaluate(self, _, state, __, metrics, **___):
        if state.is_world_process_zero:
            print(f"evaluation at step {state.global_step}: {metrics['eval_loss']}", flush=True)


options = argparse.ArgumentParser()
options.add_argument("--out", type=Path, default="out")
options.add_argument("--resume", action="store_true")
args = options.parse_args()
set_seed(1)
ids = torch.randint(0, 20, (300, 6), generator=torch.Generator().manual_seed(0)).cumsum(1) % 20
rows = [{"input_ids": row, "labels": row} for row in ids]
shape = GPT2Config(vocab_size=20, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=None, eos_token_id=None)
model = GPT2LMHeadModel(shape)
trainer = Trainer(
    model=model,
    train_dataset=rows[:240],
    eval_dataset=rows[240:],
    callbacks=[Report(), EarlyStoppingCallback(5)],
    args=TrainingArguments(
        output_dir=str(args.out),
        num_train_epochs=4,
        per_device_train_batch_size=5,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        warmup_steps=5,
        lr_scheduler_type="cosine",
        eval_strategy="steps",
        eval_steps=5,
        save_strategy="steps",
        save_steps=5,
        save_total_limit=3,
        load_best_model_at_end=True,
        restore_callback_states_from_checkpoint=True,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    ),
)
wanted = {"trainer_state.json", *(f"rng_state_{rank}.pth" for rank in range(int(os.environ["WORLD_SIZE"])))}
complete = [one for one in args.out.glob("checkpoint-*") if wanted <= set(os.listdir(one))] if args.resume else []
last = max(complete, key=lambda one: int(one.name.partition("-")[2]), default=None)
trainer.train(resume_from_checkpoint=last and str(last))
if trainer.is_world_process_zero():
    trainer.save_model(str(args.out / "final"))
