"""A journal of a million lines is read in a second, and nothing is told of it that all its lines would not tell."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import example_journal as ex
import pytest

from ftslurm.monitor.status import RunStatus, fold
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event, JournalReader
from ftslurm.run.journal_filter import Skim
from ftslurm.run.replay import read_past

BOUND_S = 5.0  # on a quiet machine it takes 0.8 s; all lines taken apart, 20 s


def history(dice: random.Random, groups: int, lines: int, failures: float) -> Iterator[ex.Line]:
    """What a controller writes of groups that commit together, fail at times, and stand still at times."""
    attempts, down, step, now = [0] * groups, dict[int, float](), 0, 0.0
    every_s = dice.choice([1.0, 8.0])
    yield ex.started(groups, total_steps=None)
    for group in range(groups):
        yield from (ex.launched(0.1, group), ex.ready(0.2, group), ex.joined(0.3, group, 1))
    written = 0
    while written < lines:
        still = dice.random() < failures
        step += 0 if still else dice.randrange(1, 5)
        for group in range(groups):
            now += every_s / groups
            if group in down:
                if now >= down[group]:
                    del down[group]
                    yield ex.launched(now, group, attempts[group])
                    yield ex.ready(now, group, attempts[group])
                    yield ex.joined(now, group, step, attempts[group], recovery_s=2.0)
                continue
            gap_s = None if dice.random() < failures else round(0.3 + dice.random() * dice.choice([0.1, 0.2, 9.0]), 4)
            counts: dict[str, Any] = {"committed": int(not still), "aborted": int(still), "gap_s": gap_s}
            yield ex.progress(now, group, step, attempts[group], groups, **counts)
            written += 1
        if dice.random() < failures and (alive := sorted(set(range(groups)) - down.keys())):
            yield from failure(dice, now, alive, attempts, down)
    if dice.random() < 0.5:
        yield ex.finished(now + 1, steps=step)


def failure(
    dice: random.Random, now: float, alive: list[int], attempts: list[int], down: dict[int, float]
) -> Iterator[ex.Line]:
    """One group fails, or all; a checkpoint is saved; another controller goes on."""
    kind = dice.choice(["one", "one", "all", "saved", "led", "garbage"])
    if kind == "saved":
        yield ex.event(now, "checkpoint_saved", group=alive[0], attempt=attempts[alive[0]], step=7, path="p")
    if kind == "led":
        yield ex.started(len(attempts), total_steps=None)
    if kind == "garbage":
        yield ex.event(now, "warning", group=None, text='"event":"progress","group":0,')
    for group in {"one": [dice.choice(alive)], "all": alive}.get(kind, []):
        yield ex.exited(now, group, attempts[group])
        yield ex.event(now, "restart_scheduled", group=group, attempt=attempts[group] + 1, due=ex.START + now)
        attempts[group] += 1
        down[group] = now + dice.choice([0.0, 3.0, 60.0])
    if kind == "all":
        yield ex.event(now, "full_restart", step=99, checkpoint_step=7)


def write(run: RunDir, lines: Iterator[ex.Line]) -> RunDir:
    """As the controller writes it."""
    run.root.mkdir(exist_ok=True)
    with run.events.open("w") as file:
        for seq, line in enumerate(lines, 1):
            file.write(json.dumps({"seq": seq} | line, separators=(",", ":")) + "\n")
    return run


def folded(events: Iterator[dict[str, Any]] | Iterator[Event]) -> RunStatus:
    status = RunStatus()
    for event in events:
        status = fold(status, event)
    return status


@pytest.mark.parametrize("seed", range(30))
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


def test_a_million_lines_are_read_in_a_second(tmp_path: Path) -> None:
    run = write(RunDir(tmp_path / "run"), history(random.Random(1), 64, 1_000_000, 0.003))
    began = time.process_time()
    told = list(Skim().read(JournalReader(run.events)))
    status = folded(iter(told))
    assert time.process_time() - began < BOUND_S
    assert len(told) < 100_000
    assert status.step > 10_000
    began = time.process_time()
    past, _ = read_past(run)
    assert time.process_time() - began < BOUND_S
    assert past is not None
    assert past.step == status.step
