"""What a guard concludes from the processes of its run on its node."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from ftslurm.guard import processes

STEPS = ("group-0001/0", "group-0001/2", "group-0001/10", "group-0002/11", "standby-000/1", "group-0001", "")
THERE = [(1000 + pid, {"FTSLURM_STEP": step}) for pid, step in enumerate(STEPS)]


@pytest.mark.parametrize(
    ("step", "killed"),
    [
        ("group-0001/2", [1000]),
        ("group-0001/10", [1000, 1001]),
        ("group-0003/0", []),
        ("standby-000/2", []),  # the earlier one may be a live group
        ("group-0001", []),
    ],
)
def test_what_earlier_attempts_have_left_is_ended_and_newer_ones_are_spared(
    step: str, killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kills: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: kills.append((pid, number)))
    monkeypatch.setattr(processes, "of_run", {"/run": THERE}.get)
    processes.fence({"FTSLURM_STEP": step, "FTSLURM_RUN_DIR": "/run"})
    processes.fence({"FTSLURM_STEP": step})  # it names no run
    assert kills == [(pid, signal.SIGKILL) for pid in killed]


def test_processes_whose_memory_is_locked_delay_the_look_at_the_others_by_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading the environment of such a process does not return; a pipe that nobody writes does the same here."""
    children = [subprocess.Popen(["sleep", "60"], env={"MINE": "yes", "NUMBER": str(number)}) for number in range(6)]
    nobody, _ = os.pipe()
    environ, stuck = processes._environ, {children[0].pid, children[3].pid, children[5].pid}
    monkeypatch.setattr(processes, "_environ", lambda pid: [os.read(nobody, 1)] if pid in stuck else environ(pid))
    monkeypatch.setattr(processes, "STUCK_S", 0.3)
    begun = time.monotonic()
    found = dict(processes.having("MINE", "yes"))
    took_s = time.monotonic() - begun
    for child in children:
        child.kill()
        child.wait()
    free = {child.pid: {"MINE": "yes", "NUMBER": str(n)} for n, child in enumerate(children) if child.pid not in stuck}
    assert found == free
    assert took_s < 0.3 * len(stuck) + 5


def test_a_look_leaves_no_thread_behind() -> None:
    before = threading.enumerate()
    list(processes.having("PATH", os.environ["PATH"]))
    assert threading.enumerate() == before


KILLS = """
import subprocess, time
from ftslurm.guard import processes
processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
input()
start = time.monotonic()
processes.kill_descendants()
print(time.monotonic() - start, flush=True)
"""
PTRACE_SEIZE, WALL = 0x4206, 0x40000000


def test_a_helper_that_a_debugger_traces_does_not_delay_the_end() -> None:
    command = [sys.executable, "-c", KILLS]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as guard:
        assert guard.stdin is not None
        assert guard.stdout is not None
        helper = int(guard.stdout.readline())
        assert ctypes.CDLL(None).ptrace(PTRACE_SEIZE, helper, None, None) == 0
        print(file=guard.stdin, flush=True)
        took_s = float(guard.stdout.readline())
        assert processes.state(helper) == "Z"  # this process has not collected it
        os.waitpid(helper, WALL)
    assert processes.HELPERS_S < took_s < 2.0
