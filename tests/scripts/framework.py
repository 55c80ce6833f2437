"""Runs an unchanged example for a framework, see example.py, and prints digests of what it holds at its end.

EVALUATION  GROUP STEP: this group's first attempt dies in its evaluation after this step, or takes longer
SLOW        seconds that it takes longer
SAVING      GROUP: this group's first attempt dies when it has written the files of its first checkpoint
"""

import hashlib
import os
import re
import signal
import time
from typing import Any

import torch

from ftslurm.checkpoint import snapshot
from ftslurm.frameworks import training

OF_ONE_GROUP = (
    *("dirpath", "best_model_path", "last_model_path", "total_flos", "_tr_loss", "_total_loss_scalar"),
    *("log_history", "metrics"),
)
FOLDER = re.compile(r"group-\d+")  # where each group has its own files
COUNTED = ".num_batches_tracked"  # of BatchNorm: also of updates that were not committed
group, step = os.environ.get("EVALUATION", "-1 0").split()
me = os.environ["REPLICA_GROUP_ID"] if os.environ["FTSLURM_ATTEMPT"] == "0" else None
write = snapshot.write
close, take, train = training.Training.close, training.Training.take, torch.nn.Module.train
taken = -1


def said(value: Any) -> str:
    """Return a value as text, bit for bit, without what each group has for itself."""
    if isinstance(value, torch.Tensor):
        return str(value.detach().cpu().contiguous().view(-1).view(torch.uint8).tolist())
    if isinstance(value, dict):
        return str(
            {
                FOLDER.sub("group", str(key)): said(one)
                for key, one in value.items()
                if not str(key).endswith((*OF_ONE_GROUP, COUNTED))
            }
        )
    return str([said(one) for one in value]) if isinstance(value, list | tuple) else FOLDER.sub("group", repr(value))


def tell(self: training.Training) -> None:
    for name, item in self._held.items():
        print(f"held {name} {hashlib.sha256(said(item.state_dict()).encode()).hexdigest()}", flush=True)
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
