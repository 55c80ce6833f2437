"""Of a journal of a million lines few are parsed, with the same result as from all its lines."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from fuzz import numbers
from random_journal import folded, history, write

from ftslurm.monitor.status import RunStatus
from ftslurm.monitor.status_fold import fold
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import JournalReader
from ftslurm.run.journal_filter import Skim
from ftslurm.run.replay import read_past

SHARE = 0.3  # of the time it takes to parse all lines; measured: 0.05, 0.8 s of 20


@pytest.mark.parametrize("seed", numbers(8, 30))
def test_what_is_passed_on_tells_the_same_as_all_lines(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    run = write(RunDir(tmp_path / "run"), history(dice, dice.choice([1, 3, 20]), 2000, dice.choice([0.0, 0.02, 0.3])))
    monkeypatch.setattr("ftslurm.run.journal_filter._PIECE", dice.choice([1, 1000, 1 << 16]))
    monkeypatch.setattr("ftslurm.run.journal_filter._MOST", dice.choice([1000, 30_000, 1 << 25]))
    told = list(Skim().read(JournalReader(run.events)))
    assert folded(iter(told)) == folded(JournalReader(run.events).iter_new())
    skimmed = read_past(run)
    with monkeypatch.context() as patched:
        patched.setattr(Skim, "read", lambda _, journal: journal.iter_new())
        assert skimmed == read_past(run)


def test_who_reads_on_later_comes_to_the_same(tmp_path: Path) -> None:
    lines = list(history(random.Random(7), 5, 1000, 0.05))
    run, reader, skim, status = RunDir(tmp_path / "run"), None, Skim(), RunStatus()
    for end in (0, 100, 101, 500, len(lines)):
        write(run, iter(lines[:end]))
        reader = reader or JournalReader(run.events)
        for event in skim.read(reader):
            status = fold(status, event)
        assert status == folded(JournalReader(run.events).iter_new())


@pytest.mark.parametrize("lines", [100_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
def test_many_lines_cost_a_fraction_of_their_parsing(lines: int, tmp_path: Path) -> None:
    part = write(RunDir(tmp_path / "part"), history(random.Random(1), 64, lines // 20, 0.003))
    began = time.process_time()
    folded(JournalReader(part.events).iter_new())
    bound_s = SHARE * 20 * (time.process_time() - began)  # the machine may be slow
    run = write(RunDir(tmp_path / "run"), history(random.Random(1), 64, lines, 0.003))
    began = time.process_time()
    told = list(Skim().read(JournalReader(run.events)))
    status = folded(iter(told))
    assert time.process_time() - began < bound_s
    assert len(told) < lines / 10
    assert status.step > lines / 100
    began = time.process_time()
    past, _ = read_past(run)
    assert time.process_time() - began < bound_s
    assert past is not None
    assert past.step == status.step
