"""What the modules for frameworks share: the length of an epoch, and what is refused and warned of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from ftslurm.data import DataError
from ftslurm.frameworks.training import tell_unheld, updates_per_epoch


@given(st.integers(1, 50), st.integers(1, 5))
def test_the_updates_of_an_epoch_are_enough_for_its_batches(batches: int, per_update: int) -> None:
    updates = updates_per_epoch(DataLoader(range(batches)), per_update)
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

    with pytest.raises(DataError, match="length and an index"):
        updates_per_epoch(DataLoader(Stream()), 1)
