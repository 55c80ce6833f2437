"""The two files of a journal are read as one; and how a run stands is known from the events and the last progress."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import example_journal as ex
import pytest
from fuzz import numbers
from random_journal import folded, history, write

from ftslurm.monitor.status_fold import StatusFold
from ftslurm.monitor.story import Story
from ftslurm.run.directory import RunDir
from ftslurm.run.run_reader import RunReader

MOMENT_S = 2.0  # measured: 0.2; all lines of progress take 20
MONTH, GROUPS = 10_000, 64  # events, and groups


@pytest.mark.parametrize("seed", numbers(8, 30))
def test_the_last_progress_tells_the_same_as_all(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    lines = list(history(dice, dice.choice([1, 3, 20]), 2000, dice.choice([0.0, 0.02, 0.3])))
    monkeypatch.setattr("ftslurm.run.journal._PIECE", dice.choice([200, 5000, 1 << 18]))
    run = write(RunDir(tmp_path / "run"), lines[: dice.randrange(1, len(lines))])
    assert Story(run).status == folded(RunReader(run).iter_new())


def test_all_lines_come_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    lines = list(history(random.Random(7), 5, 1000, 0.05))
    run, reader, read = RunDir(tmp_path / "run"), None, list[str]()
    for begin, end in ((0, 100), (100, 101), (101, 500), (500, len(lines))):
        write(run, lines[begin:end])
        reader = reader or RunReader(run)
        read += [f"{line['time']} {line['event']} {line.get('group')}" for line in reader.iter_new()]
    assert read == [f"{line['time']} {line['event']} {line.get('group')}" for line in lines]


def test_who_reads_on_later_comes_to_the_same(tmp_path: Path) -> None:
    lines = list(history(random.Random(7), 5, 1000, 0.05))
    run, folding = write(RunDir(tmp_path / "run"), lines[:300]), StatusFold()
    reader = RunReader(run)
    for event in reader.up_to_now():
        folding.apply(event)
    for begin, end in ((300, 301), (301, 700), (700, len(lines))):
        write(run, lines[begin:end])
        for event in reader.iter_new():
            folding.apply(event)
        assert folding.status == folded(RunReader(run).iter_new())


def test_a_group_that_stands_still_for_long_is_found_far_back(tmp_path: Path) -> None:
    alone = [ex.started(2, lighthouse="none"), *(ex.launched(1, g) for g in range(2))]
    alone += [ex.joined(2, g, 1) for g in range(2)] + [ex.progress(t, 1, 10 * t) for t in range(3, 20)]
    run = write(RunDir(tmp_path / "run"), [*alone, *(ex.progress(t, 0, t) for t in range(20, 20_000))])
    assert Story(run).status.groups[1] == folded(RunReader(run).iter_new()).groups[1]
    assert Story(run).status.groups[1].stepped == ex.START + 19


def gone(run: RunDir) -> None:
    run.progress.unlink()


def a_folder(run: RunDir) -> None:
    run.progress.unlink()
    run.progress.mkdir()


def a_link(run: RunDir) -> None:
    run.progress.rename(run.root / "elsewhere")
    run.progress.symlink_to("elsewhere")


@pytest.mark.parametrize("harm", [gone, a_folder, a_link])
def test_a_journal_without_its_progress_says_so_and_is_read(harm: Callable[[RunDir], None], tmp_path: Path) -> None:
    run = write(RunDir(tmp_path / "run"), [line for line in ex.one_kill() if line["time"] < ex.START + 14])
    harm(run)
    for status in (Story(run).status, folded(RunReader(run).iter_new())):
        (warning,) = status.warnings
        assert str(run.progress) in warning
        assert [group.step for group in status.groups] == [1, 1, 1]
        assert status.updated == ex.START + 3.12


@pytest.mark.parametrize(
    "rubbish", [b'{"seq":9,"ti', b"\0" * 700, b"[1]\n\xff\n" + b"x" * 3000, b'{"seq":1}\n{"group":0,\n']
)
def test_rubbish_in_the_progress_hides_no_line(rubbish: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftslurm.run.journal._PIECE", 500)
    run = write(RunDir(tmp_path / "run"), [line for line in ex.one_kill() if line["time"] < ex.START + 14])
    whole, progress = Story(run).status, run.progress.read_bytes()
    lines = progress.splitlines(keepends=True)
    for at in (0, len(lines) // 2, len(lines) - 2, len(lines)):
        torn = b"" if at == len(lines) else b"\n"  # only the last line may lack its end
        run.progress.write_bytes(b"".join(lines[:at]) + rubbish + torn + b"".join(lines[at:]))
        assert Story(run).status == whole


def long_run(run: RunDir, progress: int) -> RunDir:
    """Write the journal of a month: MONTH events, then so many lines of progress of groups that all train."""
    lines = history(random.Random(1), GROUPS, 100 * MONTH, 0.6)
    events = list(islice((line for line in lines if line["event"] not in ("progress", "run_finished")), MONTH))
    write(run, events)
    seq, now = len(events), events[-1]["time"] - ex.START
    attempts = {group.group: (group.attempt or 0) + 1 for group in Story(run).status.groups}
    write(
        run,
        [ex.launched(now, g, n) for g, n in attempts.items()] + [ex.joined(now, g, 1, n) for g, n in attempts.items()],
    )
    seq += 2 * GROUPS
    with run.progress.open("w") as file:
        for n in range(progress):
            line = ex.progress(now + n / 8, n % GROUPS, n // GROUPS, attempts[n % GROUPS], GROUPS)
            file.write(json.dumps({"seq": seq, **line}, separators=(",", ":")) + "\n")
    return run


@pytest.mark.parametrize("progress", [20_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
def test_a_month_is_read_in_a_moment_and_nothing_is_written(progress: int, tmp_path: Path) -> None:
    run = long_run(RunDir(tmp_path / "run"), progress)
    before = {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.root.iterdir()}
    seconds = min(timed(lambda: Story(run)) for _ in range(3))
    assert Story(run).status.step == (progress - 1) // GROUPS
    assert {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.root.iterdir()} == before
    assert seconds < MOMENT_S


def timed(once: Callable[[], object]) -> float:
    began = time.process_time()
    once()
    return time.process_time() - began
