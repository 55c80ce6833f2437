"""The restart ladder on real Slurm, with real faults. Each test is one run with several faults."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Cluster
from harness import STALL_S, Backend, Run

import ftslurm

pytestmark = [pytest.mark.slurm, pytest.mark.light]
QUICK = ("health.lost_after_s=4", "restart.backoff_s=0.1")


def node_of(run: Run, group: int) -> str:
    return str(run.named("step_launched", group=group)[-1]["nodes"][0])  # type: ignore[index]


def back(run: Run, group: int, attempt: int) -> dict[str, object]:
    """Wait until this attempt of the group has committed its first step."""
    return run.wait_for("group_joined", group=group, attempt=attempt)


def cause(run: Run, group: int, attempt: int) -> str:
    return str(run.wait_for("step_exited", group=group, attempt=attempt)["cause"])


def inject(run: Run, fault: str, group: int | None = None) -> None:
    words = ["inject", str(run.dir), fault, *([] if group is None else [f"--group={group}"])]
    done = subprocess.run([sys.executable, "-m", "ftslurm", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def live_steps(run: Run, cluster: Cluster) -> list[str]:
    """Return the names of the job's steps that run according to Slurm."""
    job = str(run.named("run_started")[0]["job_id"])
    return cluster.run(["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%j"]).split()


def test_a_run_survives_a_cancelled_step_a_killed_slurmstepd_and_a_stopped_rank(
    slurm_cluster: Cluster, slurm_on: Callable[[Cluster], Backend]
) -> None:
    slurm = slurm_on(slurm_cluster)
    args = {"open-end": True, "step-time": 0.2}
    run = slurm.start("groups.count=2", "health.hang_after_s=3", *QUICK, args=args)
    run.wait_for_steps(8, groups=2)
    (first,) = {node_of(run, 1)}

    inject(run, "cancel", group=1)
    back(run, 1, 1)
    assert cause(run, 1, 0) == "cancelled"
    assert "scancel" in str(run.named("step_exited", group=1, attempt=0)[0]["error"])

    steps = live_steps(run, slurm_cluster)
    assert sorted(steps) == ["batch", "group-0000", "group-0001", "lighthouse"]
    guard = parent(run.pid(1, attempt=1))
    os.kill(parent(guard), signal.SIGKILL)  # slurmstepd: its srun never learns of it
    back(run, 1, 2)
    assert cause(run, 1, 1) == "killed"
    run.until(lambda: not alive(guard), "the orphaned worker ends itself")
    assert not run.named("node_excluded")

    stopped = run.pid(1, attempt=2)
    os.kill(stopped, signal.SIGSTOP)
    back(run, 1, 3)
    assert cause(run, 1, 2) == "hang"
    assert run.named("step_exited", group=1, attempt=2)[0]["rank"] == 0
    stacks = run.rank_log(1, attempt=2)
    assert "light.py" in stacks, stacks
    assert re.search(r"Thread 0x\w+", stacks), stacks
    finish_soon(run)
    assert len(run.named("step_launched", group=0)) == 1, "a group that was well was restarted"
    assert node_of(run, 1) == first


@pytest.mark.nightly
def test_lost_nodes_bad_spares_and_a_node_that_returns(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=5)
    run = slurm_on(cluster).start(
        "groups.count=2", "cluster.spare_nodes=3", *QUICK, args={"open-end": True, "step-time": 0.2}
    )
    run.wait_for_steps(8, groups=2)
    lost, bad = node_of(run, 1), "n3"
    cluster.kill_node(bad)  # an unused spare node dies
    cluster.kill_node(lost)
    relaunch = run.wait_for("step_launched", group=1, attempt=1)
    if bad in relaunch["nodes"]:  # type: ignore[operator]
        run.wait_for("node_excluded", node=bad)
    last = run.wait_for("group_joined", group=1)  # the first attempt's
    run.until(
        lambda: any(e["attempt"] != last["attempt"] for e in run.named("group_joined", group=1)), "group 1 is back"
    )
    assert cause(run, 1, 0) == "node_lost"
    detect = run.named("node_excluded", node=lost)[0]
    assert "nothing heard" in str(detect["reason"])

    cluster.start_node(lost)
    run.wait_for("node_restored", node=lost)
    finish_soon(run)
    assert len(run.named("step_launched", group=0)) == 1


