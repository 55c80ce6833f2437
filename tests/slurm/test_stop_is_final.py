"""A run that a user has stopped stays stopped, whoever requeues its job or kills its controller meanwhile."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest
from cluster import Cluster
from harness import Backend, Run
from test_controller_dies import die

pytestmark = [pytest.mark.slurm, pytest.mark.light]
# As in many repositories: the job of a script that is told to end is requeued.
REQUEUES = """
import os, signal, sys, time
def again(*_):
    os.system("scontrol requeue " + os.environ["SLURM_JOB_ID"])
    sys.exit(-1)
signal.signal(signal.SIGTERM, again)
while True:
    time.sleep(0.05)
"""
STAYS = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    time.sleep(0.05)\n"
TWO = ("groups.count=2", "lighthouse=none", "standby.count=0")


@pytest.fixture
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    """A cluster that holds a requeued job for 6 s and not for two minutes."""
    return new_cluster(nodes=3, cpus=2, extra_conf="AuthInfo=socket=FOLDER/munge.sock,cred_expire=5\nKillWait=3")


def verb(slurm: Backend, run: Run, *words: str) -> str:
    """Call a verb on a run; return what it prints."""
    called = slurm.launch(words[0], str(run.dir), *words[1:])
    assert called.process.wait(60) == 0, called.text
    return called.text


def all_begin(run: Run, attempts: int = 1) -> None:
    for group in (0, 1):
        run.until(lambda group=group: len(run.named("script_begun", group=group)) >= attempts, f"group {group} begins")


def ends_for_good(cluster: Cluster, run: Run) -> None:
    """Wait until no job of the run is left; check that a user has ended it, and that nothing was started after that."""
    run.until(lambda: run.named("run_finished"), "the run is over")
    run.until(lambda: not cluster.run(["squeue", "--noheader"]), "no job is left")
    (end,) = run.named("run_finished")
    assert (end["outcome"], end["by"]) == ("stopped", os.getuid())
    assert run.events[-1] == end
    assert not run.processes()


def test_a_script_that_requeues_its_job_undoes_no_stop_and_is_named(
    cluster: Cluster, slurm_on: Callable[[Cluster], Backend]
) -> None:
    slurm = slurm_on(cluster)
    script = slurm.script(REQUEUES)
    run = slurm.start(*TWO, "follow=false", script=script)
    assert run.process.wait(60) == 0
    where = f"{script}:4"
    assert f"ftslurm: {where} requeues the job, which ends all groups" in run.text
    all_begin(run)
    verb(slurm, run, "restart", "--group", "1")
    run.until(lambda: run.named("run_requeued"), "the job is requeued")
    reason = str(run.named("run_requeued")[0]["reason"])
    assert f"when group 1 was told to leave ({where}), remove the line" in reason
    all_begin(run, attempts=2)
    starts = len(run.named("run_started"))
    verb(slurm, run, "stop")
    ends_for_good(cluster, run)
    assert len(run.named("run_started")) == starts == 2
    (output,) = (run.dir / "submitit").glob("*_log.out")
    assert "the run is over (stopped): this job, which was started again, ends" in output.read_text()
    status = json.loads(verb(slurm, run, "status", "--json"))
    assert status["outcome"] == "stopped"


@pytest.mark.parametrize("mode", ["slurm", "array"])
@pytest.mark.parametrize("who", ["the controller dies", "an administrator requeues"])
def test_a_stop_outlives_what_happens_within_the_grace_time(
    who: str, mode: str, cluster: Cluster, slurm_on: Callable[[Cluster], Backend]
) -> None:
    slurm = slurm_on(cluster)
    words = (f"cluster.kind={mode}", "stop.grace_s=8", "health.lost_after_s=4", "follow=false")
    run = slurm.start(*TWO, *words, script=slurm.script(STAYS))
    assert run.process.wait(60) == 0
    all_begin(run)
    launched = len(run.named("step_launched"))
    verb(slurm, run, "stop")
    run.until(lambda: run.named("command", what="stop"), "the controller stops the run")
    if who == "the controller dies":
        run.kill_controller()
    else:
        jobs = cluster.run(["squeue", "--noheader", "--array", "--format=%i"]).split()
        cluster.run(["scontrol", "requeue", ",".join(jobs)])
    ends_for_good(cluster, run)
    assert len(run.named("step_launched")) == launched


def test_jobs_that_wait_end_with_their_run_though_its_controller_is_killed_at_the_end(
    cluster: Cluster, slurm_on: Callable[[Cluster], Backend]
) -> None:
    """It dies when the end of the run is on disk, before it has cancelled a job."""
    slurm = slurm_on(cluster)
    die(slurm, "run_finished")
    run = slurm.start(*TWO, "groups.count=9", "cluster.kind=array", "follow=false", script=slurm.script(STAYS))
    assert run.process.wait(60) == 0
    all_begin(run)
    waiting = cluster.run(["squeue", "--noheader", "--states=PENDING", "--format=%A"]).split()
    assert waiting
    cluster.run(["scontrol", "hold", ",".join(waiting)])
    verb(slurm, run, "stop")
    ends_for_good(cluster, run)
    assert not (slurm.tmp_path / "when").exists()
    assert (run.dir / "report.html").exists()
