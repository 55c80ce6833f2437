"""Every fault that a drill can inject into a worker, on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from guarded import Step, step

from ftslurm.guard import faults, processes

TRAINING = """
import time
while True:
    print("step", flush=True)
    time.sleep(0.01)
"""


def inject(task: Step, fault: str) -> str | None:
    task.send("inject", fault=fault, task=0)
    answer = task.until("injected")
    assert (answer["task"], answer["fault"]) == (0, fault)
    error: str | None = answer["error"]
    return error


@pytest.mark.parametrize("fault", ["kill", "term"])
def test_a_fault_that_ends_the_worker(fault: str, tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin(TRAINING)
        assert inject(task, fault) is None
        ended = task.until("exited")
        assert (ended["code"], ended["signal"]) == (None, faults.SIGNALS[fault])


def test_a_stopped_worker_is_seen_to_be_stopped_and_can_be_killed(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin(TRAINING)
        assert inject(task, "stop") is None
        task.wait(lambda: processes.state(task.pid) == "T", "stop")
        task.until("alive")
        assert task.until("alive")["state"] == "T"
        assert inject(task, "kill") is None
        assert task.until("exited")["signal"] == 9


def test_a_bit_is_flipped_by_the_worker_itself(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin(TRAINING)
        assert inject(task, "corrupt") is None
        task.send("where")
        assert task.until("alive")["state"] in "RSD"


def test_a_fault_that_cannot_be_is_refused_and_nobody_suffers(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.get_ready()
        task.send("inject", fault="kill", task=1)  # of another task
        task.send("where")
        assert task.until("alive")["state"] in "RSD"
        assert processes.state(task.pid) in ("R", "S", "D")
    assert faults.inflict("kill", 2**22 + 1) == "the worker has ended"


def test_a_lost_node_takes_every_process_of_this_run_and_node_and_no_other(tmp_path: Path) -> None:
    run = {"FTSLURM_RUN_DIR": str(tmp_path / "run")}
    others = {
        "same node": {**run, "FTSLURM_NODE": "n1", "FTSLURM_STEP": "group-0007/0"},
        "other node": {**run, "FTSLURM_NODE": "n2"},
        "other run": {"FTSLURM_RUN_DIR": "/elsewhere", "FTSLURM_NODE": "n1"},
        "no node": run,
    }
    beside = {
        name: subprocess.Popen(["sleep", "60"], env=os.environ | env, start_new_session=True)
        for name, env in others.items()
    }
    daemon = "import subprocess; subprocess.Popen(['sleep', '61'], env={}, start_new_session=True)\n"
    with step(tmp_path / "run") as task:
        task.begin(daemon + TRAINING)
        stray = [pid for pid in processes.descendants(task.pid) if alive(pid)]
        assert stray
        assert inject(task, "node") is None
        assert task.process.wait(10) == -signal.SIGKILL
        task.wait(lambda: not any(map(alive, [task.pid, *stray])), "death of all that the worker had started")
    beside["same node"].wait(20)
    time.sleep(0.1)
    survivors = {name for name, process in beside.items() if process.poll() is None}
    for process in beside.values():
        process.kill()
        process.wait()
    assert survivors == {"other node", "other run", "no node"}


def alive(pid: int) -> bool:
    return processes.state(pid) not in (None, "Z")


def test_of_what_is_above_us_only_slurms_daemons_are_ever_killed() -> None:
    assert faults._daemons(os.getpid()) == []
    assert 1 not in [pid for pid, _ in processes.ancestors(os.getpid())]