@pytest.mark.nightly
def test_a_pause_shorter_than_the_limit_costs_nothing(
    slurm_cluster: Cluster, slurm_on: Callable[[Cluster], Backend]
) -> None:
    run = slurm_on(slurm_cluster).start("groups.count=2", *QUICK, args={"steps": 40, "step-time": 0.2})
    run.wait_for_steps(8, groups=2)
    worker = run.pid(1)
    everything = [worker, parent(worker), parent(parent(worker))]
    for pid in everything:
        os.kill(pid, signal.SIGSTOP)
    run.wait_for("node_silent")
    for pid in everything:
        os.kill(pid, signal.SIGCONT)
    run.finish()
    assert [e["cause"] for e in run.named("step_exited") if e["group"] is not None] == ["ok", "ok"]
    assert not run.named("node_excluded")


@pytest.mark.nightly
def test_warm_standbys_of_two_nodes_take_over_for_a_killed_rank_and_for_a_lost_node(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=7)
    run = slurm_on(cluster).start(
        "groups.count=2", "groups.nodes=2", "standby.count=1", "cluster.spare_nodes=3", *QUICK,
        args={"open-end": True, "step-time": 0.2},
    )  # fmt: skip
    run.wait_for_steps(8, groups=2)
    run.wait_for("step_ready", unit="standby-000", attempt=0)
    idle = standby_pid(run, 0)
    os.kill(idle, signal.SIGKILL)  # before it is assigned: no effect
    run.wait_for("step_exited", unit="standby-000", attempt=0)
    run.wait_for("step_ready", unit="standby-000", attempt=1)

    run.kill(1, rank=1)
    back(run, 1, 1)
    assert run.named("step_launched", group=1, attempt=1)[0]["standby"] == "standby-000/1"
    run.wait_for("step_ready", unit="standby-000", attempt=2)

    idle = standby_pid(run, 2)
    run.kill(1)
    os.kill(idle, signal.SIGKILL)  # at the moment it is assigned, or just before
    run.until(lambda: run.named("group_joined", group=1)[-1]["attempt"] > 1, "group 1 is back")  # type: ignore[operator]
    run.until(lambda: is_warm(run), "a standby is warm again")

    lost, tried = node_of(run, 1), int(str(run.named("group_joined", group=1)[-1]["attempt"]))
    cluster.kill_node(lost)
    back(run, 1, tried + 1)
    taken = run.named("step_launched", group=1, attempt=tried + 1)[0]
    assert taken["standby"]
    assert lost not in taken["nodes"]  # type: ignore[operator]
    phases = run.named("group_joined", group=1, attempt=tried + 1)[0]["phases"]
    assert phases["import"] == phases["start"] == 0.0  # type: ignore[index]
    finish_soon(run, ranks=2)
    assert len(run.named("step_launched", group=0)) == 1
    report = ftslurm.Run(run.dir).report()
    assert {failure["cause"] for failure in report["failures"]} == {"killed", "node_lost"}, report["failures"]
    on_it = [failure["cause"] for failure in report["failures"] if failure["node"] == lost]  # a killed rank, too
    assert on_it.count("node_lost") == 1
    assert next(node for node in report["by_node"] if node["name"] == lost)["failures"] == len(on_it)
    parts = report["trained_s"], report["lost_s"], report["queued_s"], report["finished_s"]
    assert sum(parts) == pytest.approx(report["total_s"], abs=0.1)
    assert (run.dir / "report.html").exists()


