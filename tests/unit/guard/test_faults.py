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
from ftslurm.protocol.position import Position

TRAINING = """
import time
while True:
    print("step", flush=True)
    time.sleep(0.01)
"""
SWALLOWS = """
import time
from ftslurm.guard import faults
faults.LAST_WORD_S = 0.3
while True:
    try:
        print("step", flush=True)
        time.sleep(1000)
    except BaseException as error:
        print("swallowed", type(error).__name__, flush=True)
"""
IN_TORCHFT = """
import time
torchft = {"__name__": "torchft.manager", "time": time}
exec('''
def allreduce():
    try:
        for _ in range(200):
            time.sleep(0.001)
    except Exception:
        print("swallowed", flush=True)
''', torchft)
print("now", flush=True)
while True:
    torchft["allreduce"]()
    time.sleep(0.02)
"""
IN_THREADS = """
import threading, time
def beside():
    while True:
        print("beside", flush=True)
        time.sleep(0.01)
threading.Thread(target=beside, daemon=True).start()
print("now", flush=True)
time.sleep(1000)
"""


def inject(task: Step, fault: str) -> str | None:
    task.send("inject", fault=fault, task=0)
    answer = task.until("injected")
    assert (answer["task"], answer["fault"]) == (0, fault)
    error: str | None = answer["error"]
    return error


@pytest.mark.parametrize(
    ("fault", "code", "number"), [("kill", None, 9), ("term", None, 15), ("exit", 3, None), ("oom", 1, None)]
)
def test_a_fault_that_ends_the_worker(fault: str, code: int | None, number: int | None, tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin(TRAINING)
        assert inject(task, fault) is None
        if fault == "oom":
            failed = task.until("failed")
            assert failed["oom"] is True
            assert failed["error"] == "MemoryError: a fault that was injected"
        ended = task.until("exited")
        assert (ended["code"], ended["signal"]) == (code, number)


def test_exit_is_raised_where_the_script_is(tmp_path: Path) -> None:
    script = f"try:{TRAINING.replace(chr(10), chr(10) + '  ')}\nfinally: print('last', flush=True)"
    with step(tmp_path / "run") as task:
        task.begin(script)
        assert inject(task, "exit") is None
        assert task.until("exited")["code"] == 3
        assert task.log().endswith("last\n")
        assert not [line for line in task.lines if b'"failed"' in line]  # as with any sys.exit


def test_an_exit_that_the_script_swallows_comes_all_the_same(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin(SWALLOWS)
        assert inject(task, "exit") is None
        task.wait(lambda: "swallowed SystemExit" in task.log(), "exception")
        assert task.until("exited", faults.LAST_WORD_S + 10)["code"] == 3


def test_a_memory_error_is_raised_where_torchft_does_not_take_it_for_a_failed_collective(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin(IN_TORCHFT)
        assert inject(task, "oom") is None
        assert task.until("failed")["oom"] is True
        assert "swallowed" not in task.log()


def test_a_memory_error_that_the_script_swallows_ends_it_all_the_same(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin(SWALLOWS)
        assert inject(task, "oom") is None
        task.wait(lambda: "swallowed MemoryError" in task.log(), "exception")
        assert task.until("exited", faults.LAST_WORD_S + 10)["signal"] == 9


def test_a_stopped_worker_is_seen_to_be_stopped_and_can_be_killed(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin(TRAINING)
        assert inject(task, "stop") is None
        task.wait(lambda: processes.state(task.pid) == "T", "stop")
        task.until("alive")
        assert task.until("alive")["state"] == "T"
        assert inject(task, "kill") is None
        assert task.until("exited")["signal"] == 9


def test_a_hang_keeps_the_gil_ignores_sigterm_and_leaves_the_guard_alive(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin(IN_THREADS)
        assert inject(task, "hang") is None
        task.wait(lambda: stands_still(task), "standstill")
        size = len(task.log())
        task.send("where")
        assert task.until("alive")["state"] in "RSD"
        time.sleep(0.2)
        assert len(task.log()) == size  # the thread beside does not run either
        task.send("dump")
        task.until("dumped")
        assert "in _hang" in task.log()
        task.send("kill")
        assert task.process.wait(10) == 137


def test_a_fault_that_cannot_be_is_refused_and_nobody_suffers(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.get_ready()
        for fault in faults.INSIDE:
            assert "has not started" in str(inject(task, fault))
        assert "no fault of a worker" in str(inject(task, "flood"))
        task.send("inject", fault="kill", task=1)  # of another task
        task.send("where")
        assert task.until("alive")["state"] in "RSD"
        assert processes.state(task.pid) in ("R", "S", "D")
    assert faults.inflict("kill", 2**22 + 1, Position()) == "the worker has ended"


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


def stands_still(task: Step) -> bool:
    """Return whether it prints nothing for a while."""
    before = task.log()
    time.sleep(0.3)
    return task.log() == before


def alive(pid: int) -> bool:
    return processes.state(pid) not in (None, "Z")


def test_of_what_is_above_us_only_slurms_daemons_are_ever_killed() -> None:
    assert faults._daemons(os.getpid()) == []
    assert 1 not in [pid for pid, _ in processes.ancestors(os.getpid())]


@pytest.mark.parametrize(
    ("files", "room"),
    [
        ({"memory.max": "max", "memory.current": "5"}, None),
        ({"memory.max": "1000", "memory.current": "400"}, 600),
        ({"memory.max": "1000", "memory.current": "900", "memory.stat": "anon 650\nfile 250\nfile_mapped 9\n"}, 350),
        ({"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "7"}, None),
        ({"memory.limit_in_bytes": "500", "memory.usage_in_bytes": "100"}, 400),
        ({}, None),
    ],
)
def test_only_a_limit_that_slurm_has_set_counts(
    files: dict[str, str], room: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "system.slice/slurmstepd.scope/job_12"
    (job / "step_0/user/task_0").mkdir(parents=True)
    for name, text in ({"memory.stat": ""} | files).items():
        (job / name).write_text(text)
    (tmp_path / "system.slice/memory.max").write_text("10")  # the machine's own, not Slurm's
    (tmp_path / "system.slice/memory.current").write_text("5")
    leaf = job / "step_0/user/task_0"
    parents = [leaf, *leaf.parents]
    folders = [str(p) for p in parents[: parents.index(tmp_path)]]
    monkeypatch.setattr(processes, "memory_cgroups", lambda _: folders)
    assert faults.cgroup_room() == room
    monkeypatch.setattr(processes, "memory_cgroups", lambda _: [str(tmp_path / "system.slice")])
    assert faults.cgroup_room() is None
