"""A run in one allocation that Slurm preempts: told as preemption, and it goes on when Slurm requeues the job."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster import Cluster
from harness import Backend, light

CONF = """
AuthInfo=socket=FOLDER/munge.sock,cred_expire=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=gpu Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s} State=UP
PartitionName=urgent Nodes=ALL PriorityTier=9 PreemptMode=OFF
"""
URGENT = ("sbatch", "--output=/dev/null", "--partition=urgent", "--nodes=2", "--job-name=urgent", "--wrap=sleep 3")


@pytest.mark.slurm
@pytest.mark.light
@pytest.mark.parametrize(
    ("grace_s", "saves"),
    [
        pytest.param(3, False, marks=pytest.mark.nightly, id="grace"),
        pytest.param(0, False, marks=pytest.mark.nightly, id="no-grace"),
        pytest.param(12, True, id="long-grace-saving"),
    ],
)
def test_a_preempted_run_is_told_as_preempted_and_not_as_cancelled(
    grace_s: int, saves: bool, new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=2, cpus=1, extra_conf=CONF.format(grace_s=grace_s))
    saving = ["checkpoint.every=5"] if saves else []
    script = "light_saving.py" if saves else "light.py"
    backend = slurm_on(cluster)
    settings = ("groups.count=2", "groups.gpus=0", "groups.mem=500M", "stop.grace_s=2", "health.lost_after_s=5")
    run = backend.start(*settings, *saving, light(), script=script, args={"open-end": True, "step-time": 0.1})
    run.until(lambda: all(len(run.steps(group)) > 8 for group in (0, 1)), "both groups train")
    cluster.run([*URGENT, "--exclusive"])
    run.until(lambda: run.named("run_requeued") or run.named("run_finished"), "it ends in this job")
    (stop, *_) = [event for event in run.named("command") if event["by"] == "slurm"]
    assert "preempted" in str(stop["reason"]) or "requeued" in str(stop["reason"])
    ends = [event["cause"] for event in run.named("step_exited") if event["group"] is not None]
    assert set(ends) == {"preempted"}, "\n".join(map(str, run.events))
    if saves:
        run.wait_for("checkpoint_restored")
        run.end_soon()
        run.finish()
        return
    assert run.process.wait(60.0) == 1  # as after any end of all groups without a checkpoint
    (end,) = run.named("run_finished")
    assert "there is no checkpoint" in str(end["reason"])
    assert {event["attempt"] for event in run.named("step_launched")} == {0}
