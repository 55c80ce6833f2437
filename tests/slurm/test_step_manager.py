"""A site where a slurmstepd of each job manages its steps: SlurmctldParameters=enable_stepmgr, since Slurm 24.05."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster import Cluster, release
from harness import Backend

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.light,
    pytest.mark.skipif(release() < (24, 5), reason="this Slurm has no step manager"),
]
MANAGED = "SlurmctldParameters=enable_stepmgr\nPrologFlags=contain"
MODES = {
    "steps": ("cluster.spare_nodes=1",),
    "array": ("cluster.kind=array"),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_rank_and_a_lost_node_cost_their_group_alone(
    mode: str, new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=6, extra_conf=MANAGED)
    run = slurm_on(cluster).start(*MODES[mode], "groups.count=3", "health.lost_after_s=4", args={"open-end": True})
    run.wait_for_steps(3, groups=3)
    job = str(run.named("step_launched", group=2)[0]["allocation"])
    assert "STEPMGR" in cluster.run(["scontrol", "show", "job", job]).upper(), "the site's setting has no effect"
    run.kill(1)
    run.wait_until_back(1)
    (node,) = run.named("step_launched", group=2)[-1]["nodes"]  # type: ignore[misc]
    cluster.kill_node(str(node))
    run.wait_until_back(2)
    run.end_soon()
    run.finish()
    assert {e["attempt"] for e in run.named("step_launched", group=0)} == {0}
