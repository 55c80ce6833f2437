"""How many RPCs a run makes to slurmctld when much goes wrong: docs/admin.md, "What it asks of Slurm"."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable

import pytest
from cluster import Cluster
from harness import Backend, Run
from test_array import ENDLESS

pytestmark = [pytest.mark.slurm, pytest.mark.light]
OURS = re.compile(  # what squeue, scontrol, sbatch, scancel, sinfo and srun send; the others are slurmd's, or sdiag's
    r"^\s*(REQUEST_(?:\w+_INFO\w*|SUBMIT\w*|UPDATE_JOB|JOB_REQUEUE|KILL_JOB|CANCEL_\w+|JOB_STEP_CREATE))\s.*count:(\d+)",
    re.MULTILINE,
)
WATCHED_S = 75.0
CALM = "health.lost_after_s=60"  # on a busy machine nodes seem silent, which is another situation
MOST, MOST_ON_AVERAGE = 30, 12  # in a minute, the latter of five
KINDS = [pytest.param("slurm", id="steps"), pytest.param("array", id="arrays")]


def calls(cluster: Cluster) -> int:
    """Return how many RPCs of ours slurmctld has had since its start; one of another sdiag counts for none."""
    found = OURS.findall(cluster.run(["sdiag"]).partition("by user")[0])
    return sum(int(count) for name, count in found if name != "REQUEST_STATS_INFO")


def watch(cluster: Cluster, seconds: float = WATCHED_S) -> tuple[int, float]:
    """Return the most RPCs in a minute, and those of all the time in a minute."""
    began, seen = time.monotonic(), list[tuple[float, int]]()
    while (now := time.monotonic()) < began + seconds:
        seen.append((now, calls(cluster)))
        time.sleep(1)
    most = max(count - before for at, count in seen for then, before in seen if at - 60 <= then <= at)
    average = (seen[-1][1] - seen[0][1]) * 60 / (seen[-1][0] - seen[0][0])
    print(f"RPCs: most {most} in a minute, {average:.1f} on average")
    return most, average


Start = Callable[..., tuple[Cluster, Run]]


@pytest.fixture
def start(new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]) -> Start:
    """A function that starts a cluster, and there a run of three groups that nobody watches."""

    def start(*words: str, nodes: int = 4, stepping: int = 3, **options: object) -> tuple[Cluster, Run]:
        cluster = new_cluster(nodes=nodes, cpus=1, **options)
        run = slurm_on(cluster).start("groups.count=3", "restart.max_per_group=20", *words, args=ENDLESS)
        run.until(lambda: sum(len(run.steps(group)) >= 3 for group in range(3)) >= stepping, "steps")
        os.kill(run.process.pid, signal.SIGSTOP)  # `ftslurm run` asks squeue, too
        return cluster, run

    return start


@pytest.fixture(params=KINDS)
def of_kind(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return () if request.param == "slurm" else (f"cluster.kind={request.param}",)


@pytest.mark.nightly
def test_at_rest(start: Start, of_kind: tuple[str, ...]) -> None:
    cluster, _ = start(*of_kind)
    time.sleep(60)  # jobs that have just begun are looked at more often
    most, _ = watch(cluster)
    assert most <= (MOST_ON_AVERAGE if of_kind else 0)


@pytest.mark.nightly
def test_a_lost_node(start: Start, of_kind: tuple[str, ...]) -> None:
    cluster, run = start(*of_kind, nodes=6)
    cluster.kill_node(run.node_of(2, 0), dark=True)
    most, _ = watch(cluster)
    assert most <= MOST
    run.wait_until_back(2)


@pytest.mark.nightly
def test_eight_kills_in_a_minute(start: Start, of_kind: tuple[str, ...]) -> None:
    cluster, run = start(*of_kind, CALM, "restart.backoff_s=0.1")
    before, began = calls(cluster), time.monotonic()
    for number in range(1, 9):
        run.kill(number % 3)
        time.sleep(7)
    most = calls(cluster) - before
    print(f"RPCs: {most} in {time.monotonic() - began:.0f} s")
    assert most <= MOST
    assert len(run.named("step_exited")) == 8


@pytest.mark.nightly
def test_no_port_is_left_for_srun(start: Start) -> None:
    # 3 for the Lighthouse and each group
    words = (CALM, "groups.min=1", "standby.count=1", "health.start_timeout_s=600")
    cluster, run = start(*words, stepping=2, extra_conf="SrunPortRange=61001-61009")
    most, _ = watch(cluster)
    assert most <= MOST
    assert run.named("launch_refused")


@pytest.mark.nightly
def test_slurmctld_away_and_back(start: Start, of_kind: tuple[str, ...]) -> None:
    cluster, run = start(*of_kind, CALM)
    cluster.stop_slurmctld()
    run.kill(1)
    run.kill(2)
    time.sleep(30)
    cluster.start_slurmctld()
    most, _ = watch(cluster)
    run.wait_until_back_at_last(1, 2)
    assert most <= MOST
