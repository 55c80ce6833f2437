"""A controller that takes over is heard while it reads what the ones before have done."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from random_journal import history, write

from ftslurm.config.schema import Config
from ftslurm.monitor.story import Story
from ftslurm.run import kept_state, leadership, liveness
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import JournalReader
from ftslurm.submission import controller_process


def test_who_reads_for_long_is_heard_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write(RunDir(tmp_path / "run"), history(random.Random(3), 5, 1500, 0.5))
    number = leadership.take(run)
    assert number is not None
    monkeypatch.setattr("ftslurm.run.journal._BLOCK", 1 << 14)
    real, blocks = JournalReader._blocks, 0

    def slow(self: JournalReader) -> Any:
        """Read each block from a file server that takes its time: until the run was heard once more."""
        nonlocal blocks
        for block in real(self):
            before, until = heard(run), time.monotonic() + 20
            while heard(run) == before:
                assert time.monotonic() < until
                time.sleep(0.005)
            blocks += 1
            yield block

    monkeypatch.setattr(JournalReader, "_blocks", slow)
    with liveness.kept(run.alive, 0.01, lambda: leadership.held(run, number)):
        Story(run)
    assert blocks > 5
    assert os.stat(run.alive).st_mode & 0o777 == 0o600


def heard(run: RunDir) -> int | None:
    return run.alive.stat().st_mtime_ns if run.alive.exists() else None


def test_the_controller_is_heard_while_it_reads_its_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, config = RunDir(tmp_path / "run"), Config()
    run.create()
    config.cluster.kind, config.health.lost_after_s = "local", 0.5

    def read(run: RunDir, number: int | None) -> None:
        until = time.monotonic() + 20
        while not run.alive.exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        run.events.write_text('{"event": "run_finished", "outcome": "succeeded"}\n')  # then nothing is left to control

    monkeypatch.setattr(kept_state, "read", read)
    assert controller_process.control(config, run) == 0
