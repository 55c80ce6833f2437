"""A worker under a real slurmstepd: its end when slurmstepd dies, and the signs of a lost node from outside."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, processes_in
from guarded import Step, step

from ftslurm.guard import processes

pytestmark = pytest.mark.slurm
SCRIPT = """
import os, subprocess, time
subprocess.Popen(["sleep", "600"], start_new_session=True)
print(os.environ["SLURMD_NODENAME"], os.getpid(), flush=True)
time.sleep(1000)
"""


@pytest.fixture
def two_tasks(slurm_cluster: Cluster, tmp_path: Path) -> Iterator[Step]:
    """Start a step with rank 0 on n1 and rank 1 on n2, both in their script."""
    srun = ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--nodelist=n1,n2", "--kill-on-bad-exit=0"]
    foreign = [name for name in os.environ if name.startswith(("SLURM", "FTSLURM"))]
    environ = {**dict.fromkeys(foreign, ""), **slurm_cluster.env}
    with step(tmp_path / "run", env=environ, srun=[*srun, "--overlap", "--mem=0", "--gres=none"]) as task:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        seen: list[str] = []
        while sorted(seen) != ["hello", "hello", "ready", "ready"]:
            seen += [kind for kind in (task.messages.get(timeout=60)["type"],) if kind in ("hello", "ready")]
        ranks = [{"rank": n, "node": f"n{n + 1}", "local_rank": 0, "node_rank": n} for n in (0, 1)]
        words: dict[str, object] = {"group": 0, "attempt": 0, "lighthouse": "http://x:1", "script": str(script)}
        words |= {"module": None, "args": [], "ranks": ranks, "run_id": "x", "groups": 1, "max_restarts": 3}
        task.send("assign", **words)
        task.until("store")
        task.send("store", addr="127.0.0.1", port=1)
        logs = [tmp_path / "run" / f"rank-{n}.log" for n in (0, 1)]
        task.wait(lambda: all(log.exists() and log.read_text().endswith("\n") for log in logs), "both scripts")
        yield task


def tree(cluster: Cluster, node: str) -> dict[int, str]:
    """Return the processes of a step on a node, without its slurmstepd."""
    return {pid: name for pid, name in processes_in(cluster.folder, node).items() if not name.startswith("slurm")}


def stepd(task: Step, rank: int) -> int:
    """Return the pid of a task's slurmstepd, the parent of its guard."""
    pid = int((task.folder / f"rank-{rank}.log").read_text().split()[1])
    (_, guard), (above, name) = processes.ancestors(pid)
    assert guard == f"0.{rank}:guard"
    assert name == "slurmstepd"
    return above


def test_above_a_task_there_is_its_slurmstepd_and_nothing_of_slurm_above_that(two_tasks: Step) -> None:
    assert list(processes.ancestors(stepd(two_tasks, 0))) == []  # slurmd is not its ancestor


def test_when_slurmstepd_dies_its_workers_end_at_once(two_tasks: Step, slurm_cluster: Cluster) -> None:
    assert len(tree(slurm_cluster, "n2")) == 3  # guard, worker, the worker's child
    os.kill(stepd(two_tasks, 1), signal.SIGKILL)
    start = time.monotonic()
    two_tasks.wait(lambda: not tree(slurm_cluster, "n2"), "end of the worker")
    assert time.monotonic() - start < 3.0  # 0.05 s on an idle machine
    assert len(tree(slurm_cluster, "n1")) == 3
    assert two_tasks.process.poll() is None  # srun never learns of it


def test_a_lost_node_falls_silent_and_srun_goes_on_as_if_nothing_had_happened(
    two_tasks: Step, slurm_cluster: Cluster
) -> None:
    two_tasks.send("inject", fault="node", task=1)
    assert two_tasks.until("injected") == {"type": "injected", "task": 1, "fault": "node", "error": None}
    two_tasks.wait(lambda: not tree(slurm_cluster, "n2"), "end of everything on n2")
    time.sleep(1.0)
    assert two_tasks.process.poll() is None
    assert two_tasks.step_log() == ""
    while not two_tasks.messages.empty():
        two_tasks.messages.get()
    two_tasks.send("where")
    time.sleep(0.5)
    answers = [two_tasks.messages.get() for _ in range(two_tasks.messages.qsize())]
    assert {message["task"] for message in answers} == {0}


def test_a_probe_finds_the_step_on_its_node_through_an_srun_of_its_own(two_tasks: Step, slurm_cluster: Cluster) -> None:
    job = slurm_cluster.run(["squeue", "-h", "-o", "%A"]).strip()
    probe = ["srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n2", "--gres=none"]
    env = ["env", f"FTSLURM_RUN_DIR={two_tasks.folder}", "FTSLURM_STEP=probe/0"]
    said = json.loads(slurm_cluster.run([*env, *probe, sys.executable, "-m", "ftslurm.guard.probe"]))
    steps = said.pop("steps")
    assert said == {"type": "look", "node": "n2"}
    assert {name: len(states) for name, states in steps.items()} == {"group-0000/0": 3}
