"""When the controller's own job is lost, one of the pilots runs the controller from then on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster import Cluster
from harness import Backend

pytestmark = [pytest.mark.slurm, pytest.mark.light]


@pytest.mark.nightly
def test_a_pilot_takes_over_from_a_controller_whose_job_is_lost(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=3, cpus=1)
    slurm = slurm_on(cluster)
    settings = ["cluster.kind=array", "health.lost_after_s=5", "groups.count=2"]
    run = slurm.start(*settings, args={"open-end": True, "step-time": 0.2})
    run.wait_for_steps(5, 2)
    (started,) = run.named("run_started")
    cluster.kill_node(cluster.run(["squeue", "-h", f"--jobs={started['job_id']}", "--format=%N"]).strip())
    for group in (0, 1):
        run.wait_for("step_adopted", group=group)
    pilots = {str(e["allocation"]) for e in run.named("allocation_granted")}
    led = str(run.named("run_started")[1]["job_id"])
    assert led in pilots
    run.wait_for_steps(len(run.steps(0)) + 10, 1)
    steps = run.end_soon()
    run.finish()  # also for `ftslurm run`, which follows it
    assert [e["attempt"] for e in run.named("step_launched") if e["group"] is not None] == [0, 0]
    for group in (0, 1):
        numbers = [int(step["step"]) for step in run.steps(group)]
        assert numbers == list(range(numbers[0], steps + 1))
    assert len(set(run.weights().values())) == 1
