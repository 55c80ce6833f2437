"""Each committed step is handed to one process, once, whoever dies; the groups are objects of one process."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftslurm.tracking import StepMetrics, is_leader, step_metrics
from ftslurm.tracking.step_metrics import KEPT, MARK

Logged = list[tuple[int, dict[str, float]]]


@dataclass
class Manager:
    """Counts and ranks as torchft's Manager would answer them."""

    step: int = 0
    rank: int | None = None

    def current_step(self) -> int:
        return self.step

    def participating_rank(self) -> int | None:
        return self.rank


class Group:
    def __init__(self, settle_s: float = 0.0) -> None:
        self.manager = Manager()
        self.metrics = StepMetrics(self.manager, settle_s=settle_s)

    def commit(self, step: int, rank: int | None) -> Logged:
        """Commit a step with this participating rank, and log what is due."""
        self.manager.step, self.manager.rank = step, rank
        return list(self.metrics.committed(loss=step / 10))


def steps(logged: Logged) -> list[int]:
    assert all(values == {"loss": step / 10} for step, values in logged)
    return [step for step, _ in logged]


@pytest.fixture(autouse=True)
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of rank 0 in a run."""
    for name, value in {"FTSLURM_RUN_DIR": str(tmp_path), "FTSLURM_RUN_ID": "one", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_rank_0_of_the_group_with_participating_rank_0_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [is_leader(Manager(rank=rank)) for rank in (None, 0, 1)] == [False, True, False]
    monkeypatch.setenv("RANK", "1")
    assert not is_leader(Manager(rank=0))


def test_the_next_leader_logs_what_the_last_one_has_not() -> None:
    first, second = Group(), Group()
    for step in (1, 2, 3):
        assert steps(first.commit(step, 0)) == [step]
        assert steps(second.commit(step, 1)) == []
    first.manager.step = second.manager.step = 4
    first.metrics.committed(loss=0.4)  # it dies before it has logged step 4
    assert steps(second.commit(4, 1)) == []
    assert steps(second.commit(5, 0)) == [4, 5]
    assert (second.metrics.leads, steps(second.commit(6, 0))) == (True, [6])
    back = Group()
    back.metrics.load_state_dict(second.metrics.state_dict())
    assert steps(back.commit(7, 0)) == [7]
    assert (steps(second.commit(7, 1)), second.metrics.leads) == ([], False)


def test_a_step_that_only_others_committed_comes_with_the_state_they_send() -> None:
    leader, other = Group(), Group()
    assert steps(leader.commit(1, 0)) == [1]
    other.commit(1, 1)
    other.commit(2, 1)  # the leader's average has failed: it copies the state of step 2
    leader.metrics.load_state_dict(other.metrics.state_dict())
    assert steps(leader.commit(3, 0)) == [2, 3]


def test_a_step_that_is_undone_and_taken_again_keeps_its_first_value() -> None:
    group = Group()
    saved = None
    for step in range(1, 6):
        assert steps(group.commit(step, 0)) == [step]
        saved = saved or group.metrics.state_dict()
    again = Group()
    assert saved
    again.metrics.load_state_dict(saved)
    assert [steps(again.commit(step, 0)) for step in range(2, 7)] == [[], [], [], [], [6]]


def test_what_a_tracker_has_not_taken_is_returned_again() -> None:
    group = Group()
    group.manager.step, group.manager.rank = 1, 0
    for step, _ in group.metrics.committed(loss=0.1):
        assert step == 1
        break  # as an exception in the loop would
    assert steps(group.commit(2, 0)) == [1, 2]


def test_a_step_that_the_tracker_may_still_lose_is_logged_again_by_the_next_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(step_metrics.time, "monotonic", lambda: now)
    first, second = Group(settle_s=10), Group(settle_s=10)
    for step in range(1, 5):
        assert steps(first.commit(step, 0)) == [step]
        second.commit(step, 1)
        now += 5
    assert steps(second.commit(5, 0)) == [3, 4, 5]  # steps 1 and 2 were noted when 3 and 4 were logged
    assert steps(first.commit(5, 1)) == []
    first.commit(6, 1)
    assert steps(first.commit(7, 0)) == [3, 4, 5, 6, 7]


def test_the_metrics_of_a_run_that_is_resumed_stay_in_its_own_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = Group()
    parent.commit(1, 1)
    monkeypatch.setenv("FTSLURM_RUN_ID", "two")
    child = Group()
    child.metrics.load_state_dict(parent.metrics.state_dict())
    assert steps(child.commit(2, 0)) == [2]


def test_only_the_last_steps_are_kept() -> None:
    group = Group()
    for step in range(1, KEPT + 51):
        group.commit(step, 1)
    assert steps(group.commit(KEPT + 51, 0)) == list(range(52, KEPT + 52))


def test_a_mark_that_others_can_write_or_that_cannot_be_written_is_told_once(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = run_dir / MARK
    mark.write_text("9")
    mark.chmod(0o666)
    group = Group()
    assert steps(group.commit(1, 0)) == [1]
    assert "others can write into it" in capsys.readouterr().err
    mark.unlink()
    mark.mkdir()
    assert [steps(group.commit(step, 0)) for step in (2, 3)] == [[2], [3]]
    assert capsys.readouterr().err.count("logged-steps") == 1


def test_it_runs_without_ftslurm_and_imports_no_torch(monkeypatch: pytest.MonkeyPatch, run_dir: Path) -> None:
    monkeypatch.delenv("FTSLURM_RUN_DIR")
    group = Group()
    assert [steps(group.commit(step, 0)) for step in (1, 2)] == [[1], [2]]
    assert not (run_dir / MARK).exists()
    check = "import sys, ftslurm.tracking; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
