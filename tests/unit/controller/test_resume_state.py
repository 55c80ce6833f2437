"""A successor reads only the journal after the last state that a controller has saved."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from random_journal import folded, history, write

from ftslurm.config.schema import Config
from ftslurm.controller.resume_state import Story
from ftslurm.run import leadership, liveness
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import JournalReader
from ftslurm.run.journal_filter import Skim
from ftslurm.run.replay import read_past
from ftslurm.submission import controller_process


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    return list(history(random.Random(3), 5, 1500, 0.05))


def begun(tmp_path: Path, lines: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """Return a run whose controller has saved its state after two thirds of these lines."""
    run = write(RunDir(tmp_path / "run"), iter(lines[: 2 * len(lines) // 3]))
    story = Story(run)
    with monkeypatch.context() as patched:
        patched.setattr("ftslurm.controller.resume_state.LONG", 1)
        story.read()
        story.told(print)
    assert run.past.stat().st_mode & 0o777 == 0o600
    return write(run, iter(lines))


def read(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> int:
    """Read the run as a successor does and check the result; return the number of journal bytes read."""
    sizes = list[int]()
    blocks = JournalReader.blocks

    def counted(journal: JournalReader) -> Any:
        for block in blocks(journal):
            sizes.append(len(block))
            yield block

    with monkeypatch.context() as patched:
        patched.setattr(JournalReader, "blocks", counted)
        story = Story(run)
        found = story.read()
    assert found == read_past(run)
    assert story.status == folded(JournalReader(run.events).iter_new())
    return sum(sizes)


def test_only_what_was_added_since_is_read(
    tmp_path: Path, lines: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path, lines, monkeypatch)
    size = run.events.stat().st_size
    assert 0.25 * size < read(run, monkeypatch) < 0.4 * size


@pytest.mark.parametrize("harm", ["torn", "foreign", "version", "field", "type", "line", "link", "shorter", "deep"])
def test_a_file_that_cannot_be_trusted_is_passed_over(
    harm: str, tmp_path: Path, lines: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path, lines, monkeypatch)
    text = run.past.read_text()
    file = json.loads(text)
    match harm:
        case "torn":
            run.past.write_text(text[: len(text) // 2])
        case "foreign":
            run.past.chmod(0o666)
        case "version":
            run.past.write_text(json.dumps(file | {"version": 2}))
        case "field":
            run.past.write_text(json.dumps(file | {"past": file["past"] | {"unheard_of": 1}}))
        case "type":
            run.past.write_text(json.dumps(file | {"past": file["past"] | {"step": "9"}}))
        case "line":
            run.past.write_text(json.dumps(file | {"offset": file["offset"] + 10}))
        case "link":
            run.past.rename(tmp_path / "elsewhere")
            run.past.symlink_to(tmp_path / "elsewhere")
        case "shorter":
            write(run, iter(lines[: len(lines) // 3]))
        case "deep":
            run.past.write_text("[" * 100_000)
    assert read(run, monkeypatch) == run.events.stat().st_size


def test_the_controller_writes_it_every_few_minutes(
    tmp_path: Path, lines: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write(RunDir(tmp_path / "run"), iter(lines[:100]))
    story = Story(run)
    story.read()
    heard_of = list[Any]()
    tell = story.told(heard_of.append)
    write(run, iter(lines))
    tell(lines[-1])
    assert not run.past.exists()
    late = time.monotonic() + 301
    monkeypatch.setattr(time, "monotonic", lambda: late)
    tell(lines[-1])
    assert heard_of == [lines[-1]] * 2
    assert json.loads(run.past.read_text())["offset"] == run.events.stat().st_size


def test_who_reads_for_long_is_heard_meanwhile(
    tmp_path: Path, lines: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write(RunDir(tmp_path / "run"), iter(lines))
    number = leadership.take(run)
    assert number is not None
    monkeypatch.setattr("ftslurm.run.journal._BLOCK", 1 << 14)
    feed, blocks = Skim._feed, 0

    def slow(self: Skim, block: bytes) -> Any:
        """Read each block from a file server that takes its time: until the run was heard once more."""
        nonlocal blocks
        before, until = heard(run), time.monotonic() + 20
        while heard(run) == before:
            assert time.monotonic() < until
            time.sleep(0.005)
        blocks += 1
        return feed(self, block)

    monkeypatch.setattr(Skim, "_feed", slow)
    with liveness.kept(run.alive, 0.01, lambda: leadership.held(run, number)):
        Story(run).read()
    assert blocks > 10
    assert os.stat(run.alive).st_mode & 0o777 == 0o600


def heard(run: RunDir) -> int | None:
    return run.alive.stat().st_mtime_ns if run.alive.exists() else None


def test_the_controller_is_heard_while_it_reads_its_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, config = RunDir(tmp_path / "run"), Config()
    run.create()
    config.cluster.kind, config.health.lost_after_s = "local", 0.5

    def read(_: Story) -> tuple[None, str]:
        until = time.monotonic() + 20
        while not run.alive.exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        return None, "succeeded"  # then there is nothing left to control

    monkeypatch.setattr(Story, "read", read)
    assert controller_process.control(config, run) == 0
