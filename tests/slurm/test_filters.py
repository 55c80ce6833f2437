"""A site that takes no jobs from its nodes. More sites: tests/sites."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster import Cluster
from harness import Backend
from refusing_sites import WORDS, refuse_on_nodes

pytestmark = [pytest.mark.slurm, pytest.mark.light]


def test_the_first_refusal_of_a_job_from_a_node_names_the_setting(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=2)
    refuse_on_nodes(cluster)
    slurm = slurm_on(cluster)
    run = slurm.start("cluster.mode=array", "groups.count=1", "cluster.time=10", args={"steps": 5})
    run.until(lambda: any(event["event"] == "allocation_refused" for event in run.events), "it is told")
    (refused,) = [event for event in run.events if event["event"] == "allocation_refused"]
    assert WORDS in refused["reason"]
    assert "set cluster.mode=steps" in refused["reason"]
