"""Reports a digest of what all groups have in common after every so many steps; the controller compares them.

It is taken when the script asks for the quorum of the next step: between the optimizer's last change and its next one,
in the main thread, where the state may be read. All streams of the GPUs that hold it have ended by then, also those of
an optimizer. A thread computes the digest beside that step, on the device where the tensors lie. Whatever may change
them waits for it: a heal, and the commit after which the optimizer takes its step. If something changes them all the
same, the digest is discarded: it would accuse a group that is well.

Only a step that this process has committed counts. So a group that heals reports none before the step after, and the
random weights before the first step are never compared.

Groups of LocalSGD and DiLoCo train apart between syncs: these take torchft's lock of the state before each step of
their own. LocalSGD's have the weights in common until the first step of any optimizer, of which the script may have
several, so the digest is taken then, and waited for. DiLoCo's have the state of its fragments in common all the time:
the weights of the last sync, and the outer optimizer.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib
import sys
import time
from collections.abc import Callable, Sequence
from math import inf
from threading import Thread
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from ftslurm.checkpoint.devices import on_this_device, synchronize
from ftslurm.errors import complain
from ftslurm.protocol.position import Position
from ftslurm.words import few, listed
from ftslurm.worker import buffers, digest
from ftslurm.worker.onlooker import Onlooker, quietly

_NOT = "groups are not compared (health.compare_every)"
NOTHING = (
    f"{_NOT}: no tensor of the state that the Manager heals others with is a weight that an optimizer of torch trains; "
    "name what to compare with health.compare_parts"
)
CHANGES = (
    "some steps are not compared (health.compare_every): weights or optimizer changed while they were read, as by SAM "
    "or an optimizer in a thread of its own. Name what is complete when the next step begins with health.compare_parts"
)
SEVERAL = f"{_NOT}: the script has several Managers"
USUAL = 100  # steps from one digest to the next
MOST = 0.01  # share of the time that digests may cost nobody has asked for
NEVER = sys.maxsize
FRAGMENT = "StreamingDiLoCoFragment_"  # how the names of DiLoCo's state begin


class Comparison(Onlooker):
    """Takes the digests of this process. Every optimizer of torch is noted when it is made, from now on: its first step
    may come long after a heal, and all groups must compare the same.

    Args:
        warn: told of what keeps it from comparing, once.
        position: where the guard leaves the drills.
        every: steps from one digest to the next; None: USUAL, until that costs more than MOST of the time.
        parts: as in digest.chosen.
    """

    def __init__(
        self, warn: Callable[[str], None], position: Position, every: int | None, parts: Sequence[str] = ()
    ) -> None:
        super().__init__()
        # The step and the digest; if there are buffers, also theirs, and whose they are. Called in a thread.
        self.report: Callable[..., None] = lambda *_: None
        self._warn = warn
        self._position, self._every, self._parts = position, every or USUAL, parts
        self._most, self._cost_s, self._since = inf if every else MOST, 0.0, time.monotonic()  # since the last digest
        self._committed: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # the last step, of each Manager
        self._apart = False
        self._optimizers: WeakSet[Any] = WeakSet()
        self._thread: Thread | None = None
        optim = importlib.import_module("torch.optim.optimizer")
        optim.register_optimizer_step_pre_hook(lambda optimizer, *_: self.optimizer_steps(optimizer))
        make = optim.Optimizer.__init__

        def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            self.optimizer_steps(optimizer)

        optim.Optimizer.__init__ = functools.wraps(make)(made)

    def failed(self, error: Exception) -> None:
        """Tell the user that groups are not compared."""
        self._tell(f"{_NOT}: {error!r}")

    @quietly
    def state_changes(self, _: Any) -> None:
        """Wait for the digest: what follows changes the state."""
        self._wait()

    @quietly
    def has_committed(self, manager: Any) -> None:
        """Note that a step of this process is committed."""
        self._committed[manager] = manager._step

    @quietly
    def optimizer_steps(self, optimizer: Any) -> None:
        """Note an optimizer; take the digest that is due with LocalSGD, whose weights change now."""
        self._optimizers.add(optimizer)
        for manager in [*self._committed] if self._apart else ():
            if not _fragments(manager):
                self._begin(manager)
                self._wait()

    @quietly
    def trains_apart(self, manager: Any) -> None:
        """Note that the script is one of LocalSGD or DiLoCo: the group's own step follows."""
        self._apart = True
        if not _fragments(manager):
            self._committed[manager] = -1  # too late for the first digest of a group that has joined before any step

    @quietly
    def step_begins(self, manager: Any) -> None:
        """Begin the digest that is due, but for LocalSGD, whose weights have changed since the last sync."""
        self._wait()
        if not self._apart or _fragments(manager):
            began = time.monotonic()
            self._begin(manager)
            self._cost_s += time.monotonic() - began

    def _begin(self, manager: Any) -> None:
        """Begin the digest that is due, after the drill: the rounding of a later step might hide the bit again."""
        step = manager._step
        if step % self._every or self._committed.get(manager) != step or self._is_costly():
            return
        if len(self._committed) > 1:
            self._tell(SEVERAL)
            return
        self._committed[manager] = -1  # once: the weights may change, or the next step may not be committed
        fragments = _fragments(manager)
        state = {key: read() for key, read in (fragments or manager._user_state_dicts).items()}
        parts = self._parts or ["*"] * bool(fragments)
        names = [name for name, _ in digest.named(state)] if self._parts else []
        if idle := [part for part in self._parts if not fnmatch.filter(names, part)]:
            self._tell(f"health.compare_parts: no tensor to compare is {listed(idle, 'or')}; there are {few(names)}")
        tensors = digest.chosen(state, self._optimizers, parts, weights_only=self._apart)
        if not tensors:
            self._tell(NOTHING)
            return
        if self._position.corrupt:
            self._position.corrupt = 0
            name = digest.flip_bit(tensors)
            for key in fragments:  # what has been read is a copy
                manager._load_state_dict_fns[key](state[key])
            complain(f"drill: after step {step} one bit of {name} is flipped")
        began = time.monotonic()
        found = {} if self._apart else buffers.of(manager, state)  # which differ between two syncs
        took_s = time.monotonic() - began  # once for each quorum, and so no part of what a digest costs
        self._cost_s, self._since = self._cost_s - took_s, self._since + took_s
        copies = {name: one.clone() for name, one in found.items()}  # the next step changes them
        self._thread = Thread(target=on_this_device(self._take), args=(step, tensors, copies))
        synchronize(tensors.values())  # what has begun to change; in the thread it might meet the capture of a graph
        self._thread.start()

    def _is_costly(self) -> bool:
        """Return whether the last digest has cost too much, as where the script gathers its state to show it."""
        now = time.monotonic()
        if self._cost_s > self._most * (now - self._since):
            self._tell(f"{_NOT}: that costs more than {MOST:.0%} of the time; set a number of steps")
            self._every = NEVER
            return True
        self._cost_s, self._since = 0.0, now
        return False

    def _wait(self) -> None:
        if self._thread is not None:
            began = time.monotonic()
            self._thread.join()
            self._thread = None
            self._cost_s += time.monotonic() - began

    def _take(self, step: int, tensors: dict[str, Any], copies: dict[str, Any]) -> None:
        try:
            versions = [tensor._version for tensor in tensors.values()]
            found = digest.digest(tensors)
            if versions == [tensor._version for tensor in tensors.values()]:
                layers = few([*dict.fromkeys(name.rpartition(".")[0] for name in copies)])
                self.report(step, found, *([digest.digest(copies), layers] if copies else []))
            else:
                self._tell(CHANGES)
        except Exception as error:
            self.failed(error)

    def _tell(self, text: str) -> None:
        warn, self._warn = self._warn, lambda _: None
        warn(text)


def _fragments(manager: Any) -> dict[str, Callable[[], Any]]:
    """Return what reads the state of each of DiLoCo's fragments; of another script nothing."""
    return {key: read for key, read in manager._user_state_dicts.items() if key.startswith(FRAGMENT)}
