"""Hooks on a real Slurm: a killed controller, a time limit, a run that is stopped in the queue: each event once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Cluster
from harness import Backend, Run, all_processes

pytestmark = pytest.mark.slurm
LONG, SIGNAL_S = 30, 55  # minutes; and when Slurm warns


def hook(folder: Path) -> str:
    """Return the setting of a hook that writes down what it hears."""
    path = folder / "note.sh"
    path.write_text(f"#!/bin/sh\ncat >> {folder}/heard\n")
    path.chmod(0o700)
    return f"hooks.on_event=[[{path}]]"


def heard(folder: Path) -> list[str]:
    path = folder / "heard"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line["kind"] for line in lines if line["kind"] != "checkpoint_saved"]


def stop(run: Run) -> str:
    command = [sys.executable, "-m", "ftslurm", "stop", str(run.dir)]
    return subprocess.run(command, env=run.environ, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.light
def test_the_next_controller_after_a_killed_one_goes_on_with_the_hooks(slurm: Backend, tmp_path: Path) -> None:
    run = slurm.start(hook(tmp_path), "groups.count=2", args={"open-end": True, "step-time": 0.2})
    run.wait_for_steps(5, 2)
    run.kill_controller()
    run.until(lambda: len(run.named("run_started")) == 2, "the next controller")
    run.until(lambda: len(run.named("step_adopted")) == 3, "all steps are adopted")
    run.kill(1)
    run.wait_until_back(1)
    run.end_soon()
    run.finish()
    assert heard(tmp_path) == ["run_started", "group_failed", "group_restarted", "run_finished"]


def test_a_run_that_is_stopped_in_the_queue_tells_its_hooks(slurm: Backend, tmp_path: Path) -> None:
    run = slurm.start(hook(tmp_path), "cluster.sbatch.hold=true", "follow=false")
    run.process.wait(120)
    assert "is cancelled" in stop(run)
    assert heard(tmp_path) == ["run_finished"]


@pytest.mark.nightly
@pytest.mark.light
def test_a_run_whose_controller_is_gone_tells_its_hooks_when_it_is_stopped(slurm: Backend, tmp_path: Path) -> None:
    run = slurm.start(hook(tmp_path), "groups.count=1", "cluster.requeue=false", args={"open-end": True})
    run.wait_for_steps(5, 1)
    run.until(lambda: heard(tmp_path), "the first event")
    for pid, _, _ in all_processes():  # the keeper; the controller dies with it, and Slurm ends the job
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_text().startswith(f"ftslurm keeper: {run.dir.name}\0"):
                os.kill(pid, signal.SIGKILL)
    run.process.wait(120)
    assert "counts as stopped now: its controller is gone" in stop(run)
    assert heard(tmp_path)[0] == "run_started"
    assert heard(tmp_path)[-1] == "run_finished"
    assert [e["outcome"] for e in run.named("run_finished")] == ["stopped"]


@pytest.mark.nightly
def test_hooks_are_told_of_a_time_limit_and_of_the_next_job(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend], tmp_path: Path
) -> None:
    # Credentials live for 5 s, so that a requeued job is held for 6 s and not for two minutes.
    cluster = new_cluster(nodes=1, extra_conf="AuthInfo=socket=FOLDER/munge.sock,cred_expire=5")
    backend = slurm_on(cluster)
    limit = (f"cluster.sbatch.time={LONG}", f"cluster.signal_s={SIGNAL_S}", "checkpoint.every=1000000")
    run = backend.start(hook(tmp_path), "groups.count=1", *limit, args={"open-end": True, "step-time": 0.2})
    run.wait_for_steps(5, 1)
    job = (run.dir / "submitit/job_id").read_text()
    cluster.limit(job, SIGNAL_S - 10)
    run.wait_for("run_requeued")
    run.until(lambda: len(run.named("run_started")) == 2, "the next start")
    cluster.limit(job, LONG * 60)
    run.end_soon()
    run.finish()
    told = heard(tmp_path)
    assert [kind for kind in told if kind != "full_restart"] == [
        "run_started",
        "run_requeued",
        "run_started",
        "group_restarted",
        "run_finished",
    ]
