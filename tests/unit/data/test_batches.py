"""Every sample once and in order, whatever happens to the groups, and whatever changes when a run is resumed."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain, pairwise
from typing import Any

import pytest
import torch
from fuzz import tried
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler

from ftslurm.data import Batches, DataError

KINDS = ["distributed", "own generator", "shuffled", "in order"]


class Counters:
    """The counters of torchft's Manager; the test sets them as a quorum and a vote do."""

    def __init__(self, committed: int = 0) -> None:
        self.committed, self.rank, self.groups = committed, 0, 0
        self.state: dict[str, tuple[Callable[[Any], None], Callable[[], Any]]] = {}
        self._quorum_future: object = None

    def quorum(self, rank: int, groups: int) -> None:
        self.rank, self.groups, self._quorum_future = rank, groups, object()

    def batches_committed(self) -> int:
        return self.committed

    def participating_rank(self) -> int:
        return self.rank

    def num_participants(self) -> int:
        return self.groups

    def register_state_dict_fn(self, key: str, load: Callable[[Any], None], save: Callable[[], Any], /) -> None:
        self.state[key] = load, save


def loader(size: int, batch_size: int, kind: str, rank: int = 0, ranks: int = 1) -> DataLoader[int]:
    """Return a loader of the numbers below `size`, as each rank makes it."""
    data: Any = list(range(size))
    if kind == "distributed" or ranks > 1:
        return DataLoader(data, batch_size, sampler=DistributedSampler(data, ranks, rank, seed=3))
    if kind == "own generator":
        sampler = RandomSampler(data, generator=torch.Generator())
        return DataLoader(data, batch_sampler=BatchSampler(sampler, batch_size, drop_last=False))
    return DataLoader(data, batch_size, shuffle=kind == "shuffled")


class Group:
    """The ranks of a replica group."""

    def __init__(self, size: int, batch_size: int, kind: str, per_update: int, ranks: int, committed: int = 0) -> None:
        self.managers = [Counters(committed) for _ in range(ranks)]
        self.batches = [
            Batches(loader(size, batch_size, kind, rank, ranks), manager, per_update, seed=5)
            for rank, manager in enumerate(self.managers)
        ]

    def take(self, rank: int, groups: int) -> list[int]:
        for manager in self.managers:
            manager.quorum(rank, groups)
        taken = [one.take() for one in self.batches]
        return [int(sample) for each in zip(*taken, strict=True) for batch in each for sample in batch]

    def commit(self, groups: int) -> None:
        for manager in self.managers:
            manager.committed += groups

    def state(self) -> tuple[int, Any]:
        return self.managers[0].committed, self.managers[0].state["data"][1]()

    def load(self, state: tuple[int, Any]) -> None:
        for manager in self.managers:
            manager.state["data"][0](state[1])
            manager.committed = state[0]


@tried(400)
@given(st.integers(0, 2**32))
def test_each_epoch_has_every_sample_once_and_in_order(seed: int) -> None:
    """Steps are committed or not, groups die and heal, all go back to a checkpoint, and runs are resumed otherwise."""
    rng = random.Random(seed)
    most = rng.choice([1, 2])
    kind = "distributed" if most > 1 else rng.choice(KINDS)  # another sampler gives another order
    size = 4 * rng.randint(1, 6)
    settings = (2 * rng.randint(1, 5), kind, rng.randint(1, 3), most)
    groups = [Group(size, *settings) for _ in range(3)]
    trained: list[int] = []
    checkpoint, saved = groups[0].state(), 0
    for _ in range(rng.randint(1, 40)):
        match rng.choice(["step"] * 4 + ["save", "die", "come", "all die", "resume"]):
            case "step":
                taken = [group.take(rank, len(groups)) for rank, group in enumerate(groups)]
                assert all(taken)
                if rng.random() < 0.8:
                    trained += chain(*taken)
                    for group in groups:
                        group.commit(len(groups))
            case "save":
                checkpoint, saved = rng.choice(groups).state(), len(trained)
            case "die" if len(groups) > 1:
                groups.remove(rng.choice(groups))
            case "come" if len(groups) < 4:
                healed = Group(size, *settings)
                healed.load(rng.choice(groups).state())
                groups.insert(rng.randint(0, len(groups)), healed)
            case "all die" | "resume" as how:
                if how == "resume":
                    settings = (2 * rng.randint(1, 5), kind, rng.randint(1, 3), rng.randint(1, most))
                groups = [Group(size, *settings) for _ in range(rng.randint(1, 3))]
                del trained[saved:]
                for group in groups:
                    group.load(checkpoint)
    epochs = [trained[start : start + size] for start in range(0, len(trained), size)]
    assert all(len({*epoch}) == len(epoch) for epoch in epochs)
    if most == 1:
        undisturbed = Group(size, 1, kind, 1, 1)
        order = []
        for _ in trained:
            order += undisturbed.take(0, 1)
            undisturbed.commit(1)
        assert trained == order


def test_batches_of_a_step_are_taken_once_and_after_its_quorum() -> None:
    manager = Counters()
    batches = Batches(loader(8, 2, "in order"), manager)
    with pytest.raises(DataError, match=r"after optimizer\.zero_grad"):
        batches.take()
    manager.quorum(0, 1)
    batches.take()
    with pytest.raises(DataError, match="once per step"):
        batches.take()


def test_workers_begin_anew_only_when_the_numbers_jump() -> None:
    manager = Counters()
    batches = Batches(loader(40, 2, "shuffled"), manager)
    iterators = []
    for commits in (True, True, False, True, True):
        manager.quorum(0, 1)
        batches.take()
        iterators.append(batches._batches)
        manager.committed += commits
    assert [a is b for a, b in pairwise(iterators)] == [True, True, False, True]


def test_data_that_have_changed_are_told_and_continued_within_their_length(capsys: pytest.CaptureFixture[str]) -> None:
    group = Group(20, 2, "in order", 1, 1)
    for _ in range(8):
        group.take(0, 1)
        group.commit(1)
    shorter = Group(12, 2, "in order", 1, 1)
    shorter.load(group.state())
    was, now = (f"{n} samples from a SequentialSampler with seed 5" for n in (20, 12))
    assert f"the data were {was}, now {now}: epoch 0 continues in another order" in (capsys.readouterr().err)
    assert shorter.take(0, 1) == [0, 1]
    group.load(group.state())
    assert capsys.readouterr().err == ""


def test_a_sampler_whose_order_follows_from_something_else_is_refused() -> None:
    class Own(RandomSampler):
        def __iter__(self) -> Any:
            return iter(random.sample(range(40), 40))

    data: Any = list(range(40))
    batches = Batches(DataLoader(data, 2, sampler=Own(data)), manager := Counters())
    manager.quorum(0, 1)
    with pytest.raises(DataError, match="from a Own with seed 0 come in another order each time"):
        batches.take()
