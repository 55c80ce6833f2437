"""Warns the user of a script that trains without a torchft Manager: nothing will heal it.

torch calls a hook after each step of each optimizer, and the constructor of Manager is wrapped. A script that has taken
ten optimizer steps without a Manager trains without one. Other signs would be wrong:

- DistributedDataParallel, FSDP or a process group: HSDP uses them inside a group, and creates its Manager later.
- Some seconds without a Manager: reading weights or a data set may take any time.
- The first step: some scripts take an empty one to create the optimizer's state before they create the Manager.

A script that ends sooner is checked at its end: the user is warned if it has taken a step, or leaves a process group.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from ftslurm.words import by_count
from ftslurm.worker import patch_fit

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
        self._warn = warn
        self._steps = 0
        self._over = True  # not started yet
        self._distributed = False  # torch.distributed has been used

    def install(self) -> None:
        """Start to watch; there is no warning before.

        Raises:
            patch_fit.Misfit: this torch or torchft cannot be watched.
        """
        import torchft.manager

        optimizers = importlib.import_module("torch.optim.optimizer")
        patch_fit.require(optimizers, "register_optimizer_step_post_hook(hook)")
        patch_fit.require(torchft.manager, "Manager")
        hook = optimizers.register_optimizer_step_post_hook(self._stepped)
        original = torchft.manager.Manager.__init__

        @functools.wraps(original)
        def init(manager: Any, *args: Any, **kwargs: Any) -> None:
            self._over = True
            hook.remove()
            original(manager, *args, **kwargs)

        torchft.manager.Manager.__init__ = init
        self._over = False

    def ended(self) -> None:
        """Handle that the script has ended without an error."""
        if not self._over and (self._uses_distributed() or self._steps):
            self._tell()

    def _stepped(self, *_: object) -> None:
        self._steps += 1
        self._uses_distributed()
        if self._steps == STEPS and not self._over:
            self._tell()

    def _uses_distributed(self) -> bool:
        import torch.distributed

        self._distributed |= torch.distributed.is_available() and torch.distributed.is_initialized()
        return self._distributed

    def _tell(self) -> None:
        self._over = True  # the hook stays: torch is going through its hooks
        if self.groups:
            self._warn(words(self.groups, self._distributed))


def words(groups: int, distributed: bool) -> str:
    """Return the warning for the user."""
    how = "with torch.distributed but without torchft" if distributed else "without torchft"
    apart = by_count(groups, "", f"its {groups} groups train a model each and never average with one another, and ")
    return (
        f"the script trains {how} (it has made no Manager): {apart}nothing heals a group that fails, its next attempt "
        "starts from the beginning, or from a checkpoint that the script itself loads. The few lines that change this: "
        "ftslurm help fault-tolerant"
    )
