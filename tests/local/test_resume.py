"""`ftslurm resume`: what a run that resumes another one has of it, with real runs on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from harness import SCRIPTS, light, quoted

import ftslurm
from ftslurm.checkpoint.store import Store
from ftslurm.errors import EnvironmentProblem
from ftslurm.protocol.records import CheckpointRestored, CheckpointSaved, FaultInjected, GroupJoined, RunStarted

LIGHT = [
    light(),
    f"job.script={quoted(SCRIPTS / 'light_saving.py')}",
]
PLAN = "faults.plan=[{kind: kill, group: 1, at: 7}]"
AGAIN = "faults.plan=[{kind: kill, group: 0, at: 150}]"


@pytest.fixture
def words(tmp_path: Path) -> Iterator[list[str]]:
    """Overrides of a run of two groups that saves every five steps; what they have started ends with the test."""
    script = [*LIGHT, "standby=none", "job.args.steps=100000", "job.args.step-time=0.05"]
    root = f"run.root={quoted(tmp_path / 'runs')}"
    yield ["cluster=local", "groups.gpus=0", "stop.grace_s=2", "checkpoint.every=5", root, *script]
    for run in ftslurm.runs(tmp_path / "runs"):
        if run.status()["outcome"] == "running":
            run.stop()
            with suppress(EnvironmentProblem):  # the one whose controller was killed
                run.wait(60)


def steps(folder: Path) -> list[int]:
    return sorted(Store(str(folder)).steps())


def saved(run: ftslurm.Run, step: int) -> None:
    """Wait for a checkpoint of this step or a later one."""
    assert any(isinstance(r, CheckpointSaved) and r.step >= step for r in run.events(follow=True))


def restored(run: ftslurm.Run) -> set[int]:
    """Return the steps from which the groups have begun; waits until both have committed a step."""
    joined, begun = set(), set()
    for record in run.events(follow=True):
        if isinstance(record, CheckpointRestored) and record.step is not None:
            begun.add(record.step)
        if isinstance(record, GroupJoined):
            joined.add(record.group)
        if joined == {0, 1}:
            break
    return begun


def stopped(run: ftslurm.Run) -> list[int]:
    """Stop a run; return the steps of its checkpoints."""
    run.stop()
    assert run.wait(60)["outcome"] == "stopped"
    return steps(run.dir / "checkpoints")


def test_a_run_goes_on_where_its_parent_has_saved_and_leaves_it_as_it_is(words: list[str]) -> None:
    parent = ftslurm.submit([*words, PLAN])
    saved(parent, 10)
    assert any(isinstance(record, FaultInjected) for record in parent.events(follow=True))
    with pytest.raises(
        EnvironmentProblem, match=rf"is not over; to resume it, end it first: ftslurm stop {parent.dir}"
    ):
        parent.resume()
    before = stopped(parent)
    assert before[-1] >= 10

    child = parent.resume(["stop.grace_s=3", AGAIN])
    assert child.config.stop.grace_s == 3
    assert child.config.job == parent.config.job
    assert restored(child) == {before[-1]}
    saved(child, 150)
    assert any(isinstance(r, FaultInjected) and r.group == 0 for r in child.events(follow=True))
    assert child.status()["parent"] == str(parent.dir)
    (first, *_) = child.events()
    assert isinstance(first, RunStarted)
    assert first.parent == str(parent.dir)
    stopped(child)
    assert steps(parent.dir / "checkpoints") == before


@pytest.mark.nightly
def test_each_run_goes_on_from_its_own_parents_checkpoint(words: list[str]) -> None:
    parent = ftslurm.submit([*words, PLAN])
    saved(parent, 10)
    before = stopped(parent)[-1]
    child = parent.resume()
    saved(child, before + 10)
    after = stopped(child)[-1]
    assert restored(child.resume()) == {after}
    again = parent.resume()  # from its own, not from its child's
    assert restored(again) == {before}
    assert again.config.faults.plan == []


@pytest.mark.parametrize("light", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_the_command_follows_the_new_run_and_names_its_parent(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, light: bool
) -> None:
    monkeypatch.setenv("TOY_DDP", "0")
    real = [*(word for word in words if word not in LIGHT), f"job.script={quoted(SCRIPTS / 'toy.py')}"]
    parent = ftslurm.submit(words if light else real)
    saved(parent, 5)
    step = stopped(parent)[-1]
    command = [
        sys.executable,
        "-m",
        "ftslurm",
        "resume",
        "--root",
        str(tmp_path / "runs"),
        f"job.args.steps={step + 5}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert f"ftslurm: resuming {parent.id} from step {step} ({parent.dir}/checkpoints/step-" in done.stderr
    assert f"resumes {parent.id}" in done.stdout
    child = ftslurm.find(root=tmp_path / "runs")
    status = child.status()
    assert (status["outcome"], status["step"]) == ("succeeded", step + 5)


@pytest.mark.nightly
def test_runs_without_a_checkpoint_begin_anew_only_if_told_to(words: list[str]) -> None:
    words = [*words, "checkpoint.every=0"]
    parent = ftslurm.submit(words)
    assert any(isinstance(record, GroupJoined) for record in parent.events(follow=True))
    stopped(parent)
    with pytest.raises(EnvironmentProblem, match=r"has saved no checkpoint; .* ftslurm resume .* --from-scratch"):
        parent.resume()
    child = parent.resume(from_scratch=True)
    assert restored(child) == set()
    assert child.status()["parent"] == str(parent.dir)


@pytest.mark.nightly
def test_a_folder_that_was_named_is_shared(words: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    parent = ftslurm.submit([*words, f"checkpoint.dir={quoted(folder)}"])
    saved(parent, 5)
    stopped(parent)
    newest = steps(folder)[-1]
    child = parent.resume()
    assert child.config.checkpoint.dir == str(folder)
    assert restored(child) == {newest}
    stopped(child)
    newest = steps(folder)[-1]
    elsewhere = child.resume([f"checkpoint.dir={quoted(tmp_path / 'other')}"])
    assert restored(elsewhere) == {newest}
    with pytest.raises(EnvironmentProblem, match="has checkpoints already"):
        child.resume([f"checkpoint.dir={quoted(tmp_path / 'other')}"])
    fresh = child.resume(from_scratch=True)
    assert restored(fresh) == set()


@pytest.mark.nightly
def test_the_run_of_a_killed_controller_can_be_resumed(words: list[str]) -> None:
    parent = ftslurm.submit(words)
    saved(parent, 5)
    started = next(record for record in parent.events() if isinstance(record, RunStarted))
    assert started.pid is not None
    os.kill(started.pid, 9)
    deadline = time.monotonic() + 60
    while "gone" not in (parent.status()["note"] or ""):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert restored(parent.resume()) == {steps(parent.dir / "checkpoints")[-1]}
