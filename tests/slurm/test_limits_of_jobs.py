"""Array mode under a limit of jobs: the groups that have jobs train, the others are told and come when they may."""

from __future__ import annotations

import getpass
from collections.abc import Callable

import pytest
from cluster import NO_ACCOUNTING, Cluster
from harness import Backend

CONF = "ClusterName=alpha\nAccountingStorageEnforce=associations,limits,qos\n"
USER = "add user USER account=physics"


@pytest.mark.slurm
@pytest.mark.light
@pytest.mark.nightly
@pytest.mark.skipif(bool(NO_ACCOUNTING), reason=f"slurmdbd cannot be set up: {NO_ACCOUNTING} missing")
@pytest.mark.parametrize(
    ("accounts", "lifted"),
    [
        ((f"{USER} MaxSubmitJobs=4",), "modify user USER set MaxSubmitJobs=9"),
        (("add qos small set MaxSubmitJobsPerUser=4", USER, "modify user USER set QOS=small DefaultQOS=small"),
         "modify qos small set MaxSubmitJobsPerUser=9"),
        ((f"{USER} MaxJobs=4",), "modify user USER set MaxJobs=9"),
    ],
    ids=["association", "qos", "running"],
)  # fmt: skip
def test_groups_that_get_no_job_by_a_limit_are_told_and_come_once_it_is_lifted(
    accounts: tuple[str, ...],
    lifted: str,
    new_cluster: Callable[..., Cluster],
    slurm_on: Callable[[Cluster], Backend],
) -> None:
    begin = ("add cluster alpha", "add account physics")
    cluster = new_cluster(nodes=6, cpus=1, extra_conf=CONF, accounts=(*begin, *accounts))
    run = slurm_on(cluster).start(
        *("cluster=array", "health.lost_after_s=5", "cluster.account=physics", "groups.count=4", "groups.min=2"),
        args={"open-end": True, "step-time": 0.1},
    )
    run.until(lambda: sum(len(run.steps(group)) > 8 for group in range(4)) == 3, "the three that have jobs train", 40.0)
    run.until(lambda: run.named("group_waits"), "the fourth is told", 20.0)
    _, said = run.ask("status")
    limit = "MaxJobs" if "MaxJobs=4" in accounts[-1] else "accounting/QOS policy"
    assert limit in said, said
    user = getpass.getuser()
    cluster.run(["sacctmgr", "--immediate", *lifted.replace("USER", user).split()])
    run.until(lambda: all(len(run.steps(group)) > 3 for group in range(4)), "the fourth trains, too", 90.0)
    run.end_soon()
    run.finish()
