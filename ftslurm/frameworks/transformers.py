"""transformers' Trainer, with updates of all replica groups: `from ftslurm.frameworks.transformers import Trainer`.

The Trainer's loop is kept. An update that the groups do not commit is repeated before the Trainer takes its step, so
`global_step`, schedule and callbacks go on once for each update. An epoch ends at the same `global_step` in all groups.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from ftslurm.frameworks.training import GROUP, Training, check_version, refuse, tell_unheld, updates_per_epoch

check_version("transformers", ">=5.23,<5.24")
OF_STATE = """
    epoch global_step total_flos log_history num_input_tokens_seen best_metric best_global_step best_model_checkpoint
"""
OF_TRAINER = "_tr_loss _total_loss_scalar _globalstep_last_logged"


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """A Trainer for one replica group of several. It saves its own files, as the best model, to OUTPUT_DIR/group-N."""

    training: Any = None  # a Training from the first update to the end of `train`

    def __init__(self, *args: Any, callbacks: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, callbacks=[_Updates(self), *(callbacks or ())], **kwargs)
        refuse(
            {
                "FSDP or DeepSpeed: use DDP": self.is_fsdp_enabled or self.is_deepspeed_enabled,
                "auto_find_batch_size: set per_device_train_batch_size": self.args.auto_find_batch_size,
            }
        )
        self.args.output_dir += f"/group-{GROUP}"
        tell_unheld(one for one in self.callback_handler.callbacks if not isinstance(one, ExportableState))

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train to the end, from the newest checkpoint of `checkpoint.every`."""
        refuse({"resume_from_checkpoint: checkpoint.every saves, ftslurm resume restores": resume_from_checkpoint})
        return super().train(None, *args, **kwargs)

    def get_train_dataloader(self) -> DataLoader:
        self.loader = super().get_train_dataloader()
        return self.loader

    def set_initial_training_values(self, args: TrainingArguments, dataloader: DataLoader) -> tuple[Any, ...]:
        values = super().set_initial_training_values(args, dataloader)
        epoch = updates_per_epoch(dataloader, args.gradient_accumulation_steps)
        steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * epoch)
        # As if an epoch had all updates: on_step_end ends it, because a healed group comes into the middle of one.
        return (math.ceil(steps / epoch), steps, *values[2:5], steps * args.gradient_accumulation_steps, steps)

    def get_batch_samples(self, _: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        if self.training is None:
            held = {"model": self.model, "optimizer": self.optimizer, "schedule": self.lr_scheduler, "trainer": self}
            if self.accelerator.scaler is not None:
                held["scaler"] = self.accelerator.scaler
            self.training = Training(held, self.loader, self.args.gradient_accumulation_steps, self.args.seed)
        if self.state.global_step >= self.state.max_steps:  # as restored
            return [], None
        return super().get_batch_samples(iter(self.training.take()), num_batches, device)

    def training_step(self, model: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(model, *args, **kwargs)
        if self.accelerator.sync_gradients:
            self.training.average(self.model)
        return loss

    def repeat(self) -> None:
        """Compute the gradients again: a group has failed. The next batches may be others."""
        self.model.zero_grad()
        if (scaler := self.accelerator.scaler) is not None:
            scaler.update(scaler.get_scale())
        batches, items = self.get_batch_samples(iter(()), self.args.gradient_accumulation_steps, self.args.device)
        for left, batch in zip(reversed(range(len(batches))), batches, strict=True):
            self.accelerator.sync_gradients = not left
            self.training_step(self.model_wrapped, batch, items)
        if self.args.max_grad_norm > 0:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        output = super().evaluation_loop(*args, **kwargs)
        if self.training is not None and output.metrics:
            own = {key: value for key, value in output.metrics.items() if isinstance(value, float)}
            output.metrics.update(zip(own, self.training.agree([*own.values()]), strict=True))
        return output

    def state_dict(self) -> dict[str, Any]:
        """Return the part of the Trainer's own state that decides about the next updates."""
        return copy.deepcopy(
            {
                "state": {name: getattr(self.state, name) for name in OF_STATE.split()},
                "trainer": {name: getattr(self, name) for name in OF_TRAINER.split()},
                "callbacks": [one.state()["attributes"] for one in self._stateful()],
            }
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take this state over."""
        self.state.__dict__.update(state["state"])
        self.__dict__.update(state["trainer"])
        for one, attributes in zip(self._stateful(), state["callbacks"], strict=True):
            one.__dict__.update(attributes)

    def _stateful(self) -> list[Any]:
        return [one for one in self.callback_handler.callbacks if isinstance(one, ExportableState)]


class _Updates(TrainerCallback):  # type: ignore[misc]
    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        while not self.trainer.training.commit():
            self.trainer.repeat()

    def on_step_end(self, _: TrainingArguments, state: TrainerState, control: TrainerControl, **__: Any) -> None:
        length = self.trainer.training.updates_per_epoch
        state.epoch = state.global_step / length
        control.should_epoch_stop |= state.global_step % length == 0

    def on_epoch_end(self, _: TrainingArguments, __: TrainerState, control: TrainerControl, **___: Any) -> None:
        if control.should_training_stop:
            self.trainer.training.save()  # before the best model is loaded

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.trainer.training.close()
        self.trainer.training = None
