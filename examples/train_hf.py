"""Train a small GPT-2 with Hugging Face's Trainer, made fault tolerant with torchft.

The Trainer runs its usual loop in each replica group. Four things are added, all in FaultTolerantTrainer:

    get_batch_samples   asks for the quorum, then takes the batch that belongs to this group in this step
    training_step       averages the gradients over the groups, before the Trainer clips them
    create_optimizer    torchft's Optimizer, which takes the step only if no group has failed; its settings stay those
                        of the command line, whatever a checkpoint or a peer brings
    Steps (a callback)  the Trainer's count of steps follows the manager's, which a group that comes back copies

Every batch is trained on exactly once and in order, as in train_ddp.py. The model's configuration is written here and
its weights are random, so that nothing has to be downloaded. To try it:

    ftslurm job.script=example:train_hf.py job.args.steps=60 job.total_steps=60 groups.count=2 checkpoint.every=20 \
        faults=kill_one

Groups of several workers work, too: the Trainer then averages inside the group with DDP.
"""

import argparse
import itertools
import json
import os
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchft import Manager, Optimizer, ProcessGroupGloo, ProcessGroupNCCL
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from ftslurm.checkpoint import Checkpointer

GROUP = os.environ.get("REPLICA_GROUP_ID", "0")
RANK = int(os.environ.get("RANK", 0))  # within the group
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))


class Sums(Dataset):
    """Numbered examples to learn from: the digits of a + b = c."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        a, b = number // 100, number % 100
        digits = torch.tensor([int(digit) for digit in f"{a:02}{b:02}{a + b:03}"])
        return {"input_ids": digits, "labels": digits}


class FaultTolerantTrainer(Trainer):
    def __init__(self, manager: Manager, **arguments: object) -> None:
        self.manager = manager
        super().__init__(**arguments)
        self.order = torch.randperm(len(self.train_dataset), generator=torch.Generator().manual_seed(self.args.seed))
        self.last: tuple[int, list[int]] = (0, [])  # the step that is being taken, and its batches

    def get_train_dataloader(self) -> Iterator[dict]:
        """No loader: it would read ahead, and which batch is next is known only with the quorum."""
        return itertools.repeat({})

    def get_batch_samples(self, _loader: Iterator, num_batches: int, _device: torch.device) -> tuple[list, None]:
        self.manager.start_quorum()  # a group without the state copies it here from a live one
        if self.lr_scheduler.last_epoch != (step := self.manager.current_step()):  # restored, copied or not committed
            self.lr_scheduler.last_epoch = step - 1
            self.lr_scheduler.step()  # sets the learning rate of this step
        first = self.manager.batches_committed() + (self.manager.participating_rank() or 0)
        numbers = [first * num_batches + i for i in range(num_batches)]  # several, if gradients are accumulated
        self.last = (self.manager.current_step(), numbers)
        return [self.batch(number) for number in numbers], None

    def batch(self, number: int) -> dict[str, Tensor]:
        """This worker's part of a batch."""
        size = self.args.per_device_train_batch_size
        start = (number * WORLD_SIZE + RANK) * size
        chosen = self.order[torch.arange(start, start + size) % len(self.order)]
        return self.data_collator([self.train_dataset[i] for i in chosen.tolist()])

    def training_step(self, model: torch.nn.Module, *args: object, **kwargs: object) -> Tensor:
        loss = super().training_step(model, *args, **kwargs)  # backward is in it; the Trainer moves the batch
        if self.accelerator.sync_gradients:  # all batches of this step are done
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            flat = torch.cat([grad.flatten() for grad in grads])
            self.manager.allreduce(flat).wait()  # never raises: an error makes the step be repeated
            for grad, mean in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
                grad.copy_(mean.view_as(grad))
        return loss

    def create_optimizer(self, *args: object, **kwargs: object) -> torch.optim.Optimizer:
        if self.optimizer is None:
            adamw = super().create_optimizer(*args, **kwargs)
            adamw.register_load_state_dict_pre_hook(
                lambda own, state: {**state, "param_groups": own.state_dict()["param_groups"]}
            )
            self.optimizer = Optimizer(self.manager, adamw)
        return self.optimizer


