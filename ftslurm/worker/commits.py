"""Warns the user of commits that are no updates: as of each micro-batch, where gradients are accumulated.

The run would count steps too fast, and a group that comes back would begin in the middle of an update: from then on its
weights differ. Two signs are looked for among the first commits after the weights have changed once:

- Nothing was averaged since the commit before.
- No weight has changed since it. Optimizers with kernels of their own may change weights without telling torch (the
  version of a tensor), so some elements are compared too.

Single ones are no sign: a gradient scaler leaves out a step now and then. Neither are those with a learning rate of 0.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from ftslurm.worker.onlooker import Onlooker, quietly

COMMITS = 10  # so many are looked at
FEW = 3  # of them may not be without an update
COMPARED = 1 << 14  # elements of a weight
ADVICE = (
    "of the first commits, {n} {what}: if gradients are accumulated, commit once for each update, not for each "
    "micro-batch; else steps count too fast, and groups that come back differ: ftslurm help fault-tolerant"
)
NOT_AVERAGED = "came without an allreduce of the Manager"
NOT_CHANGED = "changed no weight"


class Commits(Onlooker):
    """Watches the first commits of this process.

    Args:
        warn: called with a text for the user, once.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__()
        self._warn = warn
        self._over = True
        self._optimizers: WeakSet[Any] = WeakSet()
        self._manager: int | None = None  # the id of the one that commits
        self.averaged = False  # whether a tensor was averaged since the last vote; set by the Manager
        self._before: list[Any] | None = None  # the weights as they were voted on; None: that step was not committed
        self._looked = 0  # commits since the weights have changed once
        self._idle = {NOT_AVERAGED: 0, NOT_CHANGED: 0}

    def install(self) -> None:
        """Start to watch."""
        optim = importlib.import_module("torch.optim.optimizer")
        optim.register_optimizer_step_post_hook(lambda optimizer, *_: self._optimizers.add(optimizer))
        self._over = False

    def failed(self, _: Exception) -> None:
        """Watch no longer: nothing is known, so nothing is said."""
        self._over = True

    @quietly
    def has_voted(self, manager: Any, committed: bool) -> None:
        """Note the weights that were voted on: an optimizer changes them after that."""
        self._over = self._over or self._manager not in (None, id(manager))  # what each of several commits is unknown
        if self._over:
            return
        self._manager = id(manager)
        self._before = self._weights() if committed else None
        if self._before and self._looked:
            self._idle[NOT_AVERAGED] += not self.averaged
        self.averaged = False

    @quietly
    def step_begins(self) -> None:
        """Look at what the last commit has changed."""
        if self._over or self._before is None:
            return
        changed = self._before != self._weights()
        if changed or self._looked:
            self._looked += 1
            self._idle[NOT_CHANGED] += not changed and self._may_change()
        for what, n in self._idle.items():
            if n >= FEW and not self._over:
                self._over = True
                self._warn(ADVICE.format(n=n, what=what))
        self._over = self._over or self._looked > COMMITS
        self._before = None

    def _may_change(self) -> bool:
        return any(float(group.get("lr", 1.0)) for one in self._optimizers for group in one.param_groups)

    def _weights(self) -> list[Any]:
        """Return the versions of what the optimizers train, and some elements of the first weight of each group."""
        from ftslurm.checkpoint.trees import local

        found = list[Any]()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                parts = [local(weight.detach()) for weight in group["params"]]
                found.append([part._version for part in parts])
                found.append(parts[0].reshape(-1)[:COMPARED].tolist())
        return found
