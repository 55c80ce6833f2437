"""A rank's position in its data: saved after every step, restored after kills, full restarts and full disks."""

import os
import pickle
import random
import tempfile
from pathlib import Path

import pytest
from fuzz import tried
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.data_offsets import DataPositions, framed

FIRST = layout.history_of("a run", 0)


class Numbers:
    """A loader with a place, which has no state to give before its first batch."""

    at = 0
    asked_too_early = True

    def batch(self) -> int:
        self.at += 1
        self.asked_too_early = False
        return self.at

    def state_dict(self) -> dict[str, int]:
        assert not self.asked_too_early
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def positions(folder: Path, ranks: int = 1, *, history: str = FIRST, group: int = 3) -> DataPositions:
    return DataPositions(folder, group, 0, ranks, Numbers(), history)


def train(here: DataPositions, *steps: int) -> None:
    """Train with one batch per step."""
    for step in steps:
        here.data.batch()
        here.note(step)


def back_at(folder: Path, step: int | None, ranks: int = 1) -> int:
    here = positions(folder, ranks)
    here.restore(step)
    here.close()
    assert here.data.asked_too_early
    return int(here.data.at)


def test_it_goes_back_to_the_step_of_the_checkpoint(tmp_path: Path) -> None:
    train(positions(tmp_path), *range(1, 21))
    assert back_at(tmp_path, 12) == 12


def test_a_group_that_heals_goes_on_behind_its_last_batch(tmp_path: Path) -> None:
    train(positions(tmp_path), *range(1, 21))
    assert back_at(tmp_path, None) == 20


def test_a_group_that_was_down_is_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(positions(tmp_path), 1, 2, 3, 9, 10)
    assert back_at(tmp_path, 7) == 3
    assert "its position in the data is of step 3, the last one recorded up to step 7" in capsys.readouterr().err


def test_steps_that_a_full_restart_has_undone_do_not_come_back(tmp_path: Path) -> None:
    train(positions(tmp_path), *range(1, 21))
    for step in (12, None):  # it dies before its first step, and heals then
        here = positions(tmp_path, history=layout.history_of("a run", 1))
        here.restore(step)
        assert here.data.at == 12
    train(here, 13, 14)
    assert back_at(tmp_path, None) == 14


@tried(400)
@given(st.integers(0, 2**32))
def test_each_rank_trains_each_batch_once_in_the_history_that_counts(seed: int) -> None:
    """Groups die, are away, heal, and go back together; runs resume from one another, with groups away or not.

    `trained` has the batch of each committed step by group: in the steps that were never undone, 1, 2, 3 and so on.
    """
    rng = random.Random(seed)
    groups = range(rng.randint(1, 3))
    step, run, restarts = 0, 0, 0
    saved = [0]  # the steps of the checkpoints
    trained: list[dict[int, int]] = [{} for _ in groups]
    live: dict[int, DataPositions] = {}

    with tempfile.TemporaryDirectory() as folder:

        def start(group: int, step: int | None) -> None:
            history = layout.history_of(f"run {run}", restarts)
            live[group] = positions(Path(folder), history=history, group=group)
            live[group].restore(step)

        for _ in range(rng.randint(1, 40)):
            match rng.choice(["step", "step", "step", "save", "die", "come", "all die", "resume"]):
                case "step" if live:
                    step += 1
                    for group, here in live.items():
                        trained[group][step] = here.data.batch()
                        here.note(step, saved if rng.random() < 0.2 else ())
                case "save" if live:
                    saved.append(step)
                case "die" if len(live) > 1:
                    live.pop(rng.choice(list(live))).close()
                case "come" if live and (away := set(groups) - live.keys()):
                    start(rng.choice(list(away)), None)
                case "all die" | "resume" as how:
                    for here in live.values():
                        here.close()
                    live.clear()
                    run, restarts = (run + 1, 0) if how == "resume" else (run, restarts + 1)
                    step = rng.choice(saved[-3:])
                    saved = [known for known in saved if known <= step]
                    for record in trained:
                        for undone in [known for known in record if known > step]:
                            del record[undone]
                    for group in rng.sample(groups, rng.randint(1, len(groups))):
                        start(group, step)
    for record in trained:
        assert [record[known] for known in sorted(record)] == list(range(1, len(record) + 1))


