"""The effects of Slurm on a run: lost nodes, cancelled jobs, near time limits, jobs that never start."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Cluster
from harness import Backend, Run, all_processes

pytestmark = [pytest.mark.slurm, pytest.mark.light]
IDLE = "import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(600)\n"


@pytest.mark.nightly
def test_a_used_up_spare_node_is_asked_for_again_and_a_returning_node_is_used(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=3)
    backend = slurm_on(cluster)
    run = backend.start("groups.count=2", "cluster.spare_nodes=1", args={"open-end": True, "step-time": 0.2})
    run.wait_for_steps(8, groups=2)
    (first,) = run.named("step_launched", group=1)[0]["nodes"]  # type: ignore[misc]
    cluster.run(["scontrol", "update", f"nodename={first}", "state=down", "reason=test"])
    run.wait_until_back(1)
    run.wait_for("allocation_requested")
    run.wait_for("node_restored", node=first)  # the node is healthy, and Slurm restores it without help
    (second,) = run.named("step_launched", group=1)[1]["nodes"]  # type: ignore[misc]
    cluster.run(["scontrol", "update", f"nodename={second}", "state=down", "reason=test"])
    run.wait_until_back(1, attempt=2)
    (third,) = run.named("step_launched", group=1)[2]["nodes"]  # type: ignore[misc]
    assert (third == first, second == first) == (True, False)
    assert [e["cause"] for e in run.named("step_exited", group=1)] == ["node_lost", "node_lost"]
    last = run.end_soon()
    run.finish()
    run.check_training(last, survivors={0}, returned={1})


def test_without_a_spare_node_the_group_waits_and_the_others_go_on(slurm: Backend, slurm_cluster: Cluster) -> None:
    run = slurm.start("groups.count=2", "cluster.requeue=false", args={"steps": 50, "step-time": 0.1})
    run.until(lambda: all(len(run.steps(g)) >= 10 for g in (0, 1)), "10 steps")
    (lost,) = run.named("step_launched", group=1)[0]["nodes"]  # type: ignore[misc]
    slurm_cluster.run(["scontrol", "update", f"nodename={lost}", "state=down", "reason=test"])
    run.finish(4)
    assert [int(s["step"]) for s in run.steps(0)][-1] == 50
    assert len(run.named("step_launched", group=1)) == 1
    assert "1 of 2 groups finished" in str(run.named("run_finished")[0]["reason"])


def test_scancel_of_the_job_leaves_a_journal_that_says_so_and_no_process(slurm: Backend) -> None:
    run = slurm.start("groups.count=2", script=slurm.script(IDLE))
    run.pid(0), run.pid(1)
    job = str(run.named("run_started")[0]["job_id"])
    subprocess.run(["scancel", job], env=slurm_environ(slurm), check=True)
    run.finish(1, outcome="stopped")
    assert "SIGTERM" in str(run.named("run_finished")[0]["reason"])


@pytest.mark.nightly
def test_slurms_warning_before_the_time_limit_reaches_only_the_controller(slurm: Backend) -> None:
    text = "import signal\nsignal.signal(signal.SIGUSR2, lambda *_: print('USR2', flush=True))\n" + IDLE
    run = slurm.start("groups.count=2", "cluster.signal_s=8", script=slurm.script(text))
    run.pid(0), run.pid(1)
    job = str(run.named("run_started")[0]["job_id"])
    subprocess.run(["scancel", "--batch", "--signal=USR2", job], env=slurm_environ(slurm), check=True)
    run.finish(1, outcome="stopped")  # it takes no steps that could be saved
    assert "cluster.time" in str(run.named("run_finished")[0]["reason"])
    assert {e["cause"] for e in run.named("step_exited") if e["group"] is not None} == {"time_limit"}
    assert "USR2" not in run.rank_log(0) + run.rank_log(1)


def test_a_job_that_never_starts_can_be_stopped(slurm: Backend, slurm_cluster: Cluster) -> None:
    slurm_cluster.run(["salloc", "--nodes=4", "--exclusive", "--no-shell"])
    run = slurm.start("groups.count=2", script=slurm.script(IDLE))
    run.until(lambda: (run.dir / "submitit" / "job_id").exists(), "the job is submitted")
    job = (run.dir / "submitit" / "job_id").read_text()
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(60) == 130
    stop = slurm.launch("stop", str(run.dir))
    assert stop.process.wait(60) == 0
    assert "was waiting in the queue" in stop.text
    states = slurm_cluster.run(["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"])
    assert states.strip() == "CANCELLED"


def slurm_environ(backend: Backend) -> dict[str, str]:
    return os.environ | backend.environ


@pytest.mark.parametrize(
    "helper_too",
    [pytest.param(False, id="srun"), pytest.param(True, id="srun and its helper")],
)
@pytest.mark.nightly
def test_a_killed_srun_never_leaves_a_second_live_step_of_its_group(slurm: Backend, helper_too: bool) -> None:
    run = slurm.start("groups.count=2", args={"open-end": True, "step-time": 0.2})
    run.until(lambda: all(len(run.steps(g)) >= 10 for g in (0, 1)), "10 steps")
    old = run.pid(1)
    sruns = sorted(
        p for p, n, e in all_processes() if n == "srun" and b"FTSLURM_STEP=group-0001/0" in e and _of(run, e)
    )
    for pid in sruns if helper_too else sruns[:1]:  # the helper is srun's child, so its pid is the higher one
        with contextlib.suppress(ProcessLookupError):  # it has ended with the other one
            os.kill(pid, signal.SIGKILL)
    run.wait_for("step_launched", group=1, attempt=1)
    run.until(lambda: not _lives(old), "the old attempt's worker is gone", 5)
    run.wait_until_back(1)
    last = run.end_soon()
    run.finish()
    run.check_training(last, survivors={0}, returned={1})
    times = {attempt: [s["time"] for s in run.steps(1) if s["attempt"] == attempt] for attempt in (0, 1)}
    assert max(times[0]) < min(times[1])


@pytest.mark.nightly
def test_launches_that_slurm_refuses_are_tried_again_and_are_no_attempts(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=3)
    backend = slurm_on(cluster)
    budget = ("restart.max_per_group=2", "restart.backoff_s=2")
    run = backend.start("groups.count=2", *budget, args={"open-end": True, "step-time": 0.2})
    run.wait_for_steps(8, groups=2)
    run.kill(1)
    run.wait_until_back(1)
    run.kill(1)
    run.wait_for("restart_scheduled", group=1, attempt=2)  # after its backoff, when there is no slurmctld
    with cluster.without_slurmctld():
        run.wait_for("launch_refused", unit="group-0001", attempt=2)
    run.wait_until_back(1, attempt=2)
    assert len(run.named("step_exited", group=1)) == 2
    assert len(list((run.dir / "logs/group-0001").iterdir())) == 3
    last = run.end_soon()
    run.finish()
    run.check_training(last, survivors={0}, returned={1})


@pytest.mark.nightly
def test_launches_go_on_being_tried_while_slurmctld_is_away(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=3)
    backend = slurm_on(cluster)
    run = backend.start("groups.count=2", "restart.max_per_group=1", args={"steps": 100000, "step-time": 0.1})
    run.until(lambda: all(len(run.steps(g)) >= 10 for g in (0, 1)), "10 steps")
    slurmctld = next(p for p, n, e in all_processes() if n == "slurmctld" and _conf(cluster) in e)
    os.kill(slurmctld, signal.SIGSTOP)
    run.kill(group=1)
    time.sleep(8)  # srun can neither end its step nor launch another meanwhile
    os.kill(slurmctld, signal.SIGCONT)
    run.until(lambda: [e for e in run.named("group_joined", group=1) if e["attempt"]], "the group is back")
    assert not run.named("group_given_up")
    assert len(run.named("step_launched", group=0)) == 1


def _of(run: Run, environ: list[bytes]) -> bool:
    return f"FTSLURM_RUN_DIR={run.dir}".encode() in environ


def _conf(cluster: Cluster) -> bytes:
    return f"SLURM_CONF={cluster.env['SLURM_CONF']}".encode()


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
