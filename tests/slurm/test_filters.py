"""Sites that refuse what ftslurm gives srun, and jobs from nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster import Cluster
from harness import Backend
from refusing_sites import WORDS, refuse_memory, refuse_on_nodes

pytestmark = [pytest.mark.slurm, pytest.mark.light]


def test_steps_without_mem_run_where_it_is_refused_and_else_the_sites_words_are_told(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=3)
    refuse_memory(cluster)
    backend = slurm_on(cluster)
    refused = backend.start("groups.count=2", "health.start_timeout_s=5", args={"steps": 5})
    refused.process.wait(60)
    print(refused.text)
    assert "Requesting memory by node is not supported. Use --mem-per-cpu." in refused.text
    assert "cluster.srun" in refused.text
    run = backend.start("groups.count=2", 'cluster.srun=["--mem-per-cpu=0"]', args={"steps": 20, "step-time": 0.1})
    run.wait_for_steps(3, groups=2)
    run.kill(1)
    assert run.process.wait(60) == 0, run.text


def test_the_first_refusal_of_a_job_from_a_node_names_the_setting(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=2, extra_conf="PartitionName=closed Nodes=ALL AllocNodes=elsewhere")
    refuse_on_nodes(cluster)
    slurm = slurm_on(cluster)
    plan = slurm.launch("plan", "job=ddp", "cluster=slurm", "cluster.partition=closed")
    plan.process.wait(60)
    assert "closed takes jobs from elsewhere alone (AllocNodes)" in plan.text
    run = slurm.start("cluster.mode=array", "groups.count=1", "cluster.time=10", args={"steps": 5})
    run.until(lambda: any(event["event"] == "allocation_refused" for event in run.events), "it is told")
    (refused,) = [event for event in run.events if event["event"] == "allocation_refused"]
    assert WORDS in refused["reason"]
    assert "set cluster.mode=steps" in refused["reason"]
