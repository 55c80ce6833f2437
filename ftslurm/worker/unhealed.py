"""Warns the user of a script that trains without a torchft Manager, which nothing will heal, or with wrong settings.

torch calls a hook after each step of each optimizer. A script that has taken ten of them without a Manager trains
without one. Other signs would be wrong:

- DistributedDataParallel, FSDP or a process group: HSDP uses them inside a group, and creates its Manager later.
- Some seconds without a Manager: reading weights or a data set may take any time.
- The first step: some scripts take an empty one to create the optimizer's state before they create the Manager.

A script that ends sooner is checked at its end: the user is warned if it has taken a step, or leaves a process group.

By the tenth step a script that does not select its GPU has shown it, too (devices.misplaced), or that it sets variables
too late (read_variables.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from ftslurm.checkpoint import devices
from ftslurm.worker import read_variables
from ftslurm.worker.onlooker import Onlooker, quietly

STEPS = 10
WARNING = (
    "the script trains without torchft (it has made no Manager): each group trains a model of its own and never "
    "averages with another one, nothing heals a group that fails, its next attempt starts from the beginning, or from "
    "a checkpoint that the script itself loads. All groups write the same files, unless {REPLICA_GROUP_ID} is in their "
    "paths (job.args). The few lines that change this: ftslurm help fault-tolerant"
)


class Watch(Onlooker):
    """Watches this process until the tenth optimizer step is taken, or a Manager is created.

    Args:
        warn: called with a text for the user, at most once with each.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__()
        self.over = True  # nothing is watched yet; then: there is a Manager, or the user is warned
        self._warn = warn
        self._steps = 0
        self.before: Mapping[str, str] | None = None  # the variables with which the script began; None: not looked at

    def install(self) -> None:
        """Start to watch; there is no warning before."""
        importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(self._stepped)
        self.over = False

    @quietly
    def ended(self) -> None:
        """Handle that the script has ended without an error."""
        import torch.distributed as dist

        self._look_at_variables()
        if self._steps or (dist.is_available() and dist.is_initialized()):
            self._tell()

    @quietly
    def _stepped(self, *_: object) -> None:
        self._steps += 1
        if self._steps == STEPS:
            self._tell()
            if text := devices.misplaced():
                self._warn(text)
            self._look_at_variables()

    def _look_at_variables(self) -> None:
        if self.before is not None and (text := read_variables.too_late(self.before)):
            self._warn(text)
        self.before = None

    def _tell(self) -> None:
        if not self.over:
            self.over = True
            self._warn(WARNING)
