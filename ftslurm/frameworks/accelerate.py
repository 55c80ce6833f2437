"""Accelerate, with updates of all replica groups: `from ftslurm.frameworks.accelerate import Accelerator`.

accelerator = Accelerator(gradient_accumulation_steps=2)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for epoch in accelerator.epochs(4, loader):
    for batch in accelerator.batches():
        with accelerator.accumulate(model):
            accelerator.backward(loss(model, batch))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
accelerator.end_training()

What is given to `prepare` or `register_for_checkpointing` is healed and saved. Inside a group, Accelerate averages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import accelerate
import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import DistributedType, send_to_device
from torch import nn
from torch.utils.data import DataLoader

from ftslurm.checkpoint import Stateful
from ftslurm.frameworks.training import FrameworkError, Training, check_version, refuse, updates_per_epoch

check_version("accelerate", ">=1.15,<1.16")
SHARED = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
OWN_FILES = "save_state and load_state: remove them, checkpoint.every saves and ftslurm resume restores"
OTHER_DATA = "a DataLoader beside accelerator.batches(): join its samples to those of the dataset that epochs() gets"


class Accelerator(accelerate.Accelerator):  # type: ignore[misc]
    """An Accelerator for one replica group of several."""

    _training: Training | None = None  # from `epochs` on

    def __init__(self, *args: Any, seed: int = 0, **kwargs: Any) -> None:
        """Args:
            seed: of the order of the data, the same in all groups.

        Raises:
            FrameworkError: the group shares its model out, or saves, in a way that is not supported.
        """  # fmt: skip
        super().__init__(*args, **kwargs)
        refuse(
            {
                f"{self.distributed_type.value}: use DDP": self.distributed_type not in SHARED,
                OWN_FILES: self.project_configuration.automatic_checkpoint_naming,
            }
        )
        self._seed = seed
        self._held: dict[str, Stateful] = {} if self.scaler is None else {"scaler": self.scaler}

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        """Prepare, and hold what is prepared; a DataLoader for `epochs` keeps its order."""
        ready = super().prepare(*args, **kwargs)
        for item in ready if isinstance(ready, tuple) else (ready,):
            if not isinstance(item, DataLoader):
                self._hold(self.unwrap_model(item) if isinstance(item, nn.Module) else item)
        return ready

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Have these healed and saved, too."""
        super().register_for_checkpointing(*objects)
        for item in objects:
            self._hold(item)

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None) -> Any:
        """Return an optimizer that takes a step only if all groups do."""
        if not isinstance(optimizer, _Committing):
            place = self.device_placement if device_placement is None else device_placement
            optimizer = _Committing(optimizer, device_placement=place, scaler=self.scaler)
            optimizer.accelerator, optimizer._is_accelerate_prepared = self, True
        return super().prepare_optimizer(optimizer)

    @property
    def training(self) -> Training:
        """The training; there is one from `epochs` on."""
        if self._training is None:
            raise FrameworkError("no training has begun: loop over accelerator.epochs() and accelerator.batches()")
        return self._training

    @property
    def updates(self) -> int:
        """The number of updates so far, the same in all groups."""
        return self.training.updates

    def updates_per_epoch(self, loader: DataLoader) -> int:
        """Return how many updates of all groups an epoch has: the unit of schedules."""
        return updates_per_epoch(loader, self.gradient_accumulation_steps)

    def epochs(self, count: int, loader: DataLoader) -> Iterator[int]:
        """Yield the epochs that are still to be trained, the same at the same update in all groups."""
        optimizers = sum(isinstance(item, _Committing) for item in self._held.values())
        refuse({f"{optimizers} optimizers: prepare one, with a group of parameters for each": optimizers != 1})
        self._training = training = Training(self._held, loader, self.gradient_accumulation_steps, self._seed)
        while training.updates < count * training.updates_per_epoch:
            training.begin()
            self._open = self.gradient_state.dataloader_references  # loops that were left before
            yield training.updates // training.updates_per_epoch

    def batches(self) -> Iterator[Any]:
        """Yield this group's batches up to the end of the epoch, for each update as many as are accumulated."""
        before = self.updates
        while self.updates == before or self.updates % self.training.updates_per_epoch:  # not committed, or not the end
            batches, before = self.training.take(), self.updates
            self.step = 0  # of the accumulation
            for batch in batches:
                yield send_to_device(batch, self.device)
            self._open = self.gradient_state.dataloader_references

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Compute gradients; those of an update are averaged over the groups."""
        super().backward(loss, **kwargs)
        if self.sync_gradients:
            training = self.training
            refuse({OTHER_DATA: {*self.gradient_state.dataloader_references} - {*self._open}})
            for item in self._held.values():
                if isinstance(item, nn.Module):
                    training.average(item)

    def agree(self, value: float) -> float:
        """Return the mean over the groups of a metric by which the script decides."""
        return self.training.agree([value])[0]

    def save_state(self, *_: Any, **__: Any) -> Any:
        """Refuse: a state of one group is none of the run's."""
        refuse({OWN_FILES: True})

    load_state = save_state

    def end_training(self) -> None:
        """End: call it after the last epoch."""
        super().end_training()
        self.training.close()

    def _hold(self, item: Stateful) -> None:
        self._held[f"{type(item).__name__}-{len(self._held)}"] = item


class _Committing(AcceleratedOptimizer):  # type: ignore[misc]
    accelerator: Accelerator
    committed = False

    def step(self, closure: Any = None) -> None:
        if self.gradient_state.sync_gradients:
            self.committed = self.accelerator.training.commit()
            if self.committed:
                super().step(closure)
            elif self.scaler is not None:
                self.scaler.update(self.scaler.get_scale())  # as before this update

    @property
    def step_was_skipped(self) -> bool:
        return not self.committed or bool(super().step_was_skipped)
