"""What groups have given to the steps of a training, and which of it counts in the end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

SIZE, SEED = 402, 3  # the same for one, two and three groups
IDS: Any = list(range(SIZE))


class Vote(NamedTuple):
    """The ids of the batch on which a group votes."""

    history: int  # histories begin with each run and full restart
    step: int
    quorum: int
    rank: int  # among the participants
    group: int
    epoch: int | None
    ids: list[int]


def counted(votes: Collection[Vote], committed: Collection[tuple[int, ...]], began: Mapping[int, int]) -> list[Vote]:
    """Return the votes for steps that were committed and never undone, in order.

    Args:
        committed: history, step and quorum of each committed step.
        began: the step at which each history began.
    """
    assert len(committed) == len({one[:2] for one in committed}), "groups have trained apart"

    def counts(vote: Vote) -> bool:
        later = (step for history, step in began.items() if history > vote.history)
        return vote[:3] in committed and vote.step <= min(later, default=vote.step)

    last = {(vote.step, vote.rank, vote.group): vote for vote in votes if counts(vote)}
    return [last[key] for key in sorted(last)]


def loader(batch_size: int, **options: Any) -> DataLoader[int]:
    """Return a loader of all ids whose order depends on no other thread of this process."""
    sampler = RandomSampler(IDS, generator=torch.Generator())
    return DataLoader(IDS, batch_sampler=BatchSampler(sampler, batch_size, drop_last=False), **options)


def ids_of(votes: list[Vote]) -> list[int]:
    return [*chain(*(vote.ids for vote in votes))]


def undisturbed(count: int) -> list[int]:
    """Return the first ids of a training with `Batches` to which nothing happens."""
    generator, order = torch.Generator(), list[int]()
    for epoch in range(-(-count // SIZE)):
        generator.manual_seed(SEED + epoch)
        order += RandomSampler(IDS, generator=generator)
    return order[:count]
