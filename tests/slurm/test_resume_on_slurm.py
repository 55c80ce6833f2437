"""`ftslurm resume` of runs that Slurm has ended, or will start again, or that were submitted by hand."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cluster import Cluster
from harness import SCRIPTS, light, quoted
from templates import written

import ftslurm
from ftslurm.checkpoint.store import Store
from ftslurm.errors import EnvironmentProblem, FtslurmError
from ftslurm.protocol.records import CheckpointRestored, CheckpointSaved

pytestmark = pytest.mark.slurm
PATIENCE_S = 180.0  # slurmctld looks at time limits twice a minute


@pytest.fixture
def words(slurm_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Overrides of a run of two groups that saves every five steps; what they have started ends with the test."""
    for name, value in slurm_cluster.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    script = [
        light(),
        f"job.script={quoted(SCRIPTS / 'light_saving.py')}",
        "job.args.steps=100000",
        "job.args.step-time=0.05",
    ]
    settings = ["groups.gpus=0", "stop.grace_s=2", "checkpoint.every=5"]
    yield [*settings, f"run.root={quoted(tmp_path / 'runs')}", *script]
    for run in ftslurm.runs(tmp_path / "runs"):
        if run.status()["outcome"] == "running":
            with suppress(FtslurmError):
                run.stop()


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def saved(run: ftslurm.Run) -> None:
    assert any(isinstance(record, CheckpointSaved) for record in run.events(follow=True))


def over(run: ftslurm.Run) -> bool:
    status = run.status()
    note = status["note"] or ""
    return status["outcome"] != "running" or "gone" in note or "not been heard" in note


def goes_on(child: ftslurm.Run, parent: ftslurm.Run) -> None:
    """Check that a run begins where its parent has saved."""
    newest = Store(parent.config.checkpoint.dir or str(parent.dir / "checkpoints")).newest()
    assert newest is not None
    restored = next(record for record in child.events(follow=True) if isinstance(record, CheckpointRestored))
    assert restored.step == newest.step
    assert child.status()["parent"] == str(parent.dir)
    child.stop()
    assert child.wait(PATIENCE_S)["outcome"] == "stopped"


@pytest.mark.nightly
def test_a_run_that_its_time_limit_has_killed_is_resumed(words: list[str], slurm_cluster: Cluster) -> None:
    parent = ftslurm.submit(["cluster=slurm", "cluster.time=10", "cluster.signal_s=1", "cluster.requeue=false", *words])
    saved(parent)
    slurm_cluster.limit(str(parent.files.job()), 1)
    until(lambda: over(parent), "the time limit ends the run")
    goes_on(parent.resume(["cluster.time=10"]), parent)


def test_a_run_whose_job_is_requeued_and_waits_is_not_over(words: list[str], slurm_cluster: Cluster) -> None:
    parent = ftslurm.submit(["cluster=slurm", *words])
    saved(parent)
    with pytest.raises(EnvironmentProblem, match="is not over; to resume it, end it first"):
        parent.resume()
    job = parent.files.job()
    slurm_cluster.run(["scontrol", "requeue", str(job)])
    until(lambda: "PENDING" in slurm_cluster.run(["squeue", "-h", f"--jobs={job}", "--format=%T"]), "it waits")
    with pytest.raises(EnvironmentProblem, match=rf"Slurm job {job} is waiting in the queue.*ftslurm stop"):
        parent.resume()
    assert "was waiting in the queue: Slurm job" in parent.stop()
    goes_on(parent.resume(), parent)


@pytest.mark.nightly
def test_a_run_of_array_mode_is_resumed(words: list[str], slurm_cluster: Cluster) -> None:
    parent = ftslurm.submit(["cluster=array", *words])
    saved(parent)
    parent.stop()
    parent.wait(PATIENCE_S)
    child = parent.resume(["cluster=slurm", "groups.workers=1"])  # a preset replaces the section
    assert (child.config.cluster.kind, parent.config.cluster.kind) == ("slurm", "array")
    goes_on(child, parent)
    goes_on(parent.resume(), parent)


@pytest.mark.parametrize("template", ["steps", pytest.param("array", marks=pytest.mark.nightly)])
def test_a_run_that_was_submitted_by_hand_is_resumed_as_a_job(
    template: str, words: list[str], slurm_cluster: Cluster, tmp_path: Path
) -> None:
    nodes = ["--nodes=2"] if template == "steps" else ["--array=0-1"]
    options = ["--parsable", "--time=17", "--no-requeue", "--output=/dev/null", *nodes]
    command = ["sbatch", *options, str(written() / f"{template}.sbatch"), *words]
    job = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True).stdout.strip()
    until(lambda: ftslurm.runs(tmp_path / "runs"), "the run begins")
    (parent,) = ftslurm.runs(tmp_path / "runs")
    saved(parent)
    slurm_cluster.run(["scancel", job])
    until(lambda: "R" not in slurm_cluster.run(["squeue", "-h", f"--jobs={job}", "--format=%t"]), "the job ends")
    until(lambda: over(parent), "the run ends with its job")
    child = parent.resume()
    cluster = child.config.cluster
    assert (cluster.controller, child.config.internal.pilots, cluster.time) == ("job", None, None)
    assert cluster.partition == slurm_cluster.run(["sinfo", "-h", "--format=%R"]).split()[0]
    goes_on(child, parent)
