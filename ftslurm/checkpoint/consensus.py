"""Collectives among the ranks of one replica group, in which an error on one rank becomes the same error on all.

A save or a restore has many steps. If one rank raised and left, the others would wait for it in the next collective.
So each rank runs a step, all exchange whether it succeeded, and if one failed, every rank raises the same
`GroupFailed`. A rank without peers exchanges nothing.

They exchange JSON in the group's store, which only processes of the run reach. Gloo's and NCCL's sockets accept
anybody, and torch.distributed's collectives of objects unpickle what comes through them.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")
PATIENCE_S = 1800.0  # for a rank that writes, as Gloo has; one that is gone ends the whole group sooner
_INSTANCES = itertools.count()


class GroupFailed(Exception):
    """A rank of the group failed; the message, equal on all ranks, says which and why."""


class RankGroup:
    """The ranks of one replica group, for use by one thread. All ranks must make theirs in the same order."""

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.store = dist.distributed_c10d._get_default_store() if together else None
        self.rank = dist.get_rank() if together else 0
        self.size = dist.get_world_size() if together else 1
        self.name, self._round = f"ftslurm/ranks-{next(_INSTANCES)}", 0

    def agree(self, value: Any, merge: Callable[[list[Any]], Any]) -> Any:
        """Return on every rank what rank 0 makes of the values of all ranks; `merge` must not raise."""
        if self.store is None:
            return merge([value])
        self._round += 1
        there, back = (f"{self.name}/{self._round}/{way}-" for way in ("there", "back"))
        if self.rank:
            self.store.set(f"{there}{self.rank}", json.dumps(value))
            return self._take(f"{back}{self.rank}")
        others = range(1, self.size)
        merged = merge([value, *(self._take(f"{there}{rank}") for rank in others)])
        for rank in others:
            self.store.set(f"{back}{rank}", json.dumps(merged))
        return merged

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks on rank 0, and none elsewhere: to send them to each rank would take long."""
        values: list[Any] = []
        self.agree(value, values.extend)
        return values

    def _take(self, key: str) -> Any:
        """Wait for a value, without a call that blocks: other threads use the store meanwhile."""
        assert self.store
        until, pause_s = time.monotonic() + PATIENCE_S, 0.001
        while not self.store.check([key]):
            if time.monotonic() > until:
                raise TimeoutError(f"rank {self.rank} has waited {PATIENCE_S:g} s for another rank of its group")
            time.sleep(pause_s)
            pause_s = min(1.0, pause_s * 1.5)
        value = json.loads(self.store.get(key))
        self.store.delete_key(key)
        return value

    def run(self, work: Callable[[], T]) -> T:
        """Call `work` on every rank and return this rank's result.

        Raises:
            GroupFailed: it raised an error on at least one rank.
        """
        result = error = None
        try:
            result = work()
        except Exception as failure:
            error = describe(failure)
        except BaseException as failure:  # as DCP's CheckpointException, which has the errors by rank
            if not (inner := getattr(failure, "failures", None)):
                raise
            error = describe(next(iter(inner.values()))[0])
        first_rank: dict[str, int] = {}
        for rank, text in enumerate(self.agree(error, list)):
            if text is not None:
                first_rank.setdefault(text, rank)
        if first_rank:
            raise GroupFailed("; ".join(f"rank {r}: {t}" if self.size > 1 else t for t, r in first_rank.items()))
        return result  # type: ignore[return-value]

    def run_on_first(self, work: Callable[[], Any]) -> Any:
        """Call `work` on rank 0 only and return its result, which JSON can have, on every rank."""
        return self.agree(self.run(lambda: work() if self.rank == 0 else None), lambda results: results[0])


class AgreedStep:
    """Finds a step of training after which all ranks act together. Never blocks ranks that have not asked for it.

    A collective at every step would cost every step. Instead each rank that is asked adds 1 to a counter in the
    group's store. When the counter has reached the number of ranks, rank 0 stores its present step, and all ranks act
    after the next step. All see the stored step by then: torchft commits no step before rank 0 has voted on it, and
    rank 0 votes after it has stored its step.
    """

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._round = 0
        self._counted = False

    def due(self, wanted: bool, step: int) -> bool:
        """Return whether to act after this step; the answer is the same on all ranks. Call it after every step.

        Args:
            wanted: whether this rank has been asked to act. It cannot be taken back.

        Raises:
            RuntimeError: the store of the group cannot be reached.
        """
        store = self._group.store
        if not (wanted or self._counted) or store is None:
            return wanted
        ranks, agreed = (f"{self._group.name}/{self._round}/{key}" for key in ("ranks", "seen"))
        if not self._counted:
            store.add(ranks, 1)
            self._counted = True
        is_agreed = store.check([agreed])
        if self._group.rank == 0 and not is_agreed and store.add(ranks, 0) == self._group.size:
            store.add(agreed, step)  # not set(), which returns before the store has the value
        return is_agreed and int(store.get(agreed)) < step

    def done(self) -> None:
        """Begin the next round, now that all ranks act; later requests count for that round."""
        self._round += 1
        self._counted = False


def describe(error: BaseException) -> str:
    """Return an error in one line: of a chain the OSError, as PyTorch hides "No space left" behind other errors."""
    if isinstance(error, GroupFailed):
        return str(error)
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    error = cause or error
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]
