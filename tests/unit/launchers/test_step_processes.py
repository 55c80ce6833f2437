"""The connections to steps of an earlier controller: how each may end, and when the step must end with it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from programs import Programs

from ftslurm.config.schema import Config
from ftslurm.core.state.model import StepId
from ftslurm.guard.processes import PR_SET_CHILD_SUBREAPER, prctl
from ftslurm.launchers.scheduler import Command
from ftslurm.launchers.srun import Slurm
from ftslurm.launchers.step_processes import Children, News, Received, StepEnded
from ftslurm.run.directory import RunDir

STEP = StepId("group-0001", 0)
HELLO = 'echo \'{"type": "hello", "task": 0}\'; '


@pytest.fixture
def cancelled(programs: Programs) -> Iterator[Callable[[], list[str]]]:
    """The calls of a fake scancel, which only records them."""
    programs.add("scancel", delay_s=0.1)
    yield programs.calls
    prctl(PR_SET_CHILD_SUBREAPER, 0)  # this process must not reap other tests' orphans


def adopt(children: Children, script: str, folder: Path) -> None:
    command = Command(["/bin/sh", "-c", script], dict(os.environ))
    assert children.adopt(STEP, command, folder / "step.log", "81.3") is None


def until_gone(children: Children) -> list[News]:
    news: list[News] = []
    deadline = time.monotonic() + 20
    while not any(isinstance(one, StepEnded) for one in news):
        assert time.monotonic() < deadline, news
        news += children.listen(0.05)
    return news


@pytest.mark.parametrize(
    ("script", "ends"),
    [
        ("exit 76", True),  # nobody to adopt
        (f"{HELLO} exit 3", True),
        (f"{HELLO} kill -9 $$", True),
        ("exit 78", False),  # srun itself has failed, slurmctld is away: the step trains on, and a retry follows
        (f"{HELLO} exit 78", True),
        (f"{HELLO} exit 0", False),
    ],
)
def test_a_way_that_ends_badly_takes_its_step_along_before_that_is_told(
    script: str, ends: bool, tmp_path: Path, cancelled: Callable[[], list[str]]
) -> None:
    children = Children(tmp_path, Slurm(Config(), RunDir(tmp_path)))
    adopt(children, script, tmp_path)
    until_gone(children)
    assert cancelled() == (["scancel 81.3"] if ends else [])


def test_if_another_controller_has_attached_nothing_is_cancelled(
    tmp_path: Path, cancelled: Callable[[], list[str]]
) -> None:
    class Superseded(Exception):
        pass

    def check_lead() -> None:
        raise Superseded

    children = Children(tmp_path, Slurm(Config(), RunDir(tmp_path)), check_lead)
    adopt(children, f"{HELLO} exit 79", tmp_path)
    with pytest.raises(Superseded):
        until_gone(children)
    children.leave()
    time.sleep(0.2)
    assert cancelled() == []


def test_a_step_that_is_to_end_is_cancelled_for_its_srun_is_not_ours(
    tmp_path: Path, cancelled: Callable[[], list[str]]
) -> None:
    children = Children(tmp_path, Slurm(Config(), RunDir(tmp_path)))
    adopt(children, f"{HELLO} exec sleep 60", tmp_path)
    news: list[News] = []
    while not any(isinstance(one, Received) for one in news):
        news += children.listen(0.05)
    children.kill(STEP, 15)
    until_gone(children)
    assert cancelled() == ["scancel 81.3"]


def test_who_leaves_ends_its_own_processes_and_tells_nothing(
    tmp_path: Path, cancelled: Callable[[], list[str]]
) -> None:
    children = Children(tmp_path, Slurm(Config(), RunDir(tmp_path)))
    adopt(children, f"{HELLO} sleep 60 & sleep 60", tmp_path)
    (pid,) = children.by_pid
    children.leave()
    assert children.by_pid == {}
    assert _gone(pid)
    assert cancelled() == []


@pytest.mark.parametrize("ends", ["kill -9 $$", "kill -15 $$", "exit 143", "exit 137"])
def test_a_step_whose_srun_is_ended_with_the_controllers_job_is_there_for_the_next_controller(
    ends: str, tmp_path: Path, cancelled: Callable[[], list[str]]
) -> None:
    children = Children(tmp_path, Slurm(Config(), RunDir(tmp_path)))
    adopt(children, f"{HELLO} {ends}", tmp_path)
    until, news = time.monotonic() + 1.5, list[News]()
    while time.monotonic() < until:  # Slurm is asked why this process got SIGTERM
        news += children.listen(0.05)
    assert children.steps[STEP].over_since is not None
    children.leave()
    assert not any(isinstance(one, StepEnded) for one in news)
    assert cancelled() == []


def _gone(group: int) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-group, os.WNOHANG)  # orphans of Children's are ours
        time.sleep(0.01)
    return False