class Steps(TrainerCallback):
    """Counts the steps as the manager does, and saves checkpoints."""

    def __init__(self, manager: Manager, samples: str | None) -> None:
        self.manager, self.samples = manager, samples
        self.trainer: FaultTolerantTrainer | None = None
        self.checkpointer: Checkpointer | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Restore now: model, optimizer and the process group inside the group exist, and there was no quorum yet."""
        self.checkpointer = Checkpointer(self.manager)
        self.checkpointer.restore()
        state.global_step = self.manager.current_step()
        control.should_training_stop = state.global_step >= args.max_steps

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self.checkpointer.step()
        step, numbers = self.trainer.last
        if self.manager.current_step() > step:
            self.committed(numbers)
        # The Trainer has counted on, committed or not, and knows nothing of a step that was copied from another group.
        state.global_step = self.manager.current_step()
        control.should_training_stop = state.global_step >= args.max_steps

    def committed(self, numbers: list[int]) -> None:
        step = self.manager.current_step()
        if step % 10 == 0:
            lr = self.trainer.lr_scheduler.get_last_lr()[0]
            print(f"group {GROUP} rank {RANK} | step {step} | {self.manager.num_participants()} groups | lr {lr:.2e}")
        if self.samples:
            line = {"step": step, "committed": self.manager.batches_committed(), "batches": numbers}
            with Path(f"{self.samples}-{GROUP}-{RANK}").open("a") as file:
                file.write(json.dumps(line) + "\n")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--lr", type=float, default=1e-3)
    options.add_argument("--weight-decay", type=float, default=0.0)
    options.add_argument(
        "--samples", help="a JSON line per committed step and the batches in it, to SAMPLES-GROUP-RANK"
    )
    args = options.parse_args()

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # before the Manager makes its streams
    set_seed(0)  # the first weights, the same in all groups
    shape = {"n_positions": 8, "n_embd": 64, "n_layer": 2, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=10, bos_token_id=None, eos_token_id=None, **shape))

    def state_dict() -> dict:
        return {"model": model.state_dict(), "optimizer": trainer.optimizer.state_dict()}

    def load_state_dict(state: dict) -> None:
        model.load_state_dict(state["model"])
        trainer.optimizer.load_state_dict(state["optimizer"])

    process_group = ProcessGroupNCCL if torch.cuda.is_available() else ProcessGroupGloo
    manager = Manager(
        pg=process_group(timeout=timedelta(seconds=30)),
        min_replica_size=1,
        use_async_quorum=False,  # the batch depends on the quorum
        init_sync=False,  # all groups begin with the same weights
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_hf_{GROUP}",
        timeout=timedelta(seconds=30),
    )
    steps = Steps(manager, args.samples)
    with tempfile.TemporaryDirectory() as nothing:
        trainer = steps.trainer = FaultTolerantTrainer(
            manager,
            model=model,
            train_dataset=Sums(),
            callbacks=[steps],
            args=TrainingArguments(
                output_dir=nothing,
                max_steps=args.steps,
                per_device_train_batch_size=args.batch_size,
                learning_rate=args.lr,
                weight_decay=args.weight_decay,
                warmup_steps=5,
                use_cpu=not torch.cuda.is_available(),  # else a group's workers would not average on CPUs
                save_strategy="no",  # the Checkpointer saves
                report_to="none",  # each group would log its own run
                logging_strategy="no",
                disable_tqdm=True,
            ),
        )
        trainer.train()

    with torch.no_grad():
        held = [Sums()[i] for i in range(0, 10_000, 97)]
        loss = model.eval()(**trainer._prepare_inputs(trainer.data_collator(held))).loss
    print(f"group {GROUP} rank {RANK} | step {manager.current_step()} | loss {loss:.3f} | final", flush=True)
    print(f"weights sha256={digest(model)}", flush=True)
    steps.checkpointer.close()
    manager.shutdown(wait=False)


def digest(model: torch.nn.Module) -> str:
    """A fingerprint of the weights, bit for bit."""
    import hashlib

    weights = [p.detach().cpu().contiguous().view(torch.uint8).flatten() for p in model.parameters()]
    return hashlib.sha256(bytes(torch.cat(weights).tolist())).hexdigest()


if __name__ == "__main__":
    main()
