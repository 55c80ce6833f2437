"""Train a small GPT-2 with Hugging Face's Trainer, made fault tolerant by `ftslurm.frameworks.transformers`.

Only the import of the Trainer differs from a script for one group. The model's configuration is written here and its
weights are random, so that nothing has to be downloaded. To try it:

    ftslurm job.script=example:train_hf.py job.args.steps=60 job.total_steps=60 groups.count=2 checkpoint.every=20 \
        faults=kill_one
"""

import argparse
import hashlib
import tempfile

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from ftslurm.frameworks.transformers import Trainer


class Sums(Dataset):
    """Examples to learn from: the digits of a + b = c."""

    def __init__(self, numbers: range) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        a, b = divmod(self.numbers[place], 100)
        digits = torch.tensor([int(digit) for digit in f"{a:02}{b:02}{a + b:03}"])
        return {"input_ids": digits, "labels": digits}


class Report(TrainerCallback):
    def on_evaluate(self, _: object, state: TrainerState, __: object, metrics: dict, **___: object) -> None:
        print(f"evaluation at step {state.global_step}: {metrics['eval_loss']}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--lr", type=float, default=1e-3)
    options.add_argument("--weight-decay", type=float, default=0.0)
    options.add_argument("--evaluate-every", type=int, default=8)
    options.add_argument("--patience", type=int, default=3, help="evaluations without progress before the end")
    args = options.parse_args()

    set_seed(0)  # the first weights, the same in all groups
    shape = {"n_positions": 8, "n_embd": 64, "n_layer": 2, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=10, bos_token_id=None, eos_token_id=None, **shape))
    with tempfile.TemporaryDirectory() as nothing:
        trainer = Trainer(
            model=model,
            train_dataset=Sums(range(10_000)),
            eval_dataset=Sums(range(0, 10_000, 97)),
            callbacks=[EarlyStoppingCallback(args.patience), Report()],
            args=TrainingArguments(
                output_dir=nothing,
                max_steps=args.steps,
                per_device_train_batch_size=args.batch_size,
                gradient_accumulation_steps=2,
                learning_rate=args.lr,
                weight_decay=args.weight_decay,
                warmup_steps=5,
                eval_strategy="steps",
                eval_steps=args.evaluate_every,
                metric_for_best_model="eval_loss",
                use_cpu=not torch.cuda.is_available(),  # else a group's workers would not average on CPUs
                save_strategy="no",  # checkpoint.every saves
                report_to="none",  # each group would log its own run
                disable_tqdm=True,
            ),
        )
        trainer.train()
    weights = [p.detach().cpu().contiguous().view(torch.uint8).flatten() for p in model.parameters()]
    print(f"weights sha256={hashlib.sha256(bytes(torch.cat(weights).tolist())).hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
