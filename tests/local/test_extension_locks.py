"""A rank that is killed while it builds an extension: the next attempt does not wait for the lock that it has left."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import Backend
from torch.utils.file_baton import FileBaton

from ftslurm.worker import extension_locks

BUILDS = """
import os, time
from torch.utils.file_baton import FileBaton
baton = FileBaton(os.path.join(os.path.dirname(__file__), "lock-" + os.environ["REPLICA_GROUP_ID"]))
if baton.try_acquire():
    if os.environ["FTSLURM_ATTEMPT"] == "0":
        os.kill(os.getpid(), 9)
    time.sleep(0.2)
    baton.release()
else:
    baton.wait()
"""


def test_the_next_attempt_removes_it(local: Backend) -> None:
    run = local.start("groups.count=1", "groups.workers=3", "restart.backoff_s=0", script=local.script(BUILDS)).finish()
    assert [ended["attempt"] for ended in run.named("step_exited", group=0)] == [0, 1]
    assert sum("removed the lock" in run.rank_log(0, rank, 1) for rank in range(3)) == 1


@pytest.fixture
def be(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """A function that makes this process one of a step of a run."""
    for name in ("try_acquire", "wait"):
        monkeypatch.setattr(FileBaton, name, getattr(FileBaton, name))
    extension_locks.install()

    def become(run: str, step: str) -> None:
        monkeypatch.setenv("FTSLURM_RUN_DIR", run)
        monkeypatch.setenv("FTSLURM_STEP", step)

    return become


@pytest.mark.parametrize(
    ("run", "step", "goes"),
    [
        ("r", "group-0001/2", True),
        ("r", "group-0001/1", False),
        ("r", "group-0002/2", False),
        ("q", "group-0001/2", False),
    ],
)
def test_only_a_lock_of_an_earlier_attempt_of_the_same_group_goes(
    be: Callable[[str, str], None], tmp_path: Path, run: str, step: str, goes: bool
) -> None:
    path = str(tmp_path / "lock")
    be("r", "group-0001/1")
    assert FileBaton(path).try_acquire()
    be(run, step)
    with ThreadPoolExecutor(8) as pool:  # the ranks of an attempt, of which one builds
        taken = list(pool.map(lambda _: FileBaton(path).try_acquire(), range(8)))
    assert sum(map(bool, taken)) == goes


@pytest.mark.parametrize("text", ["", "x", "a\nb\nc", "1\n2\n3\n4"])
def test_a_lock_of_another_program_stays(be: Callable[[str, str], None], tmp_path: Path, text: str) -> None:
    be("r", "group-0001/1")
    (tmp_path / "lock").write_text(text)
    assert not FileBaton(str(tmp_path / "lock")).try_acquire()
    assert os.path.exists(tmp_path / "lock")
