"""When a node crashes and is back before Slurm notices, its job has lost its pilot, which is started again there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster import Cluster
from harness import Backend, Run

pytestmark = [pytest.mark.slurm, pytest.mark.light]


def replaced(run: Run, job: str) -> bool:
    """Return whether a job has a new pilot, or was requeued because Slurm did notice."""
    return (
        bool(run.named("pilot_restarted", allocation=job)) or len(run.named("allocation_granted", allocation=job)) > 1
    )


@pytest.mark.nightly
def test_pilots_that_a_node_crash_has_ended_are_replaced_and_one_can_lead(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=3, cpus=1)
    slurm = slurm_on(cluster)
    settings = ["cluster.kind=array", "health.lost_after_s=5", "groups.count=2"]
    run = slurm.start(*settings, args={"open-end": True, "step-time": 0.2})
    run.wait_for_steps(5, 2)
    granted = {str(e["nodes"][0]): str(e["allocation"]) for e in run.named("allocation_granted")}  # type: ignore[index]
    for node, job in granted.items():
        group = next(int(str(e["group"])) for e in run.named("step_launched", nodes=[node]))
        cluster.kill_node(node)
        cluster.start_node(node)
        run.until(lambda j=job: replaced(run, j), f"another pilot of {job}")
        run.wait_until_back(group)

    (started,) = run.named("run_started")
    cluster.kill_node(cluster.run(["squeue", "-h", f"--jobs={started['job_id']}", "--format=%N"]).strip())
    for group in (0, 1):
        run.wait_for("step_adopted", group=group)
    run.end_soon()
    run.finish()
    left = ["squeue", "-h", "--states=PENDING,RUNNING", f"--jobs={next(iter(granted.values())).partition('_')[0]}"]
    run.until(lambda: cluster.run(left).split() == [], "the jobs of the groups have ended", 30)
