"""The status is a fold over the journal, and every event has its words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import reduce
from typing import Any

import example_journal as ex
import pytest

from ftslurm.core.model import Phase
from ftslurm.status import Recovery, RunStatus, fold, to_json
from ftslurm.wording import clock, describe, few, seconds


def play(*lines: ex.Line) -> RunStatus:
    return reduce(fold, lines, RunStatus())


def told(lines: Iterable[ex.Line]) -> list[str]:
    """What a person reads."""
    status, said = RunStatus(), []
    for line in lines:
        status = fold(status, line)
        words = describe(line, status)
        if words is not None:
            said.append(words)
    return said


def at(time: float) -> RunStatus:
    return play(*(line for line in ex.one_kill() if line["time"] <= ex.START + time))


def phases(status: RunStatus) -> list[Phase]:
    return [g.phase for g in status.groups]


def test_groups_are_pending_until_they_are_launched_and_running_once_every_worker_is_ready() -> None:
    assert phases(at(0)) == [Phase.PENDING] * 3
    assert [g.waiting_for for g in at(0).groups] == ["nodes"] * 3
    assert phases(at(1)) == [Phase.STARTING] * 3
    assert phases(at(2.6)) == [Phase.RUNNING] * 3
    assert [g.waiting_for for g in at(2.6).groups] == ["first step"] * 3
    assert at(2.6).stepping == 0
    assert at(3.5).stepping == 3


def test_a_kill_touches_only_its_group() -> None:
    status = at(15.35)
    assert phases(status) == [Phase.RUNNING, Phase.PENDING, Phase.RUNNING]
    assert status.groups[1].last_error == "killed (signal 9) on n2"
    assert (status.step, status.groups[1].step, status.restarts) == (61, 61, 0)


def test_a_restart_is_counted_and_its_recovery_timed() -> None:
    during, after = at(16), at(18)
    assert during.recoveries == (Recovery(1, 1, None, "killed", "killed (signal 9) on n2"),)
    assert after.recoveries == (Recovery(1, 1, 2.1, "killed", "killed (signal 9) on n2"),)
    assert (after.restarts, after.groups[1].restarts, after.groups[1].attempt) == (1, 1, 1)
    assert phases(after) == [Phase.RUNNING] * 3


def test_the_example_run_ends_well() -> None:
    status = play(*ex.one_kill())
    assert phases(status) == [Phase.SUCCEEDED] * 3
    assert (status.outcome, status.step, status.total_steps, status.restarts) == ("succeeded", 120, 120, 1)
    assert status.longest_gap == (0.31, 2)
    assert status.started == ex.START
    assert status.finished == ex.START + 27.6


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    slow = [ex.progress(10 + n, 0, n) for n in range(30)]  # 1 step/s
    fast = [ex.progress(40 + n, 0, 30 + 4 * n) for n in range(15)]  # 4 steps/s
    status = play(ex.started(1), ex.launched(1, 0), ex.joined(9, 0, 0), *slow)
    assert status.steps_per_s == pytest.approx(1)
    status = reduce(fold, fast, status)
    assert status.steps_per_s == pytest.approx(4)
    assert len(status.groups[0].samples) <= 12


def test_slow_steps_have_a_rate_too() -> None:
    steps = [ex.progress(60.0 * n, 0, n) for n in range(1, 5)]
    assert play(ex.started(1), ex.launched(0, 0), ex.joined(1, 0, 0), *steps).steps_per_s == pytest.approx(1 / 60)


def test_a_dead_group_has_no_rate_and_its_next_attempt_begins_a_new_one() -> None:
    assert at(15.35).groups[1].steps_per_s is None
    assert at(17.45).groups[1].steps_per_s is None
    assert at(26).groups[1].steps_per_s == pytest.approx(5, abs=0.3)
    assert at(26).steps_per_s == pytest.approx(5, abs=0.1)


def test_late_news_of_an_old_attempt_changes_nothing() -> None:
    before = at(18)
    for late in (ex.progress(18.1, 1, 999), ex.exited(18.1, 1), ex.ready(18.1, 1), ex.joined(18.1, 1, 999)):
        after = fold(before, late)
        assert after.groups == before.groups
        assert after.step == before.step


def test_after_a_full_restart_the_step_of_the_run_goes_back_to_the_checkpoint() -> None:
    deaths = [ex.exited(20, g) for g in range(2)]
    lines = [ex.started(2), *(ex.launched(1, g) for g in range(2)), *(ex.joined(2, g, 60) for g in range(2)), *deaths]
    assert play(*lines).step == 60
    again = [ex.launched(21, 0, attempt=1), ex.joined(22, 0, 51, attempt=1)]
    assert play(*lines, *again).step == 51


def test_a_restart_that_dies_before_its_first_step_stays_without_a_time() -> None:
    lines = [ex.started(), ex.launched(1, 1), ex.joined(2, 1, 1), ex.exited(3, 1), ex.launched(4, 1, attempt=1)]
    lines += [ex.exited(5, 1, attempt=1, cause="user_error", code=1, error="OSError: no disk")]
    lines += [ex.launched(6, 1, attempt=2), ex.joined(9, 1, 7, attempt=2, recovery_s=4.0)]
    first, second = play(*lines).recoveries
    assert (first.attempt, first.seconds, first.cause) == (1, None, "killed")
    assert second == (1, 2, 4.0, "user_error", "the script failed (exit code 1): OSError: no disk")


def test_a_group_that_only_aborts_steps_has_a_quorum_and_no_step() -> None:
    status = play(ex.started(), ex.launched(1, 0), ex.ready(2, 0), ex.progress(3, 0, 17, participants=2, committed=0))
    assert (status.groups[0].participants, status.groups[0].step, status.step) == (2, None, 0)
    assert status.groups[0].waiting_for == "first step"


def test_a_group_given_up_has_failed_and_says_why() -> None:
    status = play(
        ex.started(), ex.launched(1, 2), ex.exited(2, 2), ex.event(2, "group_given_up", group=2, reason="4 failures")
    )
    assert (status.groups[2].phase, status.groups[2].last_error) == (Phase.FAILED, "4 failures")


def test_a_group_in_backoff_says_how_long() -> None:
    line = ex.event(3, "restart_scheduled", group=0, attempt=1, due=ex.START + 7, reason="killed")
    status = play(ex.started(), ex.launched(1, 0), ex.exited(3, 0), line)
    assert status.groups[0].waiting_for == "backoff of 4 s"


def test_stop_turns_live_groups_into_stopping_ones() -> None:
    command = ex.event(10, "command", what="stop", by=1000)
    status = fold(at(10), command)
    assert phases(status) == [Phase.STOPPING] * 3


def test_nodes_are_excluded_and_restored() -> None:
    lines = [ex.event(1, "node_excluded", node=n, reason="lost") for n in ("n2", "n3", "n2")]
    assert play(*lines).excluded_nodes == ("n2", "n3")
    assert play(*lines, ex.event(2, "node_restored", node="n2")).excluded_nodes == ("n3",)


def test_a_second_controller_takes_the_run_over_without_resetting_it() -> None:
    status = fold(at(18), ex.event(19, "run_started", run_id="ddp-0930-k3", groups=3, total_steps=120))
    assert (status.started, status.step, len(status.groups)) == (ex.START, 72, 3)
    assert phases(status) == [Phase.RUNNING] * 3


@pytest.mark.parametrize(
    "line",
    [
        {"event": "invented_tomorrow", "group": 1, "time": 5},
        {"event": "progress"},
        {"event": "progress", "group": "one", "attempt": 0, "step": "two", "time": None},
        {"event": "step_launched", "unit": "standby-000", "group": None, "nodes": None},
        {"event": "step_exited", "group": -1},
        {"event": "group_joined", "group": 77, "attempt": 3},
        {"event": ["?"]},
        {"event": "run_started", "groups": None, "versions": 3},
        {"event": "command", "what": None},
        {},
    ],
)
def test_unknown_lines_and_missing_fields_are_passed_over(line: dict[str, Any]) -> None:
    before = at(10)
    after = fold(before, line)
    assert after.groups == before.groups
    assert after.step == before.step
    describe(line, after)


def test_folding_changes_nothing_in_place() -> None:
    before = at(10)
    copy = json.dumps(to_json(before))
    fold(before, ex.exited(11, 1))
    assert json.dumps(to_json(before)) == copy


def test_the_json_has_stable_keys() -> None:
    status = to_json(at(18))
    assert json.loads(json.dumps(status)) == status
    assert set(status) == {
        *("run_id", "name", "mode", "job_id", "outcome", "reason", "step", "total_steps", "steps_per_s", "started"),
        *("updated", "finished", "restarts", "longest_gap_s", "excluded_nodes", "lighthouse", "groups", "recoveries"),
    }
    groups: Any = status["groups"]
    assert groups[1] == {
        "group": 1,
        "phase": "RUNNING",
        "step": 72,
        "participants": 3,
        "quorum_id": 3,
        "attempt": 1,
        "nodes": ["n2"],
        "restarts": 1,
        "steps_per_s": None,
        "longest_gap_s": 0.21,
        "waiting_for": None,
        "last_error": "killed (signal 9) on n2",
    }
    assert status["lighthouse"] == {"phase": "RUNNING", "attempt": 0, "nodes": ["n1"]}


def test_a_kill_reads_like_a_story() -> None:
    log = "logs/group-0001/attempt-000/rank-0.log"
    assert told(ex.one_kill()) == [
        "run ddp-0930-k3 starts: 3 groups of 1 worker, on this machine",
        "allocation local: n1, n2, n3",
        "the Lighthouse is up after 0.4 s",
        "all 3 groups launched on n1, n2, n3",
        "training: step 1 committed, 2.4 s after the launch (3 groups in the quorum)",
        "drill: kill injected into group 1 at step 61",
        f"group 1 attempt 0 died at step 61: killed (signal 9) on n2 - log: {log}",
        "group 1 relaunched as attempt 1 on n2, 0.1 s after attempt 0 failed",
        "group 1 is back: first step 72 committed 2.1 s after it died",
        "group 0 has finished",
        "group 1 has finished",
        "group 2 has finished",
        "the run succeeded (120 steps, 1 restart): all 3 groups have finished",
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            ex.exited(11, 1, cause="user_error", code=1, node="n2", error="ValueError: boom", log=None),
            "group 1 attempt 0 died at step 31: the script failed (exit code 1) on n2: ValueError: boom",
        ),
        (ex.exited(11, 1, cause="cancelled"), "group 1 was stopped (at step 31)"),
        (
            ex.exited(11, 1, cause="node_lost", log=None, node="n2"),
            "group 1 attempt 0 died at step 31: node lost on n2",
        ),
        (ex.exited(11, 1, cause="cosmic_ray", log=None), "group 1 attempt 0 died at step 31: cosmic ray"),
        (
            ex.event(11, "restart_scheduled", group=1, attempt=1, due=ex.START + 15, reason="killed"),
            "group 1: attempt 1 will start in 4.0 s (backoff)",
        ),
        (
            ex.event(11, "node_excluded", node="n2", reason="silent for 10 s"),
            "node n2 is used no more: silent for 10 s",
        ),
        (ex.event(11, "allocation_lost", allocation="81", reason="time limit"), "allocation 81 is lost: time limit"),
        (ex.event(11, "command", what="stop", by="ada", reason="enough"), "stop: enough"),
        (
            ex.event(11, "step_exited", unit="lighthouse", attempt=0, cause="killed", signal=9, node="n1"),
            "the Lighthouse attempt 0 died: killed (signal 9) on n1",
        ),
        (
            ex.finished(11, "stopped", reason="stop by uid 1000"),
            "the run was stopped (120 steps, 1 restart): stop by uid 1000",
        ),
        (ex.event(11, "step_exited", unit="lighthouse", attempt=0, cause="cancelled"), None),
        (ex.progress(11, 1, 36), None),
        (ex.event(11, "invented_tomorrow"), None),
    ],
)
def test_each_event_has_its_words(line: ex.Line, words: str | None) -> None:
    assert describe(line, fold(at(10), line)) == words


def test_a_group_that_never_stepped_died_before_its_first_step() -> None:
    assert told([ex.started(), ex.launched(1, 1), ex.exited(2, 1, log=None)])[-1] == (
        "group 1 attempt 0 died before its first step: killed (signal 9) on n2"
    )


def test_a_group_that_comes_late_is_news_and_the_first_quorum_is_told_once() -> None:
    lines = [ex.started(), *(ex.launched(1, g) for g in range(3)), ex.joined(2, 0, 1, participants=2)]
    lines += [ex.joined(2.1, 1, 1, participants=2), ex.progress(8, 0, 30, participants=2), ex.joined(9, 2, 40)]
    assert told(lines)[2:] == [
        "training: step 1 committed, 2.4 s after the launch (2 groups in the quorum)",
        "group 2 has joined at step 40 (3 groups in the quorum)",
    ]


def test_sixty_four_groups_start_in_three_lines() -> None:
    lines = [ex.started(64), *(ex.launched(1, g) for g in range(64)), *(ex.ready(2, g) for g in range(64))]
    said = told([*lines, *(ex.joined(3, g, 1, participants=64) for g in range(64))])
    assert said[1:] == [
        "all 64 groups launched on n1, n2 and 62 more",
        "training: step 1 committed, 2.4 s after the launch (64 groups in the quorum)",
    ]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "-"),
        (0, "under 0.01 s"),
        (0.071, "0.071 s"),
        (0.31, "0.31 s"),
        (2.14, "2.1 s"),
        (48.4, "48 s"),
        (119.4, "119 s"),
        (200, "3 min 20 s"),
        (18_120, "5 h 2 min"),
    ],
)
def test_durations_are_as_precise_as_a_person_wants(value: float | None, words: str) -> None:
    assert seconds(value) == words


def test_clocks_and_lists_are_short() -> None:
    assert [clock(s) for s in (-1, 7, 760, 3723)] == ["0:00", "0:07", "12:40", "1:02:03"]
    assert [few(["a"] * n) for n in (0, 1, 3, 4)] == ["no node", "a", "a, a, a", "a, a and 2 more"]
