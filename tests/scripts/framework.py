"""Runs an unchanged example for a framework, see example.py, and prints digests of what it holds at its end.

EVALUATION  GROUP STEP: this group's first attempt dies in its evaluation after this step, or takes longer
SLOW        seconds that it takes longer
SAVING      GROUP: this group's first attempt dies when it has written the files of its first checkpoint
"""

import os
import signal
import time
from typing import Any

import torch
from digests import digest

from ftslurm.checkpoint import snapshot
from ftslurm.frameworks import training

group, step = os.environ.get("EVALUATION", "-1 0").split()
me = os.environ["REPLICA_GROUP_ID"] if os.environ["FTSLURM_ATTEMPT"] == "0" else None
write = snapshot.write
close, take, train = training.Training.close, training.Training.take, torch.nn.Module.train
taken = -1


def tell(self: training.Training) -> None:
    for name, item in self._held.items():
        print(f"held {name} {digest(item.state_dict())}", flush=True)
    close(self)


def note(self: training.Training) -> list[Any]:
    global taken
    taken = self.updates
    return take(self)


def die(self: torch.nn.Module, mode: bool = True) -> torch.nn.Module:
    global taken
    if not mode and taken + 1 == int(step):  # the update of that step is over
        if "SLOW" not in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        taken = -1  # once, not for each of the modules in the model
        time.sleep(float(os.environ["SLOW"]))
    return train(self, mode)


def die_saving(*args: Any) -> Any:
    write(*args)
    os.kill(os.getpid(), signal.SIGKILL)  # nothing says yet that these files are a checkpoint


training.Training.close = tell  # type: ignore[method-assign]
training.Training.take = note  # type: ignore[method-assign]
if me == group:
    torch.nn.Module.train = die
if me is not None and me == os.environ.get("SAVING"):
    snapshot.write = die_saving  # type: ignore[assignment]
import example  # noqa: F401
