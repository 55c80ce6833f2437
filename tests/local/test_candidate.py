"""Choice of the process that runs the controller, with real controllers and jobs that never start, without Slurm."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.run import inbox
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import JournalReader
from ftslurm.submission import array_task
from ftslurm.submission.lead import Candidate


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    config = Config()
    config.run.name, config.run.root, config.job.script = "toy", str(tmp_path), "toy.py"
    config.cluster.kind, config.cluster.controller = "array", "here"
    config.internal.pilots, config.health.lost_after_s = "81", 2.0
    monkeypatch.setenv("SLURM_JOB_ID", "81")  # of which there is no Slurm here
    return array_task.join(config)


@pytest.fixture
def two(run: RunDir) -> Iterator[tuple[Candidate, Candidate]]:
    config = compose.load(run.config)
    made = Candidate(config, run), Candidate(config, run)
    yield made
    for candidate in made:
        if candidate.process is not None and candidate.leads:
            candidate.process.kill()
            candidate.process.wait()


def until(true: Callable[[], object], *candidates: Candidate) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        for candidate in candidates:
            candidate.tend()
        time.sleep(0.05)


def starts(run: RunDir) -> int:
    return sum(event["event"] == "run_started" for event in JournalReader(run.events).iter_new())


def test_one_leads_and_when_it_crashes_or_makes_way_there_is_another(
    run: RunDir, two: tuple[Candidate, Candidate]
) -> None:
    until(lambda: starts(run) == 1, *two)
    assert [candidate.leads for candidate in two].count(True) == 1

    (first,) = (candidate for candidate in two if candidate.leads)
    assert first.process is not None
    first.process.kill()
    until(lambda: starts(run) == 2, *two)  # either may lead: the first knows of the end and waits a while
    assert [candidate.leads for candidate in two].count(True) == 1

    (second,) = (candidate for candidate in two if candidate.leads)
    third = two[1 - two.index(second)]
    second.make_way()
    assert second.makes_way
    until(lambda: starts(run) == 3, *two)
    assert third.leads
    until(lambda: not second.leads, *two)  # its Lighthouse serves until the next one does

    third.make_way()  # both are about to end: the first of them leads again, so that the run has a leader
    until(lambda: starts(run) == 4, *two)
    inbox.put(run.inbox, "stop")
    until(lambda: not any(candidate.leads for candidate in two))
    (last, *_) = reversed(list(JournalReader(run.events).iter_new()))
    assert (last["event"], last["outcome"]) == ("run_finished", "stopped")
    for candidate in two:
        candidate.tend()
        candidate.finish()
        assert not candidate.leads
