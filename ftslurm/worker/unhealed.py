"""Warns the user of a script that trains without a torchft Manager: nothing will heal it.

torch calls a hook after each step of each optimizer. A script that has taken ten of them without a Manager trains
without one. Other signs would be wrong:

- DistributedDataParallel, FSDP or a process group: HSDP uses them inside a group, and creates its Manager later.
- Some seconds without a Manager: reading weights or a data set may take any time.
- The first step: some scripts take an empty one to create the optimizer's state before they create the Manager.

A script that ends sooner is checked at its end: the user is warned if it has taken a step, or leaves a process group.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from ftslurm.words import by_count

STEPS = 10


class Watch:
    """Watches this process until a Manager is created or the tenth optimizer step is taken."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        """Set up the watch; `install` starts it.

        `groups` is the number of replica groups of the run; at 0 (a run without a quorum) there is no warning.

        Args:
            warn: called with the text for the user, at most once.
        """
        self.groups = 0
        self.over = True  # nothing is watched yet; then: there is a Manager, or the user is warned
        self._warn = warn
        self._steps = 0

    def install(self) -> None:
        """Start to watch; there is no warning before."""
        importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(self._stepped)
        self.over = False

    def ended(self) -> None:
        """Handle that the script has ended without an error."""
        import torch.distributed as dist

        if self._steps or (dist.is_available() and dist.is_initialized()):
            self._tell()

    def _stepped(self, *_: object) -> None:
        if not self.over:
            self._steps += 1
            if self._steps == STEPS:
                self._tell()

    def _tell(self) -> None:
        if self.groups and not self.over:
            self._warn(words(self.groups))
        self.over = True


def words(groups: int) -> str:
    """Return the warning for the user."""
    apart = by_count(groups, "", f"its {groups} groups train a model each and never average with one another, and ")
    return (
        f"the script trains without torchft (it has made no Manager): {apart}nothing heals a group that fails, its "
        "next attempt starts from the beginning, or from a checkpoint that the script itself loads. The few lines that "
        "change this: ftslurm help fault-tolerant"
    )
