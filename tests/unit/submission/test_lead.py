"""The lead of a run: what counts as a crash, how often it is tried again, and that a leader is asked to make way."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import led_run
import pytest
from led_run import journal

from ftslurm.config.schema import Config
from ftslurm.protocol import records
from ftslurm.run import leadership
from ftslurm.run.directory import RunDir
from ftslurm.submission import lead
from ftslurm.submission.lead import STAND_BACK_S, Candidate, Lead


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return led_run.new(tmp_path)


@pytest.mark.parametrize(
    ("code", "event", "how"),
    [
        (-9, "progress", "the controller was killed by SIGKILL"),
        (-9, "run_finished", "the controller was killed by SIGKILL"),  # jobs of the run may wait in the queue
        (1, "progress", "the controller has failed (exit code 1), see "),  # an exception
        (1, "run_finished", ""),
        (0, records.ControllerLeft.event, ""),
        (0, "progress", ""),  # another one leads
        (-9, "run_requeued", "the controller was killed by SIGKILL"),  # nobody has asked for the next job
        (0, "run_requeued", ""),
        (-15, "run_requeued", ""),  # by Slurm, which requeues the job
        (lead.BAD_INPUT, "progress", ""),  # it would not start the next time either
    ],
)
def test_what_is_a_crash(run: RunDir, code: int, event: str, how: str) -> None:
    journal(run, event)
    said = lead.crashed(run, code)
    assert said.startswith(how)
    assert bool(said) == bool(how)


def test_three_crashes_within_a_minute_are_too_many(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 50.0, 100.0, 105.0])
    monkeypatch.setattr(lead, "COMMAND", ["sh", "-c", "kill -9 $$"])
    leads = Lead(run)
    too_many = []
    for _ in range(4):
        assert leads.take(leads.number)
        assert leads.process is not None
        leads.process.wait()
        with monkeypatch.context() as patched:
            patched.setattr(time, "monotonic", lambda: next(clock))
            assert leads.has_crashed()
        too_many.append(leads.crashes_again)
    assert too_many == [False, False, False, True]


def test_a_run_that_is_over_has_no_leader_any_more(run: RunDir) -> None:
    leadership.take(run)
    journal(run, "run_finished", outcome="succeeded")
    assert not Lead(run).follow(Config())


def test_a_lead_is_taken_when_the_last_leader_has_left(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lead, "COMMAND", ["true"])
    leadership.take(run)
    journal(run, "run_started")
    run.alive.touch()
    next_one, got = Lead(run), list[bool]()
    follower = threading.Thread(target=lambda: got.append(next_one.follow(Config())))
    follower.start()
    follower.join(0.5)
    assert follower.is_alive()
    journal(run, records.ControllerLeft.event, leader=1)
    follower.join(20)
    assert (got, next_one.number) == ([True], 2)


SLOW = """
import os, signal, sys, time
print("asleep", flush=True)
until = time.monotonic() + 20
while not signal.sigpending() and time.monotonic() < until:  # as a controller that has not come to its handlers yet
    time.sleep(0.01)
print(sorted(int(number) for number in signal.sigpending()), flush=True)
"""


def test_a_signal_that_comes_before_a_controller_can_handle_it_waits(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lead, "COMMAND", [sys.executable, "-c", SLOW])
    leads = Lead(run)
    assert leads.take(None)
    process = leads.process
    assert process is not None
    while "asleep" not in (said := capfd.readouterr().out):
        time.sleep(0.01)
    assert os.getpgid(process.pid) != os.getpgrp()  # a terminal's Ctrl-C is for us alone
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert "[15]" in said + capfd.readouterr().out
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize(
    ("by_hand", "its_job_ends", "stands_back_s"),
    [(True, False, 0.0), (True, True, STAND_BACK_S), (False, False, STAND_BACK_S), (False, True, 2 * STAND_BACK_S)],
)
def test_a_candidate_whose_job_is_about_to_end_leads_only_if_no_other_one_does(
    by_hand: bool, its_job_ends: bool, stands_back_s: float, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = list[int]()
    monkeypatch.setattr(leadership, "vacant", lambda *_: 7)
    candidate = Candidate(Config(), run)
    monkeypatch.setattr(candidate, "take", taken.append)
    candidate.by_hand, candidate.making_way = by_hand, its_job_ends
    candidate._check(0.0)
    if stands_back_s:
        assert (taken, candidate.next_check) == ([], stands_back_s)
        candidate._check(stands_back_s)
    assert taken == [7]


def test_the_names_of_the_last_events_are_those_of_the_journal() -> None:
    assert (records.RunFinished.event, records.ControllerLeft.event) == lead.LAST