@pytest.mark.nightly
def test_in_groups_of_two_nodes_no_echo_of_a_sibling_is_taken_for_the_cause(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=6)
    sizes = ("groups.count=2", "groups.nodes=2", "cluster.spare_nodes=2")
    lost_after_s = 6.0  # a busy machine takes its time to answer a probe
    patient = f"health.lost_after_s={lost_after_s}"
    run = slurm_on(cluster).start(*sizes, *QUICK, patient, args={"open-end": True, "step-time": 0.2})
    run.wait_for_steps(8, groups=2)
    _, second = run.named("step_launched", group=1)[0]["nodes"]  # type: ignore[misc]
    os.kill(parent(parent(run.pid(1, rank=1))), signal.SIGKILL)  # slurmstepd; rank 0 then raises
    back(run, 1, 1)
    (exited,) = run.named("step_exited", group=1, attempt=0)
    assert (exited["cause"], exited["node"]) == ("killed", second)
    assert "processes are gone" in str(exited["error"])

    cluster.kill_node(second)
    back(run, 1, 2)
    (exited,) = run.named("step_exited", group=1, attempt=1)
    assert (exited["cause"], exited["node"]) == ("node_lost", second)
    *_, second = nodes = run.named("step_launched", group=1, attempt=2)[0]["nodes"]  # type: ignore[misc]
    assert exited["node"] not in nodes  # type: ignore[operator]

    cluster.kill_node(second)
    cluster.start_node(second)  # it is back before it is missed, without its slurmstepd
    back(run, 1, 3)
    (exited,) = run.named("step_exited", group=1, attempt=2)
    assert exited["cause"] in ("node_lost", "killed")  # whether Slurm says so before a probe finds no process there
    assert exited["node"] == second
    finish_soon(run, ranks=2, stall_s=STALL_S + lost_after_s)  # rank 0 answers as long as nobody knows of its sibling
    assert len(run.named("step_launched", group=0)) == 1


def test_a_node_with_broken_hardware_is_left_out_at_once_and_told_everywhere(
    slurm_cluster: Cluster, slurm_on: Callable[[Cluster], Backend]
) -> None:
    fails = {"fail-at": 6, "fail-group": 1, "fail-how": "ecc"}
    run = slurm_on(slurm_cluster).start(
        "groups.count=2", "cluster.spare_nodes=1", args={"open-end": True, "step-time": 0.1} | fails
    )
    run.wait_until_back(1)
    steps = run.end_soon()
    run.finish().check_training(steps, survivors={0}, returned={1})
    ecc = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    (ended,) = run.named("step_exited", group=1, attempt=0)
    error = str(ended["error"])
    assert ended["cause"] == "hardware"
    assert error == f"local rank 0: {ecc}"  # the guard's words have come with the exception
    broken = ended["node"]
    (excluded,) = run.named("node_excluded")
    assert (excluded["node"], excluded["group"]) == (broken, 1)
    assert excluded["reason"] == f"broken hardware: {error}"
    assert broken not in run.named("step_launched", group=1, attempt=1)[0]["nodes"]  # type: ignore[operator]
    assert run.named("restart_scheduled", group=1)[0]["due"] <= ended["time"] + 0.1  # type: ignore[operator]

    assert f"broken hardware on {broken}, rank 0: " in run.text
    assert error in run.text
    code, status = run.ask("status")
    assert code == 0
    assert f"broken hardware on {broken}" in " ".join(status.split())
    report = ftslurm.Run(run.dir).report()
    assert [failure["cause"] for failure in report["failures"]] == ["hardware"]
    assert [failure["node"] for failure in report["failures"]] == [broken]


