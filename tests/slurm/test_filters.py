"""A site that takes no jobs from its nodes. More sites: tests/sites."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster import SITES, Cluster
from harness import Backend

pytestmark = [pytest.mark.slurm, pytest.mark.light]


def test_the_first_refusal_of_a_job_from_a_node_names_the_setting(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    slurm = slurm_on(new_cluster(nodes=2, files=SITES / "no-sbatch-on-nodes"))
    run = slurm.start("cluster=array", "groups.count=1", "cluster.time=10", args={"steps": 5})
    run.until(lambda: any(event["event"] == "allocation_refused" for event in run.events), "it is told")
    (refused,) = [event for event in run.events if event["event"] == "allocation_refused"]
    assert "ERROR: Job submission is not allowed from this host" in refused["reason"]
    assert "set cluster=slurm" in refused["reason"]
