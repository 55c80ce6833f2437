"""A node on which steps take longer than on the others, on real Slurm."""

from __future__ import annotations

import pytest
from cluster import Cluster
from harness import Backend

pytestmark = [pytest.mark.slurm, pytest.mark.light]


def test_a_slow_group_moves_to_the_spare_node_and_is_as_fast_as_the_others_there(
    slurm_cluster: Cluster, slurm: Backend
) -> None:
    settings = ("groups.count=3", "cluster.spare_nodes=1", "health.on_slow=drain", "health.lost_after_s=4")
    args = {"open-end": True, "step-time": 0.1, "slow-node": "n2"}
    run = slurm.start(*settings, args=args)
    told = run.wait_for("group_slow")
    group = int(str(told["group"]))
    assert told["nodes"] == ["n2"]
    drained = run.wait_for("node_drained")
    assert drained["node"] == "n2"
    run.wait_until_back(group)
    (moved,) = run.named("step_launched", group=group, attempt=1)
    assert "n2" not in moved["nodes"]  # type: ignore[operator]
    last = run.end_soon()
    run.finish().check_training(last, survivors={0, 1, 2} - {group}, returned={group})
    assert len(run.named("group_slow")) == 1
    (ended,) = run.named("step_exited", group=group, attempt=0)
    assert ended["cause"] == "requested"