@pytest.mark.nightly
def test_half_of_the_groups_at_once_of_different_causes(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=6)
    run = slurm_on(cluster).start(
        "groups.count=4", "cluster.spare_nodes=2", *QUICK, args={"open-end": True, "step-time": 0.2}
    )
    run.wait_for_steps(8, groups=4)
    lost = node_of(run, 3)
    cluster.kill_node(lost)
    run.kill(2)
    replacement = run.wait_for("step_launched", group=3, attempt=1)
    (second,) = replacement["nodes"]  # type: ignore[misc]
    cluster.kill_node(str(second))  # during the start of the replacement
    run.wait_for("step_ready", unit="group-0002", attempt=1)
    run.kill_lighthouse()  # while a group is joining
    back(run, 2, 1)
    run.wait_until_back_at_last(3)
    finish_soon(run)
    assert cause(run, 3, 0) == "node_lost"
    assert cause(run, 2, 0) == "killed"
    for group in (0, 1):
        assert len(run.named("step_launched", group=group)) == 1


def test_every_drill_does_what_it_says_and_is_in_the_journal(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=4)
    run = slurm_on(cluster).start(
        "groups.count=2", "cluster.spare_nodes=2", "standby=one", "health.hang_after_s=3",
        "health.lost_after_s=4", "restart.backoff_s=0", "restart.max_per_group=20",
        args={"open-end": True, "step-time": 0.2},
    )  # fmt: skip
    run.wait_for_steps(8, groups=2)
    causes = {
        "kill": ["killed"],
        "term": ["killed"],
        "stop": ["hang"],
        "node": ["node_lost", "killed"],  # an ordinary user cannot signal slurmstepd; here it is our process
    }
    for attempt, (fault, expected) in enumerate(causes.items()):
        inject(run, fault, group=1)
        assert cause(run, 1, attempt) in expected, fault
        back(run, 1, attempt + 1)
    inject(run, "lighthouse")
    run.wait_for("step_ready", unit="lighthouse", attempt=1)
    finish_soon(run)
    assert [e["kind"] for e in run.named("fault_injected")] == [*causes, "lighthouse"]
    assert not run.named("fault_refused")
    assert len(run.named("step_launched", group=0)) == 1


def finish_soon(run: Run, ranks: int = 1, stall_s: float = STALL_S) -> None:
    """End the training a few steps from now, and check that no step was lost."""
    groups = {int(str(e["group"])) for e in run.named("step_launched") if e["group"] is not None}
    last = run.end_soon()
    run.finish()
    returned = {g for g in groups if len(run.named("step_launched", group=g)) > 1}
    run.check_training(last, survivors=groups - returned, returned=returned, ranks=ranks, stall_s=stall_s)


def standby_pid(run: Run, attempt: int) -> int:
    """Return the pid of an unassigned worker of a standby's step."""
    mark = f"FTSLURM_STEP=standby-000/{attempt}".encode()
    found = [pid for pid in run.processes() if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]
    return max(pid for pid in found if parent(pid) in found)


def is_warm(run: Run) -> bool:
    last = run.named("step_launched", unit="standby-000")[-1]["attempt"]
    ready = run.named("step_ready", unit="standby-000", attempt=last)
    over = run.named("step_exited", unit="standby-000", attempt=last)
    return bool(ready) and not over and not run.named("step_launched", standby=f"standby-000/{last}")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_job_whose_controller_is_lost_with_its_node_ends_itself(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=3)
    run = slurm_on(cluster).start(
        "groups.count=3", "health.lost_after_s=2", "follow=false",
        args={"open-end": True, "step-time": 0.2},
    )  # fmt: skip
    run.process.wait(60)
    run.wait_for_steps(5, groups=3)
    assert (run.dir / "alive").stat().st_mode & 0o777 == 0o600
    cluster.kill_node("n1")
    run.until(lambda: cluster.run(["squeue", "-h", "-o", "%T"]).split() != ["RUNNING"], "the job is cancelled", 60)
    run.until(lambda: not run.processes(), "its processes are gone", 60)
    cluster.start_node("n1")  # else Slurm waits until it has given the node up, which is its own time-out and no claim
    run.until(lambda: not cluster.run(["squeue", "-h"]).strip(), "the job has left the queue", 60)
    assert not run.processes()
