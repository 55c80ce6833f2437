"""The stacks of a worker in a file, on request: by faulthandler, and by the real py-spy."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from guarded import Step, step
from old_kernel import on_an_old_kernel
from test_stacks import BUSY_WITH_THE_GIL, COUNTING

from ftslurm.guard import processes, stack_files

FAR = 60.0  # the machine may be loaded


def taken(task: Step, command: str = "c1") -> str:
    task.send("stacks", command=command, task=0, by="a test")
    answer = task.until("stacks", FAR)
    assert (answer["command"], answer["error"]) == (command, None)
    path = task.folder / answer["file"]
    assert path.stat().st_mode & 0o777 == 0o600
    return path.read_text()


@pytest.mark.parametrize("script", [COUNTING, BUSY_WITH_THE_GIL])
def test_faulthandler_and_py_spy_both_see_a_worker(script: str, tmp_path: Path) -> None:
    assert stack_files.find_spy() is not None, "pip install py-spy"
    with step(tmp_path / "run") as task:
        task.begin(script)
        inside, _, outside = taken(task).partition("by py-spy:")
        assert "ftslurm: stacks of rank 0, pid " in inside
        assert "in innermost" in inside
        assert "innermost (script.py:" in outside
        assert taken(task, "c2") is not None
        assert sorted(path.name for path in task.folder.glob("stacks-*")) == [
            "stacks-rank-0-0.txt",
            "stacks-rank-0-1.txt",
        ]


def test_a_kernel_that_cannot_tell_of_a_programs_end_makes_no_difference(tmp_path: Path) -> None:
    task = on_an_old_kernel(lambda: Step(tmp_path / "run"))
    try:
        task.begin(COUNTING)
        assert "innermost (script.py:" in taken(task).partition("by py-spy:")[2]
    finally:
        task.end()


def test_py_spy_sees_a_stopped_worker_which_stays_stopped(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin(COUNTING)
        os.kill(task.pid, signal.SIGSTOP)
        task.wait(lambda: processes.state(task.pid) == "T", "stop")
        assert "innermost (script.py:" in taken(task).partition("by py-spy:")[2]
        task.wait(lambda: processes.state(task.pid) == "T", "second stop")


def test_without_py_spy_there_is_what_faulthandler_says_and_nothing_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("a line of the script\n")
    monkeypatch.setattr(stack_files, "find_spy", lambda: None)
    monkeypatch.setattr(stack_files.stacks, "dump", lambda *_: log.open("a").write("in innermost\n"))
    name = stack_files.take(os.getpid(), None, str(log), 0)  # type: ignore[arg-type]
    assert (tmp_path / name).read_text() == "in innermost\n"


def test_a_py_spy_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text("#!/bin/sh\nexec sleep 1000\n")
    spy.chmod(0o700)
    monkeypatch.setattr(stack_files, "find_spy", lambda: str(spy))
    monkeypatch.setattr(stack_files, "SPY_S", 0.2)
    monkeypatch.setattr(stack_files.stacks, "dump", lambda *_: None)
    (tmp_path / "rank-0.log").touch()
    name = stack_files.take(os.getpid(), None, str(tmp_path / "rank-0.log"), 0)  # type: ignore[arg-type]
    assert name == "stacks-rank-0-0.txt"
    assert "py-spy was killed after 0.2 s" in (tmp_path / name).read_text()
