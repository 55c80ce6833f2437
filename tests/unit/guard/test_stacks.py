"""The stacks that a worker writes to its log on request, in any state."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from guarded import Step, step

from ftslurm.guard import processes

COUNTING = """
import time
def innermost():
    n = 0
    while True:
        n += 1
        print(n, flush=True)
        time.sleep(0.01)
innermost()
"""
STUCK_WITH_THE_GIL = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,), name="beside").start()
def innermost():
    ctypes.PyDLL(None).sleep(1000)
print("now", flush=True)
innermost()
"""
BUSY_WITH_THE_GIL = """
import ctypes
compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
libc = ctypes.PyDLL(None)
def innermost():
    block = ctypes.create_string_buffer(1 << 26)
    while True:
        libc.memset(block, 1, len(block))  # a third of a second in C, over and over
        libc.memset(block, 2, len(block))
print("now", flush=True)
innermost()
"""
CRASHES = """
import ctypes, os, sys
def innermost(how):
    ctypes.string_at(0) if how == "SIGSEGV" else os.abort()
print("now", flush=True)
innermost(sys.argv[1])
"""
CLOSED_ALL = """
import os, socket, time
os.closerange(3, 100)
ours = [socket.socketpair() for _ in range(20)]  # they take the numbers
print("now", flush=True)
time.sleep(1000)
"""
TOOK_THE_SIGNAL = """
import signal, time
signal.signal(signal.SIGRTMIN + 7, signal.SIG_IGN)
print("now", flush=True)
time.sleep(1000)
"""


def dump(task: Step) -> str:
    """Ask for the stacks; check that the answer comes within a second; return the new text of the log."""
    before = len(task.log())
    asked = time.monotonic()
    task.send("dump")
    answer = task.until("dumped")
    assert time.monotonic() - asked < 2.0  # one second, and the machine may be loaded
    said = task.log()[before:]
    assert 0 < answer["size"] <= len(said.encode())
    return said


@pytest.mark.parametrize(
    ("how", "quoted"),
    [("SIGSEGV", "Segmentation fault"), ("SIGABRT", "Aborted")],
)
def test_a_worker_that_crashes_leaves_its_stacks_and_dies_of_the_same_signal(
    how: str, quoted: str, tmp_path: Path
) -> None:
    with step(tmp_path / "run") as task:
        task.begin(CRASHES, args=[how])
        ended = task.until("exited")
        assert (ended["signal"], ended["error"]) == (
            getattr(signal, how),
            f"Fatal Python error: {quoted}, in script.py:4 in innermost",
        )
        assert "in innermost" in task.log()


@pytest.mark.parametrize("script", [COUNTING, STUCK_WITH_THE_GIL, BUSY_WITH_THE_GIL])
def test_a_worker_shows_its_stacks_even_when_it_keeps_the_gil_in_c(script: str, tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin(script)
        said = dump(task)
        heading = f"ftslurm: stacks of rank 0, pid {task.pid}, state "
        assert heading in said
        assert "step 0, computing for " in said
        assert "asked for by the controller" in said
        assert "script.py" in said
        assert "in innermost" in said
        assert processes.state(task.pid) in ("R", "S")


def test_every_thread_is_there(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin(STUCK_WITH_THE_GIL)
        said = dump(task)
        assert said.count("(most recent call first)") >= 2
        assert "_bootstrap_inner" in said
        assert "ftslurm:   2 x python" in said or said.count(": S in ") >= 1  # as the kernel sees them


def test_a_stopped_worker_is_woken_for_its_stacks_and_stopped_again(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin(COUNTING)
        os.kill(task.pid, signal.SIGSTOP)
        task.wait(lambda: processes.state(task.pid) == "T", "stop")
        said = dump(task)
        assert ", state T, " in said
        assert "in innermost" in said
        task.wait(lambda: processes.state(task.pid) == "T", "second stop")
        size = len(task.log())
        time.sleep(0.1)
        assert len(task.log()) == size


@pytest.mark.parametrize("script", [CLOSED_ALL, TOOK_THE_SIGNAL])
def test_one_whose_handler_is_gone_leaves_what_the_kernel_says_and_lives_on(script: str, tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin(script)
        said = dump(task)
        assert "no stacks: it does not take the signal" in said
        assert "ftslurm: its threads, as the kernel sees them:\nftslurm:   1 x 0.0:script.py" in said
        assert processes.state(task.pid) in ("R", "S", "D")


def test_before_the_script_runs_the_stacks_go_to_the_steps_log(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.get_ready()
        task.wait(lambda: processes.state(task.pid) == "S", "waiting for its assignment")
        task.send("dump")
        task.until("dumped")
        assert "stacks of task 0" in task.step_log()
        assert "before the script runs; asked for by the controller" in task.step_log()
        assert "in receive" in task.step_log()


def test_a_worker_that_has_ended_is_answered_for(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin(COUNTING)
        os.kill(task.process.pid, signal.SIGSTOP)  # so that the guard does not reap it yet
        os.kill(task.pid, signal.SIGKILL)
        task.send("dump")
        os.kill(task.process.pid, signal.SIGCONT)
        assert task.until("exited")["signal"] == signal.SIGKILL


def test_threads_that_do_the_same_are_one_line() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        time.sleep(0.05)
        lines = processes.threads(child.pid)
        child.kill()
    assert len(lines) == 1
    assert lines[0].startswith("1 x sleep: S")
    assert processes.threads(2**22 + 1) == []
