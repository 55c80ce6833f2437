"""Lightning, with updates of all replica groups: `Trainer(strategy=FaultTolerantStrategy(), ...)`.

from ftslurm.frameworks.lightning import FaultTolerantStrategy

Lightning's loop is kept. Its counters, callbacks and schedules are state: a group that comes back gets them with the
first batch. After an update that was not committed they are set back, and its batches come again.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from typing import Any

import lightning
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ftslurm.checkpoint import Stateful
from ftslurm.frameworks.training import (
    GROUP,
    FrameworkError,
    Training,
    check_version,
    refuse,
    settings,
    tell_unheld,
    updates_per_epoch,
)

check_version("lightning", ">=2.6.6,<2.7")
ALONE = """
    BaseFinetuning BatchSizeFinder GradientAccumulationScheduler LearningRateFinder ModelPruning
    StochasticWeightAveraging Timer WeightAveraging
"""  # these callbacks change what is trained, or when, by a state that is neither healed nor saved


class FaultTolerantStrategy(DDPStrategy):  # type: ignore[misc]
    """DDP inside of a replica group of several. ModelCheckpoint saves to DIRPATH/group-N."""

    training: Training | None = None  # from the first batch to the end of `fit`
    _committed = True  # the last update
    _undo: tuple[Any, ...] = ()  # the states of `_between` to set back if it was not

    def __init__(self, *args: Any, seed: int = 0, **kwargs: Any) -> None:
        """Args:
        seed: of the order of the data, the same in all groups.
        """
        super().__init__(*args, **kwargs)
        self._seed = seed

    def setup(self, trainer: lightning.Trainer) -> None:
        super().setup(trainer)
        if trainer.training:
            self._prepare(trainer, self.lightning_module, trainer.datamodule)

    def _prepare(self, trainer: lightning.Trainer, module: lightning.LightningModule, data: Any) -> None:
        alone = tuple(getattr(callbacks, name) for name in ALONE.split())
        refuse(
            {
                "manual optimization: return the loss from training_step, or write a plain loop": not (
                    module.automatic_optimization
                ),
                "fit(ckpt_path=...): checkpoint.every saves, ftslurm resume restores": trainer.ckpt_path,
                "val_check_interval as a time: give batches": trainer._val_check_time_interval,
                "overfit_batches: give a smaller data set": trainer.overfit_batches,
                "reload_dataloaders_every_n_epochs: load once": trainer.reload_dataloaders_every_n_epochs,
                **{f"{type(one).__name__}: remove it": isinstance(one, alone) for one in trainer.callbacks},
            }
        )
        stateless = [one for one in trainer.callbacks if type(one).state_dict is Callback.state_dict]
        hooks = (module, "on_save_checkpoint"), (data, "state_dict")
        tell_unheld([*stateless, *(one for one, hook in hooks if hook in vars(type(one)))])
        for one in trainer.checkpoint_callbacks:
            one.dirpath = os.path.join(one.dirpath, f"group-{GROUP}")  # noqa: PTH118 it may be a URL
        trainer.callbacks.insert(0, _Agree())

    def process_dataloader(self, dataloader: DataLoader) -> Any:
        return _Batches(self, dataloader) if self.lightning_module.trainer.training else dataloader

    def take(self, loader: DataLoader, per_update: int) -> list[Any]:
        """Return the batches of the next update, none after the last. Lightning has counted none of them yet."""
        optimizer, trainer = self.optimizers[0], self.lightning_module.trainer
        if self.training is None:
            part = trainer.num_training_batches % per_update
            refuse({"limit_train_batches: give a multiple of accumulate_grad_batches": part})
            # Within an update an evaluation would be repeated with it.
            trainer.val_check_batch = max(trainer.val_check_batch // per_update, 1) * per_update
            held: dict[str, Stateful] = {"progress": _Progress(trainer, optimizer)}
            held |= {f"schedule-{n}": one.scheduler for n, one in enumerate(self.lr_scheduler_configs)}
            self._between, self._loader = [*held.values()], loader
            held |= {"model": self.lightning_module, "optimizer": optimizer, "precision": self.precision_plugin}
            self.training = Training(held, loader, per_update, self._seed)
        if loader is not self._loader:
            raise FrameworkError("only one DataLoader for training is supported, and it cannot be reloaded")
        if not self._committed:
            for item, state in zip(self._between, self._undo, strict=True):
                item.load_state_dict(state)
        self._committed = True
        self._check_monitors()
        self.training.begin()
        self._undo = copy.deepcopy(tuple(item.state_dict() for item in self._between))
        return [] if trainer.fit_loop.done else self.training.take()

    def _check_monitors(self) -> None:
        """Refuse decisions by what a group has measured on its own part of the data."""
        trainer = self.lightning_module.trainer
        own = {one.meta.name + end for one in trainer.fit_loop._results.values() for end in ("", "_epoch", "_step")}
        used = {getattr(one, "monitor", None) for one in (*trainer.callbacks, *self.lr_scheduler_configs)}
        refuse({f"{name}, measured in training, decides: log it in validation": True for name in own & used})

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        result = None

        def shared() -> Any:
            nonlocal result
            result = closure()
            assert self.training is not None
            self.training.average(self.lightning_module)
            self._committed = self.training.commit()
            if not self._committed:
                raise _NotCommitted
            return result

        try:
            return super().optimizer_step(optimizer, shared, *args, **kwargs)
        except _NotCommitted:
            return result

    def on_train_end(self) -> None:
        super().on_train_end()
        if not self._committed:
            raise FrameworkError("the last update was not committed: this group has to heal and repeat it")
        if self.training is not None:
            self.training.close()
            self.training = None


class _Agree(Callback):  # type: ignore[misc]
    """Callbacks and schedules decide by the means over the groups of what validation has measured."""

    def on_validation_end(self, trainer: lightning.Trainer, _: Any) -> None:
        if training := trainer.strategy.training:
            found = [one for one in trainer._results.values() if one.meta.on_epoch and not one.has_reset]
            own = [one.compute() for one in found]
            for one, value, mean in zip(found, own, training.agree([*map(float, own)]), strict=True):
                one._computed = torch.full_like(value, mean)
            assert trainer.callback_metrics is not None  # reads them


class _NotCommitted(Exception):
    pass


class _Batches:
    def __init__(self, strategy: FaultTolerantStrategy, loader: DataLoader) -> None:
        self._strategy, self._loader = strategy, loader
        self._per_update: int = strategy.lightning_module.trainer.accumulate_grad_batches

    def __len__(self) -> int:
        return updates_per_epoch(self._loader, self._per_update) * self._per_update

    def __iter__(self) -> Iterator[Any]:
        while batches := self._strategy.take(self._loader, self._per_update):
            yield from batches


class _Progress:
    def __init__(self, trainer: lightning.Trainer, optimizer: Optimizer) -> None:
        self._optimizer, self._trainer, self._epoch = optimizer, trainer, trainer.fit_loop.epoch_loop
        self._counts = [trainer.fit_loop.epoch_progress, self._epoch.batch_progress, self._epoch.scheduler_progress]
        self._counts += [self._epoch.automatic_optimization.optim_progress, self._epoch.val_loop.batch_progress]

    def state_dict(self) -> dict[str, Any]:
        return copy.deepcopy(
            {
                "counts": [count.state_dict() for count in self._counts],
                "callbacks": [one.state_dict() for one in self._trainer.callbacks],
                "metrics": dict(self._trainer.callback_metrics),
                "logged": self._epoch._batches_that_stepped,
                "stop": self._trainer.should_stop,
                "settings": settings(self._optimizer),
            }
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for count, saved in zip(self._counts, state["counts"], strict=True):
            count.load_state_dict(saved)
        for group, saved in zip(self._optimizer.param_groups, state["settings"], strict=True):
            group.update(saved)
        for one, saved in zip(self._trainer.callbacks, state["callbacks"], strict=True):
            # The files are the other group's; without its folder ModelCheckpoint would forget them.
            one.load_state_dict(saved | ({"dirpath": one.dirpath} if isinstance(one, ModelCheckpoint) else {}))
        self._trainer.callback_metrics.update(state["metrics"])
        self._epoch._batches_that_stepped = state["logged"]
        self._trainer.should_stop = state["stop"]
        self._trainer.fit_loop._data_fetcher.fetched = self._epoch.batch_progress.current.ready  # tells the last batch
