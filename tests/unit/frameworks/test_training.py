"""What the modules for frameworks share: every batch once and in order, whatever happens to the groups."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler

from ftslurm.frameworks.training import Batches, FrameworkError, tell_unheld, updates_per_epoch

GROUPS = 3
# Updates: how many groups take part, and whether they commit.
HISTORIES = st.lists(st.tuples(st.integers(1, GROUPS), st.booleans()), max_size=20)
Shuffle = str


def loader(size: int, batch_size: int, kind: Shuffle) -> DataLoader[int]:
    """Return a loader of the numbers below `size`, as each group makes it."""
    data = list(range(size))
    if kind == "distributed":
        return DataLoader(data, batch_size, sampler=DistributedSampler(data, 1, 0, seed=3))  # type: ignore[arg-type]
    if kind == "own generator":
        sampler = RandomSampler(data, generator=torch.Generator())
        return DataLoader(data, batch_sampler=BatchSampler(sampler, batch_size, drop_last=False))  # type: ignore[arg-type]
    return DataLoader(data, batch_size, shuffle=kind == "shuffled")  # type: ignore[arg-type]


@settings(deadline=None)
@given(
    HISTORIES,
    st.integers(1, 7),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(["distributed", "own generator", "shuffled", "in order"]),
)
def test_each_epoch_has_every_example_once_and_no_update_skips_one(
    history: list[tuple[int, bool]], size: int, batch_size: int, per_update: int, kind: Shuffle
) -> None:
    groups = [Batches(loader(size, batch_size, kind), per_update, seed=5) for _ in range(GROUPS)]
    trained: list[list[int]] = []
    committed = 0
    for count, commits in history:
        taken = [batch.tolist() for n in range(count) for batch in groups[n].take(committed + n, count)]
        assert len(taken) == count * per_update
        if commits:
            trained += taken
            committed += count
    per_epoch = -(-size // batch_size)
    for start in range(0, len(trained) - per_epoch + 1, per_epoch):
        assert sorted(chain(*trained[start : start + per_epoch])) == list(range(size))
    undisturbed = Batches(loader(size, batch_size, kind), per_update, seed=5)
    assert trained == [batch.tolist() for part in range(committed) for batch in undisturbed.take(part, 1)]


@given(st.integers(1, 50), st.integers(1, 5))
def test_the_updates_of_an_epoch_are_enough_for_its_batches(batches: int, per_update: int) -> None:
    updates = updates_per_epoch(loader(batches, 1, "in order"), per_update)
    assert (updates - 1) * per_update < batches <= updates * per_update


def test_callbacks_of_the_script_without_a_healed_state_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    class Best:
        pass

    tell_unheld([])
    assert capsys.readouterr().err == ""
    tell_unheld([Best(), type("Printer", (), {"__module__": "transformers.trainer_callback"})()])
    assert "neither healed nor saved: the state, if any, of Best:" in capsys.readouterr().err


def test_a_stream_is_refused() -> None:
    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> None: ...  # type: ignore[override]

    with pytest.raises(FrameworkError, match="length and an index"):
        updates_per_epoch(DataLoader(Stream()), 1)
