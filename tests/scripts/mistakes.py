"""Makes mistakes that a framework's module refuses, one after the other, and prints what it says. Env FRAMEWORK."""

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ftslurm.errors import FtslurmError

data = TensorDataset(torch.rand(64, 2), torch.zeros(64, dtype=torch.long))


class Stream(IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Iterator[Any]:
        return iter(data)


def attempt(what: str, mistake: Callable[[], object]) -> None:
    try:
        mistake()
    except FtslurmError as error:
        print(f"refused {what}: {error}", flush=True)
    else:
        print(f"NOT REFUSED {what}", flush=True)


def accelerate() -> None:
    from accelerate.utils import ProjectConfiguration

    from ftslurm.frameworks.accelerate import Accelerator

    named = ProjectConfiguration(project_dir="x", automatic_checkpoint_naming=True)
    attempt("automatic naming", lambda: Accelerator(cpu=True, project_config=named))
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(2, 2)
    attempt("save_state", accelerator.save_state)
    attempt("load_state", lambda: accelerator.load_state("x"))
    attempt("no optimizer", lambda: next(accelerator.epochs(1, DataLoader(data))))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, sgd, DataLoader(data, 4))
    attempt("a stream", lambda: next(accelerator.epochs(1, DataLoader(Stream()))))
    attempt("an own loop", lambda: accelerator.backward(model(next(iter(loader))[0]).sum()))
    next(accelerator.epochs(1, loader))
    batches = accelerator.batches()

    def take(averaging: bool) -> None:
        loss = model(next(batches)[0]).sum()
        accelerator.backward(loss) if averaging else loss.backward()

    beside = iter(accelerator.prepare(DataLoader(data, 4)))
    next(beside)
    attempt("a second loader", lambda: take(averaging=True))
    list(beside)
    accelerator.backward(model(data[:4][0]).sum())
    optimizer.step()
    left = iter(accelerator.prepare(DataLoader(data, 4)))
    next(left)  # an evaluation that ends early is no mistake
    take(averaging=True)
    optimizer.step()
    attempt("two steps of an update", optimizer.step)
    take(averaging=False)
    attempt("a step without an average", optimizer.step)
    attempt("no step of an update", lambda: take(averaging=True))
    accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    attempt("two optimizers", lambda: next(accelerator.epochs(1, loader)))
    accelerator.end_training()


def transformers() -> None:
    from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

    from ftslurm.frameworks.transformers import Trainer

    shape = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    model = BertForSequenceClassification(BertConfig(vocab_size=10, **shape))
    row = {"input_ids": torch.tensor([1]), "labels": 0}

    class Rows(Stream):
        def __iter__(self) -> Iterator[Any]:
            return iter([row] * 64)

    def trainer(rows: object, **settings: object) -> Trainer:
        given = {"max_steps": 4, "per_device_train_batch_size": 2, "use_cpu": True, "report_to": "none"}
        arguments = TrainingArguments(tempfile.mkdtemp(), save_strategy="no", **given, **settings)
        return Trainer(model, arguments, train_dataset=rows)

    attempt("auto_find_batch_size", lambda: trainer([row] * 64, auto_find_batch_size=True))
    attempt("a stream", trainer(Rows()).train)
    attempt("resume_from_checkpoint", lambda: trainer([row] * 64).train(resume_from_checkpoint=True))
    trainer([row] * 64).train()
    attempt("a second training", trainer([row] * 64).train)


def lightning() -> None:
    import lightning
    from lightning.pytorch import callbacks

    from ftslurm.frameworks.lightning import FaultTolerantStrategy

    class Net(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, plateau: bool = False, automatic: bool = True) -> None:
            super().__init__()
            self.net, self.plateau, self.automatic_optimization = nn.Linear(2, 2), plateau, automatic

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            loss = self.net(batch[0]).sum()
            self.log("train_loss", loss, on_epoch=True)
            return loss

        def validation_step(self, batch: list[torch.Tensor]) -> None: ...

        def configure_optimizers(self) -> object:
            sgd = torch.optim.SGD(self.parameters(), lr=0.1)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd)
            schedule = {"scheduler": plateau, "monitor": "train_loss_epoch", "interval": "epoch"}
            return {"optimizer": sgd, "lr_scheduler": schedule} if self.plateau else sgd

    class Average(callbacks.WeightAveraging):  # type: ignore[misc]
        pass

    def fit(net: Net | None = None, rows: object = data, path: str | None = None, **settings: object) -> None:
        off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        given = {"accelerator": "cpu", "devices": 1, "max_epochs": 2} | dict.fromkeys(off, False) | settings
        trainer = lightning.Trainer(strategy=FaultTolerantStrategy(), **given)
        trainer.fit(net or Net(), DataLoader(rows, 4), DataLoader(data), ckpt_path=path)

    saved = f"{tempfile.mkdtemp()}/x.ckpt"
    plain = lightning.Trainer(accelerator="cpu", max_epochs=0, logger=False)
    plain.fit(Net(), DataLoader(data))
    plain.save_checkpoint(saved)
    attempt("manual optimization", lambda: fit(Net(automatic=False)))
    attempt("ckpt_path", lambda: fit(path=saved))
    attempt("a time between validations", lambda: fit(val_check_interval="00:00:01:00"))
    attempt("overfit_batches", lambda: fit(overfit_batches=2))
    attempt("half an update", lambda: fit(limit_train_batches=3, accumulate_grad_batches=2))
    attempt("reloads", lambda: fit(reload_dataloaders_every_n_epochs=1))
    attempt("a stream", lambda: fit(rows=Stream(), limit_train_batches=4))
    for one in (
        callbacks.StochasticWeightAveraging(0.1),
        callbacks.GradientAccumulationScheduler({0: 2}),
        callbacks.Timer("00:00:01:00"),
        Average(),
    ):
        attempt(type(one).__name__, partial(fit, callbacks=[one]))
    attempt("max_time", lambda: fit(max_time="00:00:01:00"))
    attempt("a plateau of training", lambda: fit(Net(plateau=True)))


{"accelerate": accelerate, "transformers": transformers, "lightning": lightning}[os.environ["FRAMEWORK"]]()
print("tried all", flush=True)
