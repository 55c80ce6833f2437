"""Runs an unchanged script under torchrun or ftslurm, and prints digests of what has a state at its end.

SCRIPT  the script's path
DEATHS  a word for each attempt: `3`: rank 1 dies after its third update; `save`: rank 0 dies in its first save
"""

import os
import runpy
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from digests import digest
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

rank, updates, save = int(os.environ["RANK"]), 0, torch.save
death = dict(enumerate(os.environ.get("DEATHS", "").split())).get(int(os.environ.get("FTSLURM_ATTEMPT", "0")), "")


def die_in_training(*_: object) -> None:
    global updates
    updates += 1
    if updates == int(death):
        os.kill(os.getpid(), signal.SIGKILL)


def die_saving(state: object, file: Any, *args: Any, **kwargs: Any) -> None:
    save(state, file, *args, **kwargs)
    if isinstance(file, str | os.PathLike):
        os.truncate(file, os.stat(file).st_size // 2)
    os.kill(os.getpid(), signal.SIGKILL)


def states(value: Any) -> dict[str, Any]:
    if isinstance(value, type | ModuleType | DataLoader):
        return {}
    if hasattr(value, "callback_handler"):  # transformers' Trainer
        kept = {key: getattr(value.state, key) for key in ("global_step", "epoch", "best_metric")}
        callbacks = [one.state() for one in value.callback_handler.callbacks if hasattr(one, "state")]
        return {"state": kept, "callbacks": callbacks, **states([value.optimizer, value.lr_scheduler])}
    if hasattr(value, "callbacks"):  # Lightning's Trainer
        kept = {"step": value.global_step, "epoch": value.current_epoch}
        schedules = [one.scheduler for one in value.lr_scheduler_configs]
        return {"state": kept, **states([*value.callbacks, *value.optimizers, *schedules])}
    if isinstance(value, list):
        return {f"{type(one).__name__}{key}": state for one in value for key, state in states(one).items()}
    return {"": value.state_dict()} if hasattr(value, "state_dict") else {}


if death == "save" and rank == 0:
    torch.save = die_saving
elif death.isdigit() and rank == 1:
    register_optimizer_step_post_hook(die_in_training)
sys.path[0] = str(Path(os.environ["SCRIPT"]).parent)
for name, value in runpy.run_path(os.environ["SCRIPT"], run_name="__main__").items():
    for key, state in states(value).items():
        print(f"held {name}.{key} {digest(state)}", flush=True)
