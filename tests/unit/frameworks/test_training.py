"""What the modules for frameworks share: the length of an epoch, and what is refused and warned of."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from ftslurm.data import DataError
from ftslurm.frameworks.training import FrameworkError, process_group, refuse, tell_unheld, updates_per_epoch


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


@given(st.dictionaries(st.text("abc", min_size=1), st.sampled_from([False, None, 0, "", True, 1, "path", 0.5])))
def test_only_the_features_that_a_script_uses_are_refused(found: dict[str, object]) -> None:
    used = [feature for feature, uses in found.items() if uses]
    if not used:
        refuse(found)
        return
    with pytest.raises(FrameworkError) as raised:
        refuse(found)
    assert f": {'; '.join(used)} (" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_groups_are_connected_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = timedelta(seconds=7)
    monkeypatch.setenv("FTSLURM_PROCESS_GROUP", "gloo")
    group, device = process_group(limit)
    assert (type(group).__name__, group._timeout, device) == ("ProcessGroupGloo", limit, "cpu")
    monkeypatch.setenv("FTSLURM_PROCESS_GROUP", "baby-nccl")
    assert type(process_group(limit)[0]).__name__ == "ProcessGroupBabyNCCL"
    monkeypatch.setenv("FTSLURM_PROCESS_GROUP", "native")
    monkeypatch.setenv("REPLICA_GROUP_ID", "0")
    if hasattr(torch.distributed.ProcessGroup, "reconfigure"):
        assert isinstance(process_group(limit)[0], torch.distributed.ProcessGroup)
    else:
        with pytest.raises(RuntimeError, match=r"need torch 2\.14"):
            process_group(limit)
