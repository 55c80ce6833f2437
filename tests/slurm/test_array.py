"""cluster.kind=array on real Slurm: jobs of groups start and end while the other groups train on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Cluster
from harness import Backend, Run

pytestmark = [pytest.mark.slurm, pytest.mark.light]
ARRAY = ("cluster.kind=array", "health.lost_after_s=4")
ENDLESS: dict[str, object] = {"open-end": True, "step-time": 0.2}


@pytest.fixture
def array(new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]) -> tuple[Cluster, Backend]:
    """A cluster on which a requeued job waits two minutes unless the test shortens that, and its backend."""
    cluster = new_cluster(nodes=6, cpus=1)
    return cluster, slurm_on(cluster)


def jobs(cluster: Cluster) -> dict[str, str]:
    """Return the state of every job in the queue, by its name."""
    lines = cluster.run(["squeue", "--noheader", "--array", "--format=%i %T"]).splitlines()
    return dict(line.split() for line in lines)


def pilot_of(run: Run, group: int) -> str:
    return str(run.named("step_launched", group=group)[-1]["allocation"])


def moved(run: Run, group: int, job: str) -> bool:
    """Return whether the group trains in another job than this one."""
    last = run.named("step_launched", group=group)[-1]
    return last["allocation"] != job and bool(run.named("group_joined", group=group, attempt=last["attempt"]))


def check_history(run: Run, steps: int, groups: range, survivor: int) -> None:
    """Check that a group committed every step after it joined, and that all finished groups have the same weights."""
    numbers = [int(s["step"]) for s in run.steps(survivor)]
    assert numbers == list(range(numbers[0], steps + 1))
    assert len(set(run.weights().values())) == 1, run.weights()
    assert {group for group, _ in run.weights()} == set(groups)


def check_history_of_all(run: Run, steps: int, groups: int) -> None:
    """Check that some group committed each step, and that all finished groups have the same weights."""
    done = {int(s["step"]) for g in range(groups) for s in run.steps(g)}
    assert done == set(range(1, steps + 1))
    assert len(set(run.weights().values())) == 1, run.weights()
    assert {group for group, _ in run.weights()} == set(range(groups))


def left(cluster: Cluster, but: str) -> set[str]:
    """Return the jobs that are not about to end, but one. Slurm carries out the last cancellation a moment later."""
    return {name for name, state in jobs(cluster).items() if name != but and state != "COMPLETING"}


def test_only_the_group_whose_job_is_lost_cancelled_or_requeued_comes_back(array: tuple[Cluster, Backend]) -> None:
    cluster, slurm = array
    stranger = cluster.run(["sbatch", "--parsable", "--job-name=toy", "--wrap=sleep 600", "--mem=100"]).strip()
    run = slurm.start(*ARRAY, "groups.count=3", "run.name=toy", "groups.mem=1G", args=ENDLESS)
    run.wait_for_steps(5, 3)
    first = {group: pilot_of(run, group) for group in range(3)}
    assert len(set(first.values())) == 3

    cluster.run(["scancel", first[1]])  # by hand
    run.wait_until_back(1)
    assert run.named("step_launched", group=1, attempt=1)[0]["allocation"] != first[1]
    ends = (*run.named("step_exited", group=1), *run.named("cause_corrected", group=1))
    assert ends[-1]["cause"] == "cancelled"

    cluster.run(["scontrol", "requeue", first[2]])  # as Slurm or its administrator does
    run.wait_until_back(2)
    assert run.named("step_launched", group=2, attempt=1)[0]["allocation"] == first[2]

    (node,) = run.named("step_launched", group=1)[-1]["nodes"]  # type: ignore[misc]
    cluster.kill_node(str(node))
    run.wait_until_back(1, attempt=2)
    moved = run.named("step_launched", group=1, attempt=2)[0]
    assert node not in moved["nodes"]  # type: ignore[operator]
    (ended,) = run.named("step_exited", group=1, attempt=1)
    assert ended["cause"] == "node_lost"

    last = run.end_soon()
    run.finish()
    check_history(run, last, range(3), survivor=0)
    assert {e["attempt"] for e in run.named("step_launched", group=0)} == {0}
    assert sum(int(str(e["count"])) for e in run.named("allocation_requested")) == 5  # never two for one
    run.until(lambda: stranger in jobs(cluster), "somebody else's job of the same name goes on")
    run.until(lambda: not left(cluster, but=stranger), "the run's jobs are gone")


def test_a_pilot_that_a_signal_ends_costs_its_node_nothing(array: tuple[Cluster, Backend]) -> None:
    cluster, slurm = array
    run = slurm.start(*ARRAY, "groups.count=2", args=ENDLESS)
    run.wait_for_steps(5, 2)
    job, (node,) = pilot_of(run, 1), run.named("step_launched", group=1)[0]["nodes"]  # type: ignore[misc]
    own = cluster.run(["squeue", "--noheader", f"--jobs={job}", "--format=%A"]).strip()
    there = [Path("/proc", str(pid)) for pid in cluster.processes()]
    inside = [path for path in there if f"SLURM_JOB_ID={own}\0" in (path / "environ").read_text()]
    (pilot,) = [path.name for path in inside if (path / "cmdline").read_text().startswith("ftslurm pilot")]
    os.kill(int(pilot), signal.SIGKILL)
    run.wait_for("allocation_lost", allocation=job)
    run.wait_until_back(1)
    assert run.named("node_check_failed") == run.named("node_excluded", node=node) == []
    run.end_soon()
    run.finish()


@pytest.mark.nightly
def test_time_limits_are_crossed_one_group_after_the_other_and_by_the_controller_too(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=4, cpus=2)
    slurm = slurm_on(cluster)
    limits = (
        "cluster.sbatch.time=30",
        "cluster.signal_s=60",
        "groups.mem=1G",
    )  # no group moves again
    patient = ("health.lost_after_s=60",)  # a step may take long to start on a busy machine
    run = slurm.start(*ARRAY[:1], *limits, *patient, "groups.count=2", args=ENDLESS)
    run.wait_for_steps(5, 2)
    first = [pilot_of(run, group) for group in (0, 1)]
    for job in (*first, (run.dir / "submitit/job_id").read_text()):
        cluster.limit(job, left_s=100)
    run.until(lambda: all(moved(run, g, job) for g, job in enumerate(first)), "both groups have moved")
    run.until(lambda: len(run.named("run_started")) > 1, "a pilot leads")
    last = run.end_soon()
    run.finish()
    check_history_of_all(run, last, 2)
    causes = {e["cause"] for e in run.named("step_exited") if e["group"] is not None}
    assert {"time_limit", "ok"} <= causes <= {"time_limit", "ok", "cancelled"}  # whichever controller was told
    assert run.named("controller_left")
    assert [e for e in run.named("step_adopted") if e["group"] is not None]  # groups not moving then


def test_a_preempted_group_leaves_and_comes_back_while_the_guaranteed_one_trains_on(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    partitions = """AuthInfo=socket=FOLDER/munge.sock,cred_expire=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=requeued Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=3
PartitionName=cancelled Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=3
PartitionName=urgent Nodes=ALL PriorityTier=9 PreemptMode=OFF"""
    cluster = new_cluster(nodes=6, cpus=1, extra_conf=partitions)
    slurm = slurm_on(cluster)
    endless = "time: UNLIMITED"  # squeue then hides that its end is near
    ranges = f"cluster.ranges=[{{groups: 1, partition: requeued, {endless}}}, {{groups: 2, partition: cancelled}}]"
    run = slurm.start(*ARRAY, ranges, "groups.count=3", args=ENDLESS)
    run.wait_for_steps(5, 3)
    nodes = [str(run.named("step_launched", group=g)[0]["nodes"][0]) for g in (1, 2)]  # type: ignore[index]
    urgent = ["sbatch", "--parsable", "--partition=urgent", "--nodes=2", f"--nodelist={','.join(nodes)}"]
    job = cluster.run([*urgent, "--wrap=sleep 600"]).strip()
    run.until(lambda: jobs(cluster).get(job) == "RUNNING", "the urgent job has their nodes")
    run.wait_until_back(1, 2)
    last = run.end_soon()
    run.finish()
    check_history(run, last, range(3), survivor=0)
    left = [str(e["evidence"]) for g in (1, 2) for e in run.named("step_exited", group=g, attempt=0)]
    assert all("signal 15" in signs for signs in left)  # told to go, not killed
    ends = (*run.named("step_exited", attempt=0), *run.named("cause_corrected", attempt=0))
    causes = {e["group"]: e["cause"] for e in ends}
    assert [causes[1], causes[2]] == ["preempted", "preempted"]
    assert pilot_of(run, 1) == str(run.named("step_launched", group=1)[0]["allocation"])


@pytest.mark.nightly
def test_a_run_grows_and_shrinks_while_it_trains_beside_another_run_of_the_same_user(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=2, cpus=8)
    slurm = slurm_on(cluster)
    small = ("groups.mem=500M", "groups.count=2", "run.name=twin")
    run = slurm.start(*ARRAY, *small, "groups.max=4", args=ENDLESS)
    other = slurm.start(*ARRAY, *small, args=ENDLESS)
    run.wait_for_steps(3, 2)
    assert slurm.launch("scale", str(run.dir), "4").process.wait(60) == 0
    run.wait_for("group_joined", group=2)
    run.wait_for("group_joined", group=3)
    assert slurm.launch("scale", str(run.dir), "5").process.wait(60) == 2
    assert slurm.launch("scale", str(run.dir), "2").process.wait(60) == 0
    run.wait_for("step_exited", group=2)
    run.wait_for("step_exited", group=3)
    assert slurm.launch("scale", str(run.dir), "3").process.wait(60) == 0
    run.wait_for("group_joined", group=2, attempt=1)
    other.wait_for_steps(3, 2)
    for one, groups in ((run, 3), (other, 2)):
        last = one.end_soon()
        one.finish()
        numbers = [int(s["step"]) for s in one.steps(0)]
        assert numbers == list(range(numbers[0], last + 1))
        weights = {group: text for (group, _), text in one.weights().items()}
        assert len({weights[group] for group in range(groups)}) == 1
        assert len(one.named("step_launched", group=0)) == 1
        assert {e["pool"] for e in one.named("allocation_granted")} == {0}


@pytest.mark.nightly
def test_a_lost_node_is_replaced_by_a_job_and_one_that_never_starts_keeps_nobody(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=4, cpus=1)
    slurm = slurm_on(cluster)
    settings = ("groups.count=3", "health.lost_after_s=4")
    run = slurm.start(*settings, args=ENDLESS)
    run.wait_for_steps(5, 3)
    cluster.kill_node(str(run.named("step_launched", group=2)[0]["nodes"][0]))  # type: ignore[index]
    run.wait_until_back(2)
    (moved,) = run.named("step_launched", group=2, attempt=1)
    assert moved["allocation"] != run.named("step_launched", group=2, attempt=0)[0]["allocation"]
    cluster.kill_node(str(run.named("step_launched", group=1)[0]["nodes"][0]))  # type: ignore[index]
    run.until(lambda: "Slurm job" in str(run.named("group_waits", group=1)), "it waits for a job that never starts")
    last = run.end_soon()
    run.finish(4)  # without group 1
    numbers = [int(s["step"]) for s in run.steps(0)]
    assert numbers == list(range(numbers[0], last + 1))
    run.until(lambda: {"PENDING", "RUNNING"}.isdisjoint(jobs(cluster).values()), "the jobs have ended", 10.0)


@pytest.mark.nightly
def test_the_summary_says_that_a_group_was_cancelled_by_hand_and_came_too_late(
    array: tuple[Cluster, Backend],
) -> None:
    cluster, slurm = array
    run = slurm.start(*ARRAY, "groups.count=3", "groups.mem=1G", args=ENDLESS)
    run.wait_for_steps(5, 3)
    cluster.run(["scontrol", "update", "nodename=ALL", "state=drain", "reason=test"])  # so that it cannot come back
    cluster.run(["scancel", pilot_of(run, 1)])  # by hand
    run.wait_for("step_exited", group=1)
    run.end_soon()
    run.finish(4)
    why = "had already finished; it may find no group to heal from"
    (given_up,) = run.named("group_given_up")
    assert why in str(given_up["reason"])
    entry = run.text.split("\ngroup 1: ")[1].split("\n\n")[0]
    assert "Slurm cancelled the step" in entry.splitlines()[0]
    assert why in entry
