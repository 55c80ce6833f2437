"""The ranks of one replica group agree on what happened to each of them."""

from __future__ import annotations

import ctypes
import pickle
import traceback
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


class Failed(Exception):
    """What went wrong on which rank of the group, for a person; every rank raises the same."""


class Ranks:
    """The ranks of one replica group, talking over Gloo, whatever the training itself uses; for one thread.

    All of them must be made in the same order on all ranks. A rank that is alone talks to nobody.
    """

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.pg = dist.new_group(backend="gloo") if together else None
        self.store = dist.distributed_c10d._get_default_store() if together else None
        self.rank = dist.get_rank() if together else 0
        self.count = dist.get_world_size() if together else 1

    def gather(self, value: T) -> list[T]:
        """What each rank says, by rank."""
        if self.pg is None:
            return [value]
        mine = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)  # all_gather_object needs NumPy
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
        dist.all_gather(sizes, torch.tensor([len(mine)]), group=self.pg)
        room = max(int(size) for size in sizes)
        texts = [torch.empty(room, dtype=torch.uint8) for _ in sizes]
        dist.all_gather(texts, torch.cat([mine, torch.zeros(room - len(mine), dtype=torch.uint8)]), group=self.pg)
        return [
            pickle.loads(ctypes.string_at(text.data_ptr(), int(size)))  # noqa: S301 from the ranks of our own group
            for text, size in zip(texts, sizes, strict=True)
        ]

    def do(self, work: Callable[[], T]) -> T:
        """Do it on every rank; what it gave on this one.

        Raises:
            Failed: it raised an error on one of them.
        """
        error = result = None
        try:
            result = work()
        except BaseException as raised:
            if not isinstance(raised, Exception) and not hasattr(raised, "failures"):
                raise  # DCP's CheckpointException is a BaseException, too
            error = str(raised) if isinstance(raised, Failed) else describe(raised)
        failures = {text: rank for rank, text in reversed(list(enumerate(self.gather(error)))) if text}
        if failures:
            raise Failed("; ".join(f"rank {r}: {t}" if self.count > 1 else t for t, r in failures.items()))
        return result  # type: ignore[return-value]

    def collect(self, work: Callable[[], T]) -> list[T]:
        """Do it on every rank; what it gave, by rank."""
        return self.gather(self.do(work))

    def first(self, work: Callable[[], T]) -> T:
        """Do it on rank 0 only; what it gave, on every rank."""
        return self.collect(lambda: work() if self.rank == 0 else None)[0]  # type: ignore[return-value]


class Together:
    """All ranks do something after the same step, once each of them wants to; a rank that does not is never held up.

    Asking the others at every step would cost every step. So each rank notes in their store that it wants to,
    and rank 0, when all have, at which step it saw that. After the next step of all, every rank does it: torchft lets
    no rank commit that step before rank 0 has voted on it, which it does after its note, so that all find it there.
    """

    def __init__(self, ranks: Ranks, what: str) -> None:
        """Prepare.

        Args:
            what: a name, the same on all ranks.
        """
        self._ranks, self._what = ranks, what
        self._round = 0
        self._noted = False

    def due(self, wants: bool, step: int) -> bool:
        """Whether it is to be done after this step; the same answer on all ranks. To be asked after every step.

        Args:
            wants: whether this rank wants to; it cannot take it back.

        Raises:
            RuntimeError: the store in which the group found each other is gone.
        """
        store = self._ranks.store
        if not (wants or self._noted) or store is None:
            return wants
        ranks, seen = (f"ftslurm/{self._what}/{self._round}/{word}" for word in ("ranks", "seen"))
        if not self._noted:
            store.add(ranks, 1)
            self._noted = True
        there = store.check([seen])
        if self._ranks.rank == 0 and not there and store.add(ranks, 0) == self._ranks.count:
            store.add(seen, step)  # not set(): that returns before the store has it
        return there and int(store.get(seen)) < step

    def done(self) -> None:
        """It is being done, on all ranks: whoever wants to from now on wants it again."""
        self._round += 1
        self._noted = False


def describe(error: BaseException) -> str:
    """An error in one line, without the stacks that DCP prints."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict) and failures:
        error = next(iter(failures.values()))[0]
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__  # PyTorch hides "No space left on device" behind "unexpected pos 64 vs 0"
    error = cause or error
    return traceback.format_exception_only(type(error), error)[-1].strip().replace("\n", " ")[:500]
