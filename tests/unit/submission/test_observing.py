"""The observer is kept running beside the controller, which waits for it at the end and never longer than it may."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from example_journal import exited, finished, started
from observed import observed, until

from ftslurm.config.schema import Config
from ftslurm.guard import processes
from ftslurm.run import configuration
from ftslurm.run.directory import RunDir
from ftslurm.submission import observing


def test_an_observer_that_is_killed_is_replaced_and_tells_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "AGAIN_S", 0.1)
    monkeypatch.setenv("WATCHED", str(tmp_path))
    note = tmp_path / "note.sh"
    note.write_text(f"#!/bin/sh\ncat >> {tmp_path}/heard\n")
    note.chmod(0o700)
    run = observed(tmp_path, hooks={"on_event": [[str(note)]]})

    def done() -> int:
        return sum(one.done for one in run.told.values())

    with observing.observed(configuration.of_run(run.run), run.run, None):
        run.write(started(2))
        until(lambda: done() == 1, "the first event")
        (pid,) = (pid for pid, _ in processes.having("WATCHED", str(tmp_path)))
        os.kill(pid, signal.SIGKILL)
        run.write(exited(9, 1))
        until(lambda: done() == 2, "the second event, by another observer")
        run.write(finished(20))
    assert (tmp_path / "heard").read_text().count("\n") == done() == 3
    assert not list(processes.having("WATCHED", str(tmp_path)))


def test_the_end_is_written_although_somebody_has_stopped_the_observer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHED", str(tmp_path))
    path = tmp_path / "x.prom"
    run = observed(tmp_path, metrics={"textfile": str(path), "every_s": 1.0})
    with observing.observed(configuration.of_run(run.run), run.run, None):
        run.write(started(2))
        until(lambda: path.exists() and 'outcome="running",run="run"} 1.0' in path.read_text(), "the first metrics")
        (pid,) = (pid for pid, _ in processes.having("WATCHED", str(tmp_path)))
        os.kill(pid, signal.SIGSTOP)
        run.write(finished(20))
    assert 'outcome="succeeded",run="run"} 1.0' in path.read_text()
    assert 'outcome="running",run="run"} 0.0' in path.read_text()


@pytest.mark.nightly
def test_an_observer_that_hangs_at_the_end_has_its_outcome_written_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.prom"
    run = observed(tmp_path, metrics={"textfile": str(path), "every_s": 1.0}, hooks={"timeout_s": 0.1})
    monkeypatch.setattr(observing, "_BEYOND_S", -9.0)
    start = observing._Watched._start

    def hangs(watched: observing._Watched) -> None:
        watched._command, real = ["sleep", "1000"], watched._command
        start(watched)
        watched._command = real
        monkeypatch.setattr(observing._Watched, "_start", start)
        monkeypatch.setattr(observing, "_BEYOND_S", 5.0)

    monkeypatch.setattr(observing._Watched, "_start", hangs)
    with observing.observed(configuration.of_run(run.run), run.run, None):
        run.write(started(2), finished(20))
        monkeypatch.setattr("ftslurm.observer.observer.FINISH_S", 1.0)
    assert 'outcome="succeeded",run="run"} 1.0' in path.read_text()


def test_a_run_without_hooks_and_metrics_has_no_observer(tmp_path: Path) -> None:
    with observing.observed(Config(), RunDir(tmp_path), None):
        pass
    assert not list(tmp_path.iterdir())


def test_what_a_run_has_got_after_its_controller_is_told_too(tmp_path: Path) -> None:
    run = observed(tmp_path, hooks={"on_event": [["true"]]})
    run.write(started(2), finished(20))
    observing.tell_the_end(run.run)
    assert run.told["hook true"].done == 2


def test_a_run_directory_that_cannot_be_read_costs_nothing_but_its_hooks(tmp_path: Path) -> None:
    observing.tell_the_end(RunDir(tmp_path / "absent"))
    assert not (tmp_path / "absent").exists()
