"""Does the script train without torchft? Then nothing will heal it, and its user should know.

Seen from outside, without a line in the script: torch calls us after every step of every optimizer, and the Manager's
constructor is wrapped. When is it known that no Manager will come?

Not when DistributedDataParallel is built, FSDP is applied or a process group is initialized: HSDP does all of
that inside a group, with a Manager that is made later. Not after some seconds either: reading weights or a data set may
take any time. But whoever has taken ten steps without a Manager has trained without one. Not at the first step,
because some take an empty one to create the optimizer's state, which the Manager is to heal, before they make it.

A script that ends sooner is judged at its end, if it took a step or leaves a process group behind. One that did neither
has no state that anybody would want healed.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from ftslurm.worker import patch_fit

STEPS = 10


class Watch:
    """Watches this process until a Manager is made or its tenth optimizer step is taken."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        """Be ready to watch; `warn` is called with the words for the user, at most once.

        `groups` is how many replica groups the run has; nothing is said while it is 0 (a run without a quorum).
        """
        self.groups = 0
        self._warn = warn
        self._steps = 0
        self._over = True  # not watching yet
        self._distributed = False  # torch.distributed has been used
        self._hook: Any = None

    def install(self) -> None:
        """Begin to watch; before that nobody is warned.

        Raises:
            shape.Misfit: this torch or torchft cannot be watched.
        """
        import torchft.manager

        optimizers = importlib.import_module("torch.optim.optimizer")
        patch_fit.require(optimizers, "register_optimizer_step_post_hook(hook)")
        patch_fit.require(torchft.manager, "Manager")
        self._hook = optimizers.register_optimizer_step_post_hook(self._stepped)
        original = torchft.manager.Manager.__init__

        @functools.wraps(original)
        def init(manager: Any, *args: Any, **kwargs: Any) -> None:
            self._stop()
            original(manager, *args, **kwargs)

        torchft.manager.Manager.__init__ = init
        self._over = False

    def ended(self) -> None:
        """The script has ended well."""
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

    def _stop(self) -> None:
        self._over = True
        if self._hook is not None:
            self._hook.remove()

    def _tell(self) -> None:
        self._stop()
        if self.groups:
            self._warn(words(self.groups, self._distributed))


def words(groups: int, distributed: bool) -> str:
    """What the user is told."""
    how = "with torch.distributed but without torchft" if distributed else "without torchft"
    apart = "" if groups == 1 else f"its {groups} groups train a model each and never average with one another, and "
    return (
        f"the script trains {how} (it has made no Manager): {apart}nothing heals a group that fails, its next attempt "
        "starts from the beginning, or from a checkpoint that the script itself loads. The few lines that change this: "
        "docs/fault-tolerant.md"
    )
