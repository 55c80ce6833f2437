"""Election of a run's controller: one at a time among all candidates, and none after the run has ended."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import led_run
import pytest
from led_run import journal

from ftslurm.config.schema import Config
from ftslurm.protocol.records import ControllerLeft
from ftslurm.run import leadership, liveness
from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return led_run.new(tmp_path)


def test_how_a_run_has_ended_is_known_until_it_is_started_again(run: RunDir) -> None:
    assert leadership.outcome(run) is None
    journal(run, "run_started")
    assert leadership.outcome(run) is None
    journal(run, "run_finished", outcome="stopped")
    assert leadership.outcome(run) == "stopped"
    with run.events.open("a") as file:
        file.write('{"event": "run_fin')
    assert leadership.outcome(run) is None
    run.events.unlink()
    journal(run, "run_finished", outcome=7)
    assert (leadership.outcome(run), leadership.is_over(run)) == ("failed", True)


def config() -> Config:
    made = Config()
    made.health.lost_after_s = 5.0
    return made


class Looks:
    """An observer of the leader with its own clock."""

    def __init__(self, run: RunDir, ended: bool = False, jitter_s: float = 0.0) -> None:
        self.run, self.ended, self.jitter_s = run, ended, jitter_s
        self.now = 1000.0
        self.watch = liveness.Watch(lambda: self.now)

    def vacant(self, after_s: float = 0.0) -> int | None:
        self.now += after_s
        own = leadership.newest(self.run) if self.ended else 0
        return leadership.vacant(self.run, config(), self.watch, own, self.jitter_s)


def test_leaders_are_numbered_and_the_highest_leads(run: RunDir) -> None:
    assert leadership.newest(run) == 0
    assert leadership.take(run) == 1
    assert leadership.held(run, 1)
    assert leadership.take(run) == 2
    assert not leadership.held(run, 1)
    assert leadership.held(run, 2)


def test_of_many_who_want_it_at_once_one_gets_it(run: RunDir) -> None:
    program = "import sys; from pathlib import Path\n"
    program += "from ftslurm.run import leadership; from ftslurm.run.directory import RunDir\n"
    program += "sys.stdin.readline(); print(leadership.take(RunDir(Path(sys.argv[1])), after=0))"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    many = [subprocess.Popen([sys.executable, "-c", program, str(run.root)], **pipes) for _ in range(4)]  # type: ignore[call-overload]
    for process in many:
        process.stdin.write("\n")
        process.stdin.flush()
    got = sorted(process.communicate(timeout=60)[0].strip() for process in many)
    assert got == ["1"] + ["None"] * 3
    assert leadership.take(run, after=0) is None


@pytest.mark.parametrize(
    ("silent_s", "ended", "jitter_s", "vacant"),
    [
        (0.0, False, 0.0, False),
        (4.0, False, 0.0, False),
        (6.0, False, 0.0, True),
        (6.0, False, 2.0, False),
        (0.1, True, 0.0, False),  # its last sign of life may be under way
        (1.0, True, 0.0, True),
    ],
)
def test_a_leader_is_lost_after_silence_or_when_slurm_says_so(
    silent_s: float, ended: bool, jitter_s: float, vacant: bool, run: RunDir
) -> None:
    leadership.take(run)
    journal(run, "run_started")
    run.alive.touch()
    looks = Looks(run, ended, jitter_s)
    assert looks.vacant() is None
    assert looks.vacant(after_s=silent_s) == (1 if vacant else None)


@pytest.mark.parametrize("ahead_s", [-3600.0, -11.0, 40.0, 3600.0])
def test_a_leader_lives_while_its_file_changes_whatever_the_file_servers_clock_says(
    ahead_s: float, run: RunDir
) -> None:
    leadership.take(run)
    journal(run, "run_started")
    server = time.time() + ahead_s
    for path in (run.leaders / "0001", run.alive):
        path.touch()
        os.utime(path, (server, server))
    looks = Looks(run)
    for beat in range(10):
        assert looks.vacant(after_s=4.0) is None
        os.utime(run.alive, (server + 4 * beat, server + 4 * beat))
    assert looks.vacant(after_s=4.0) is None
    assert looks.vacant(after_s=4.9) is None
    assert looks.vacant(after_s=0.2) == 1


def test_a_file_server_that_is_away_is_no_silence(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    leadership.take(run)
    journal(run, "run_started")
    run.alive.touch()
    looks = Looks(run)
    assert looks.vacant() is None

    def away(*_: object) -> int:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patched:
        patched.setattr(owned_files, "open_fd", away)
        assert looks.vacant(after_s=100.0) is None
    assert looks.vacant(after_s=4.0) is None
    assert looks.vacant(after_s=6.0) == 1


def test_who_has_just_taken_the_lead_is_given_the_time_to_be_heard(run: RunDir) -> None:
    leadership.take(run)
    looks = Looks(run)
    assert looks.vacant() is None
    assert looks.vacant(after_s=100.0) == 1
    leadership.take(run, after=1)
    assert looks.vacant(after_s=100.0) is None
    assert looks.vacant(after_s=6.0) == 2


def test_the_alive_file_is_touched_in_long_work_but_not_once_another_leads(run: RunDir) -> None:
    leadership.take(run)
    watch = liveness.Watch()
    with liveness.kept(run.alive, 0.02, lambda: leadership.held(run, 1)):
        until = time.monotonic() + 30
        while not run.alive.exists():
            assert time.monotonic() < until
        changes = {run.alive.stat().st_mtime_ns}
        while len(changes) < 3:
            assert time.monotonic() < until
            changes.add(run.alive.stat().st_mtime_ns)
        leadership.take(run)
        time.sleep(0.1)  # a late touch
        watch.silent_s(run.alive)
        time.sleep(0.3)
        silent_s = watch.silent_s(run.alive)
        assert silent_s is not None
        assert silent_s >= 0.3


def test_a_run_that_has_not_begun_is_led_by_the_first_that_comes(run: RunDir) -> None:
    assert Looks(run).vacant() == 0


def test_who_has_left_is_not_waited_for_but_whoever_came_after_it_is(run: RunDir) -> None:
    leadership.take(run)
    run.alive.touch()
    journal(run, ControllerLeft.event, leader=1)
    assert Looks(run).vacant() == 1
    leadership.take(run, after=1)
    assert Looks(run).vacant() is None  # the last line of the journal is the first controller's


def test_a_run_that_is_over_has_no_leader_any_more(run: RunDir) -> None:
    leadership.take(run)
    journal(run, "run_finished", outcome="succeeded")
    looks = Looks(run)
    assert [looks.vacant(), looks.vacant(after_s=100.0)] == [None, None]
    assert leadership.is_over(run)


def test_while_the_run_directory_cannot_be_read_nobody_gives_up_or_takes_the_lead(run: RunDir) -> None:
    leadership.take(run)
    run.leaders.rename(run.root / "away")
    run.leaders.write_text("no folder")
    assert leadership.held(run, 1)
    assert Looks(run).vacant() is None
