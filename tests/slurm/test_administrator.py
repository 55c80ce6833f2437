"""What an administrator does to the jobs and nodes of a run is final: docs/admin.md, "What ends a run"."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from cluster import Cluster
from harness import Backend, Run
from test_array import ARRAY, ENDLESS, jobs, pilot_of

pytestmark = [pytest.mark.slurm, pytest.mark.light]


@pytest.fixture
def site(new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]) -> tuple[Cluster, Backend]:
    cluster = new_cluster(nodes=5, cpus=1)
    return cluster, slurm_on(cluster)


def start(slurm: Backend, *words: str) -> Run:
    run = slurm.start(*words, "groups.count=2", args=ENDLESS)
    run.wait_for_steps(3, 2)
    return run


@pytest.mark.parametrize("at_once", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_run_whose_jobs_of_groups_are_cancelled_ends_and_stays_away(
    at_once: bool, site: tuple[Cluster, Backend]
) -> None:
    cluster, slurm = site
    run = start(slurm, *ARRAY)
    found = [pilot_of(run, group) for group in range(2)]
    for names in [found] if at_once else [[name] for name in found]:
        cluster.run(["scancel", *names])
    run.finish(1, "stopped")
    assert "somebody has cancelled all jobs" in str(run.named("run_finished")[0]["reason"])
    run.until(lambda: not jobs(cluster) or set(jobs(cluster).values()) == {"COMPLETING"}, "no job is left")


def test_nothing_is_submitted_around_a_job_that_is_held(site: tuple[Cluster, Backend]) -> None:
    cluster, slurm = site
    run = start(slurm, *ARRAY)
    held = pilot_of(run, 1)
    cluster.run(["scontrol", "requeuehold", held])
    run.wait_for("step_exited", group=1, attempt=0)
    time.sleep(20)  # longer than the wait for a job that was only requeued
    there = jobs(cluster)
    assert there[held] == "PENDING"
    assert len(there) == 3  # the controller's, and one of each group
    assert sum(int(str(event["count"])) for event in run.named("allocation_requested")) == 2
    assert re.search(r"release", run.ask("status")[1])
    cluster.run(["scontrol", "release", held])
    cluster.run(["scontrol", "update", f"jobid={held}", "starttime=now"])
    run.wait_until_back(1)
    assert pilot_of(run, 1) == held
    run.end_soon()
    run.finish()


def test_in_one_allocation_a_group_leaves_a_drained_node_for_a_job_of_its_own(site: tuple[Cluster, Backend]) -> None:
    cluster, slurm = site
    run = start(slurm)
    node = run.node_of(1, 0)
    cluster.run(["scontrol", "update", f"nodename={node}", "state=drain", "reason=bad disk"])
    run.kill(1)
    run.wait_until_back(1)
    assert run.node_of(1, 1) not in (node, run.node_of(0, 0))
    run.end_soon()
    run.finish()