def test_a_record_cut_off_anywhere_costs_only_itself(tmp_path: Path) -> None:
    here = positions(tmp_path)
    train(here, 1, 2)
    whole = here.path.stat().st_size
    train(here, 3)
    text = here.path.read_bytes()
    for length in range(whole, len(text)):
        here.path.write_bytes(text[:length])
        read = positions(tmp_path)
        read.read()
        assert list(read.records) == [1, 2]
    read.append(3, framed(pickle.dumps((3, here.shares, FIRST, {"at": 33}))))
    assert back_at(tmp_path, None) == 33
    here.path.write_bytes(text[:-1] + b"\xff")
    assert back_at(tmp_path, None) == 2


def test_a_flipped_bit_costs_at_most_its_record_and_those_behind_it(tmp_path: Path) -> None:
    here = positions(tmp_path)
    train(here, 1, 2, 3)
    text, each = here.path.read_bytes(), here.path.stat().st_size // 3
    for at in range(8 * len(text)):
        damaged = bytearray(text)
        damaged[at // 8] ^= 1 << at % 8
        here.path.write_bytes(damaged)
        read = positions(tmp_path)
        read.read()
        assert {*range(1, at // 8 // each + 1)} <= {*read.records} <= {1, 2, 3}
        assert all(read.upto(step) == (step, here.shares, FIRST, {"at": step}) for step in read.records)


def test_the_file_stays_short_and_keeps_what_checkpoints_need(tmp_path: Path) -> None:
    here = positions(tmp_path)
    train(here, 1, 2, 3, 9, *range(12, 30))
    here.note(30, trim_to=[7, 20, 25])
    assert list(here.records) == [3, 20, 25, 26, 27, 28, 29, 30]
    assert (back_at(tmp_path, 25), back_at(tmp_path, 20), back_at(tmp_path, 7)) == (18, 13, 3)


def test_nothing_noted_is_said_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert back_at(tmp_path, 0) == 0
    assert capsys.readouterr().err == ""
    assert back_at(tmp_path / "other", None) == 0
    assert "STARTS AT THE BEGINNING OF ITS DATA" in capsys.readouterr().err
    train(positions(tmp_path), 1)
    assert back_at(tmp_path, 1, ranks=2) == 0
    assert "recorded by groups of 1 ranks" in capsys.readouterr().err


@pytest.mark.parametrize("groups", ["3", "2"])
@pytest.mark.parametrize("batch_size", [4, 8])
def test_a_place_in_other_shares_is_used_and_told_once(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    groups: str,
    batch_size: int,
) -> None:
    monkeypatch.setenv("NUM_REPLICA_GROUPS", "3")
    monkeypatch.setattr(Numbers, "batch_size", 4, raising=False)
    train(positions(tmp_path), 1, 2)
    monkeypatch.setenv("NUM_REPLICA_GROUPS", groups)
    monkeypatch.setattr(Numbers, "batch_size", batch_size)
    assert back_at(tmp_path, 2) == 2
    told = capsys.readouterr().err
    if (groups, batch_size) == ("3", 4):
        assert told == ""
    else:
        assert told.count("recorded by 3 groups of 1 ranks, batch size 4") == 1
        assert f"now {groups} groups of 1 ranks, batch size {batch_size}. " in told


def test_a_place_that_other_shares_do_not_have_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Part(Numbers):
        def load_state_dict(self, state: dict[str, int]) -> None:
            raise IndexError(f"no shard for {state}")

    train(positions(tmp_path), 1, 2)
    monkeypatch.setitem(globals(), "Numbers", Part)
    with pytest.raises(IndexError):
        back_at(tmp_path, 2)
    monkeypatch.setenv("NUM_REPLICA_GROUPS", "2")
    assert back_at(tmp_path, 2) == 0
    told = capsys.readouterr().err
    assert "STARTS AT THE BEGINNING OF ITS DATA" in told
    assert "now 2 groups of 1 ranks, batch size unknown: no shard for {'at': 2}" in told


def test_a_file_that_others_can_write_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = positions(tmp_path)
    train(here, 1, 2)
    assert oct(here.path.stat().st_mode)[-3:] == "600"
    assert oct(here.path.parent.stat().st_mode)[-3:] == "700"
    here.path.chmod(0o666)
    assert back_at(tmp_path, 2) == 0
    assert "others can write into it" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "positions").write_text("in the way")
    here = positions(tmp_path)
    train(here, 1, 2, 3)
    assert capsys.readouterr().err.count("cannot be recorded, training goes on") == 1
    os.unlink(tmp_path / "positions")
    train(here, 4)
    assert back_at(tmp_path, 4) == 4
