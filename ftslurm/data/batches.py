"""The batches of a DataLoader in one order for all groups: a committed step trains on the next ones, one per group.

batches = Batches(loader, manager)  # after the Manager, before checkpointer.restore()
while manager.current_step() < steps:
    optimizer.zero_grad()  # starts the quorum, which decides the batch
    for x, y in batches.take():
        ...
    optimizer.step()

Which batch a group takes follows from `manager.batches_committed()` and `manager.participating_rank()`, so a step that
was not committed is repeated with the same batches. The place is part of the Manager's state: a group that heals copies
it, and checkpoints hold it. It is kept in samples, so a resumed run may have another number of groups or ranks, or
another batch size.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset

from ftslurm.errors import FtslurmError, complain
from ftslurm.protocol import messages, outbox

COPIED = "num_workers collate_fn pin_memory timeout worker_init_fn multiprocessing_context prefetch_factor"


class DataError(FtslurmError):
    """The batches cannot be shared between the groups, or are taken at the wrong time."""


class Manager(Protocol):
    """The part of torchft.Manager that Batches uses."""

    def batches_committed(self) -> int:
        """Return the number of participants, summed over all committed steps."""

    def participating_rank(self) -> int | None:
        """Return this group's rank among the participants, None for a group that heals or is a spare."""

    def num_participants(self) -> int:
        """Return the number of groups in the present quorum, 0 before the first one."""

    def register_state_dict_fn(self, key: str, load: Callable[[Any], None], save: Callable[[], Any], /) -> None:
        """Make something a part of the state that is healed and saved."""


def batches_per_epoch(loader: DataLoader) -> int:
    """Return the number of batches of a loader.

    Raises:
        DataError: they cannot be numbered.
    """
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise DataError(
            "groups cannot share a stream (IterableDataset): use a dataset with a length and an index, or give each "
            "group a part of the stream and its place to Checkpointer(data=...): ftslurm help data"
        )
    return len(loader)


class Batches:
    """The batches of a loader in all epochs, numbered in an order that is the same in all groups."""

    def __init__(
        self, loader: DataLoader, manager: Manager, per_update: int = 1, seed: int = 0, name: str = "data"
    ) -> None:
        """Number the batches and register their place with the manager.

        Args:
            loader: the batches of this rank, as if there were one group. In a group of several ranks its sampler is a
                DistributedSampler. Samplers draw from a seed, or have set_epoch.
            manager: torchft's, with use_async_quorum=False.
            per_update: how many batches this rank adds to a step.
            seed: of the order of each epoch, the same in all groups.
            name: of the place in the Manager's state; two loaders need two.

        Raises:
            DataError: the dataset has no length and index.
        """
        self._per_epoch = batches_per_epoch(loader)
        self._loader, self._manager, self._per_update, self._seed = loader, manager, per_update, seed
        # An epoch is divided into so many shares, one for each rank of a group; Accelerate says num_processes.
        self._shares = max(
            getattr(one, "num_replicas", getattr(one, "num_processes", 1)) or 1 for one in self._samplers()
        )
        self._shift = 0  # the number of a batch, less those that were committed
        self._begun = (-1, 0)  # a batch of which some samples were trained on: its number, and how many
        self._order: tuple[int, list[list[int]]] = (-1, [])  # of an epoch
        self._batches: Iterator[Any] = iter(())
        self._next = (-1, 0)
        self._name = name
        self._quorum: object = None
        manager.register_state_dict_fn(name, self.load_state_dict, self.state_dict)

    def take(self) -> list[Any]:
        """Return the batches of this rank in the present step; a spare gets some whose gradients do not count.

        The loader reads ahead. It begins anew when the groups have changed or a step is repeated.

        Raises:
            DataError: there is no quorum for this step, or its batches have been taken.
        """
        if self._quorum is None:
            outbox.say(messages.Reads(f"{self._name}: {self._data()} in {self._per_epoch} batches"))
        quorum = getattr(self._manager, "_quorum_future", object())  # torchft's, another one for each quorum
        if quorum is self._quorum:
            raise DataError("call take() once per step, after optimizer.zero_grad() or manager.start_quorum()")
        self._quorum = quorum
        number = self._number(self._manager.participating_rank() or 0)
        stride = self._manager.num_participants() * self._per_update
        if (number, stride) != self._next:
            options = {name: getattr(self._loader, name) for name in COPIED.split()}
            self._batches = iter(
                DataLoader(self._loader.dataset, batch_sampler=self._numbered(number, stride), **options)
            )
        self._next = (number + stride, stride)
        return list(itertools.islice(self._batches, self._per_update))

    def state_dict(self) -> dict[str, Any]:
        """Return the place behind the last committed step."""
        number = self._number()
        epoch, place = divmod(number, self._per_epoch)
        samples = sum(map(len, self._epoch(epoch)[:place])) + self._skipped(number)
        committed = self._manager.batches_committed()
        return {"committed": committed, "epoch": epoch, "samples": samples * self._shares, "of": self._data()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a place; warn if the epoch cannot be continued in its order."""
        epoch, of = state["epoch"], state["of"]
        if of != self._data():
            complain(
                f"the data were {of}, now {self._data()}: epoch {epoch} continues in another order, so it has some "
                "samples twice and misses others"
            )
        ends = [0, *itertools.accumulate(map(len, self._epoch(epoch)))]
        samples = min(state["samples"] // self._shares, ends[-1])
        place = bisect_right(ends, samples) - 1
        number = epoch * self._per_epoch + place
        self._begun = number, samples - ends[place]
        self._shift = number - state["committed"] * self._per_update
        self._next = (-1, 0)

    def _data(self) -> str:
        *_, sampler = self._samplers()  # the innermost one draws the order
        return f"{len(self._loader.dataset)} samples from a {type(sampler).__name__} with seed {self._seed}"

    def _numbered(self, first: int, stride: int) -> Iterator[list[int]]:
        for start in itertools.count(first, stride):
            for number in range(start, start + self._per_update):
                epoch, place = divmod(number, self._per_epoch)
                yield self._epoch(epoch)[place][self._skipped(number) :]

    def _number(self, rank: int = 0) -> int:
        """Return the number of the first batch that a participating rank takes now."""
        return self._shift + (self._manager.batches_committed() + rank) * self._per_update

    def _skipped(self, number: int) -> int:
        begun, samples = self._begun
        return samples if number == begun else 0

    def _epoch(self, epoch: int) -> list[list[int]]:
        """Return the batches of an epoch as the sampler draws them from this seed.

        Raises:
            DataError: it draws from something else.
        """
        if epoch != self._order[0]:
            order = self._drawn(epoch)
            if self._order[0] < 0 and order != self._drawn(epoch):
                raise DataError(
                    f"{self._data()} come in another order each time, so groups would train on some twice and on "
                    "others never: draw from torch's random numbers, or from self.generator, or seed in set_epoch"
                )
            self._order = epoch, order
        return self._order[1]

    def _drawn(self, epoch: int) -> list[list[int]]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed + epoch)
            for sampler in self._samplers():
                if getattr(sampler, "generator", None) is not None:
                    sampler.generator.manual_seed(self._seed + epoch)
                if hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(epoch)
            return list(self._loader.batch_sampler)

    def _samplers(self) -> Iterator[Any]:
        sampler = self._loader.batch_sampler
        while sampler is not None:
            yield sampler
            sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
