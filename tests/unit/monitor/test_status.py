"""The status is a fold over the journal."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any

import example_journal as ex
import pytest
from folded import fold
from random_journal import write

from ftslurm.core.state.model import Phase
from ftslurm.monitor.sentences import describe, notes
from ftslurm.monitor.starting import wait_of
from ftslurm.monitor.status import Recovery, RunStatus, aged
from ftslurm.monitor.status_json import to_json
from ftslurm.monitor.story import Story
from ftslurm.run.directory import RunDir


def play(*lines: ex.Line) -> RunStatus:
    return fold(RunStatus(), *lines)


def at(time: float) -> RunStatus:
    return play(*(line for line in ex.one_kill() if line["time"] <= ex.START + time))


def waits(status: RunStatus, group: int) -> str | None:
    wait = wait_of(status.groups[group], status)
    return None if wait is None else wait.what


def phases(status: RunStatus) -> list[Phase]:
    return [g.phase for g in status.groups]


def test_groups_are_pending_until_launched_and_running_once_every_worker_is_ready() -> None:
    assert phases(at(0)) == [Phase.PENDING] * 3
    assert [g.waiting_for for g in at(0).groups] == ["nodes"] * 3
    assert phases(at(1)) == [Phase.STARTING] * 3
    assert phases(at(2.6)) == [Phase.RUNNING] * 3
    assert [waits(at(2.6), g) for g in range(3)] == ["its script to begin training"] * 3
    assert at(2.6).at_work == 0
    assert at(3.5).at_work == 3


def test_a_kill_touches_only_its_group() -> None:
    status = at(15.35)
    assert phases(status) == [Phase.RUNNING, Phase.PENDING, Phase.RUNNING]
    assert status.groups[1].error == "killed (signal 9) on n2"
    assert (status.step, status.groups[1].step, status.restarts) == (61, 61, 0)


def test_a_restart_is_counted_and_its_recovery_timed() -> None:
    during, after = at(16), at(18)
    assert during.recoveries == [Recovery(1, 1, None, "killed", "killed (signal 9) on n2")]
    assert after.recoveries == [Recovery(1, 1, 2.13, "killed", "killed (signal 9) on n2")]
    assert (after.restarts, after.groups[1].restarts, after.groups[1].attempt) == (1, 1, 1)
    assert phases(after) == [Phase.RUNNING] * 3


def test_the_example_run_ends_well() -> None:
    status = play(*ex.one_kill())
    assert phases(status) == [Phase.SUCCEEDED] * 3
    assert (status.outcome, status.step, status.total_steps, status.restarts) == ("succeeded", 120, 120, 1)
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


@pytest.mark.parametrize(("step", "shown"), [(50, None), (60, 60)])
def test_a_checkpoint_that_is_not_restored_is_not_the_newest(step: int, shown: int | None) -> None:
    saved = ex.event(5, "checkpoint_saved", group=0, attempt=0, step=60, path="p")
    distrusted = ex.event(6, "checkpoints_distrusted", group=0, attempt=0, step=step)
    assert play(ex.started(2), saved, distrusted).checkpoint == shown


def test_full_restarts_are_told_of_to_the_end() -> None:
    line = {"time": ex.START + 20, "event": "full_restart", "step": 65, "checkpoint_step": 50}
    status = play(ex.started(2), line)
    assert (status.full_restarts, status.checkpoint) == (1, 50)


def test_a_restart_that_dies_before_its_first_step_stays_without_a_time() -> None:
    lines = [ex.started(), ex.launched(1, 1), ex.joined(2, 1, 1), ex.exited(3, 1), ex.launched(4, 1, attempt=1)]
    lines += [ex.exited(5, 1, attempt=1, cause="user_error", code=1, error="OSError: no disk")]
    lines += [ex.launched(6, 1, attempt=2), ex.joined(9, 1, 7, attempt=2, recovery_s=4.0)]
    first, second = play(*lines).recoveries
    assert (first.attempt, first.seconds, first.cause) == (1, None, "killed")
    assert second == Recovery(1, 2, 4.0, "user_error", "the script failed (exit code 1): OSError: no disk")


def test_a_group_that_only_aborts_steps_has_a_quorum_and_no_step() -> None:
    status = play(ex.started(), ex.launched(1, 0), ex.ready(2, 0), ex.progress(3, 0, 17, participants=2, committed=0))
    assert (status.groups[0].participants, status.groups[0].step, status.step) == (2, None, 0)
    assert waits(status, 0) == "its script to begin training"


def test_a_group_given_up_has_failed_and_says_why() -> None:
    status = play(
        ex.started(), ex.launched(1, 2), ex.exited(2, 2), ex.event(2, "group_given_up", group=2, reason="4 failures")
    )
    assert (status.groups[2].phase, status.groups[2].given_up) == (Phase.FAILED, "4 failures")


def test_a_group_in_backoff_says_how_long() -> None:
    line = ex.event(3, "restart_scheduled", group=0, attempt=1, due=ex.START + 7, reason="killed")
    status = play(ex.started(), ex.launched(1, 0), ex.exited(3, 0), line)
    assert waits(status, 0) == "its next launch"
    assert status.groups[0].backoff_s == 4


def test_a_launch_that_slurm_refuses_is_one_restart_with_the_one_that_follows() -> None:
    no = ex.event(12, "launch_refused", unit="group-0001", group=1, attempt=1, reason="busy")
    before = (ex.started(), *(ex.launched(1, g) for g in range(3)), ex.exited(11, 1))
    status = play(*before, ex.launched(11, 1, 1), no)
    assert (status.groups[1].phase, status.groups[1].waiting_for) == (Phase.PENDING, "srun (busy)")
    status = play(*before, ex.launched(11, 1, 1), no, ex.launched(14, 1, 1))
    assert (status.restarts, status.groups[1].restarts, len(status.recoveries)) == (1, 1, 1)
    assert status.groups[1].phase is Phase.STARTING


def test_stop_turns_live_groups_into_stopping_ones() -> None:
    command = ex.event(10, "command", what="stop", by=1000)
    status = fold(at(10), command)
    assert phases(status) == [Phase.STOPPING] * 3


def test_nodes_are_excluded_and_restored() -> None:
    lines = [ex.event(1, "node_excluded", node=n, reason="lost") for n in ("n2", "n3", "n2")]
    assert play(*lines).excluded_nodes.keys() == {"n2", "n3"}
    assert play(*lines, ex.event(2, "node_restored", node="n2")).excluded_nodes.keys() == {"n3"}


def test_a_second_controller_takes_the_run_over_without_resetting_it() -> None:
    status = fold(at(18), ex.event(19, "run_started", run_id="ddp-0930-k3", groups=3, total_steps=120))
    assert (status.started, status.step, len(status.groups)) == (ex.START, 72, 3)
    assert phases(status) == [Phase.RUNNING] * 3


def test_a_standby_is_ready_once_it_is_warm_and_gone_once_a_group_has_taken_it() -> None:
    lines = ex.lost_node()
    before = play(*(line for line in lines if line["time"] < ex.START + 20))
    one, two = before.standbys
    assert (one.name, one.phase, one.nodes, one.ready) == ("standby-000", Phase.RUNNING, ("n4",), True)
    assert (two.name, two.phase, two.nodes, two.ready) == ("standby-001", Phase.STARTING, ("n5",), False)
    assert "standbys: 1 of 2 ready on n4" in notes(before)
    after = play(*lines)
    assert "standbys: 0 of 2 ready" in notes(after)
    assert (after.groups[1].nodes, after.groups[1].restarts, after.groups[1].attempt) == (("n4",), 1, 1)
    again = reduce(fold, ex.standby(30, 0, 1, "n6"), after)
    assert "standbys: 1 of 2 ready on n6" in notes(again)
    shown: Any = to_json(again, ex.START)["standbys"]
    assert shown[0] == {"name": "standby-000", "phase": "RUNNING", "attempt": 1, "nodes": ["n6"], "ready": True}


def test_a_standby_that_dies_is_none_any_more_and_no_group_is_touched() -> None:
    died = ex.event(2.9, "step_exited", unit="standby-000", group=None, attempt=0, cause="killed", signal=9, node="n4")
    before = play(ex.started(), *ex.standby(1))
    after = fold(before, died)
    assert (after.standbys[0].phase, after.groups) == (Phase.PENDING, before.groups)
    assert describe(died, after) == "standby-000 attempt 0 died: killed (signal 9) on n4"
    assert fold(before, died | {"attempt": 7}).standbys == before.standbys  # late news
    assert not any("standbys" in line for line in notes(play(*ex.one_kill())))


def test_the_signs_of_the_last_failure_are_kept() -> None:
    signs, trace = ["exit code 1", "task 3 said it first"], "Traceback ...\nValueError: boom"
    line = ex.exited(11, 1, cause="user_error", code=1, error="ValueError: boom", evidence=signs, traceback=trace)
    status = fold(at(10), line)
    last = status.groups[1].last
    assert last is not None
    assert (last.evidence, last.traceback) == (tuple(signs), trace)
    assert status.groups[1].down
    assert not fold(status, ex.launched(12, 1, attempt=1)).groups[1].down
    assert not fold(at(10), ex.exited(11, 1, cause="cancelled")).groups[1].down  # nothing has failed


def test_a_group_that_waits_for_a_node_says_which_was_lost() -> None:
    line = ex.event(12, "group_waits", group=1, reason="a node: n2 is lost, no spare is free")
    status = fold(fold(at(10), ex.exited(11, 1, cause="node_lost", node="n2")), line)
    assert status.groups[1].waiting_for == "a node: n2 is lost, no spare is free"
    assert describe(line, status) == "group 1 waits for a node: n2 is lost, no spare is free"
    assert waits(fold(at(10), line), 1) is None  # it runs


def test_a_group_of_a_run_that_ended_while_it_was_preempted_has_not_failed() -> None:
    status = play(ex.started(1), ex.launched(1, 0), ex.exited(2, 0, cause="preempted"), ex.finished(3, "stopped"))
    assert status.groups[0].phase is Phase.PENDING


@pytest.mark.parametrize("journal", [ex.one_kill(), ex.lost_node()])
def test_a_journal_of_an_older_version_is_read_as_before(journal: list[ex.Line]) -> None:
    status, old = play(*journal), play(*ex.old(journal))
    assert [(g.phase, g.step, g.attempt, g.nodes, g.error) for g in status.groups] == [
        (g.phase, g.step, g.attempt, g.nodes, g.error) for g in old.groups
    ]
    assert [r.seconds for r in status.recoveries] == [r.seconds for r in old.recoveries]
    json.dumps(to_json(old, ex.START))
    assert all(isinstance(describe(line, old), (str, type(None))) for line in ex.old(journal))


@pytest.mark.parametrize(
    "line",
    [
        {"event": "invented_tomorrow", "group": 1, "time": 5},
        {"event": "progress"},
        {"event": "progress", "group": "one", "attempt": 0, "step": "two", "time": None},
        {"event": "step_launched", "unit": "standby-000", "group": None, "nodes": None},
        {"event": "step_launched", "unit": "standby-000", "group": None, "attempt": "x", "nodes": 3},
        {"event": "step_exited", "group": -1},
        {"event": "step_exited", "unit": "standby-000", "evidence": 3, "phases": [1], "traceback": []},
        {"event": "group_joined", "group": 1, "attempt": 0, "phases": "quick"},
        {"event": "group_waits"},
        {"event": "node_silent"},
        {"event": "fault_injected"},
        {"event": "fault_refused", "kind": 3},
        {"event": "group_joined", "group": 77, "attempt": 3},
        {"event": ["?"]},
        {"event": "run_started", "groups": None, "roles": 3},
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


def test_a_run_that_goes_on_in_another_job_is_one_run_and_its_move_is_no_restart() -> None:
    first = [ex.started(1), ex.launched(1, 0), ex.joined(2, 0, 10), ex.exited(3, 0, cause="time_limit")]
    waits = play(*first, ex.event(4, "run_requeued", reason="the time limit is near"))
    assert (waits.outcome, waits.groups[0].waiting_for, waits.starts) == ("running", "nodes", 1)
    second = [ex.started(1), ex.launched(200, 0, attempt=1), ex.joined(201, 0, 11, attempt=1)]
    moved = reduce(fold, second, waits)
    assert (moved.restarts, moved.groups[0].restarts, moved.recoveries, moved.starts) == (0, 0, [], 2)
    assert moved.started == waits.started
    fails = [ex.exited(202, 0, attempt=1), ex.launched(203, 0, attempt=2)]
    failed = reduce(fold, fails, moved)
    assert (failed.restarts, [r.attempt for r in failed.recoveries]) == (1, [2])
    adopted = [ex.started(1), ex.event(201.5, "step_adopted", unit="group-0000", group=0, attempt=1), *fails]
    assert reduce(fold, adopted, moved).restarts == 1  # it ran on while another controller took over


def test_a_run_that_resumes_another_names_it() -> None:
    status = play(ex.started(1, parent="/scratch/runs/ddp-1"))
    assert to_json(status, ex.START)["parent"] == "/scratch/runs/ddp-1"
    line = describe(ex.started(1, parent="/scratch/runs/ddp-1"), status)
    assert line is not None
    assert line.endswith("on this machine, resumes ddp-1")


def test_folding_changes_nothing_in_place() -> None:
    before = at(10)
    copy = json.dumps(to_json(before, ex.START + 10))
    fold(before, ex.exited(11, 1))
    assert json.dumps(to_json(before, ex.START + 10)) == copy


def test_the_json_has_stable_keys() -> None:
    status = to_json(at(18), ex.START + 18)
    assert json.loads(json.dumps(status)) == status
    assert set(status) == {
        *(
            "run_id",
            "name",
            "parent",
            "mode",
            "job_id",
            "job_starts",
            "state",
            "outcome",
            "reason",
            "step",
            "missing",
            "total_steps",
            "steps_per_s",
            "left_s",
            "started",
        ),
        *(
            "updated",
            "finished",
            "restarts",
            "drained_nodes",
            "excluded_nodes",
            "lighthouse",
            "standbys",
            "groups",
        ),
        *("recoveries", "warnings", "checkpoint", "jobs", "jobs_refused", "hooks", "note"),
        *("hang_limit_s", "hang_limit_between_s", "slurm_rpcs", "slurm_rpcs_a_minute"),
    }
    groups: Any = status["groups"]
    assert groups[1] == {
        "group": 1,
        "role": None,
        "phase": "RUNNING",
        "step": 72,
        "participants": 3,
        "quorum_id": 3,
        "attempt": 1,
        "nodes": ["n2"],
        "restarts": 1,
        "steps_per_s": None,
        "still_s": None,
        "slow": None,
        **dict.fromkeys(("waits_for", "since", "limit_s", "setting")),
        "last_error": "killed (signal 9) on n2",
        "last_evidence": ["the guard of task 0: signal 9"],
        "last_traceback": None,
        "job": None,
    }
    assert status["standbys"] == []
    assert status["lighthouse"] == {"phase": "RUNNING", "attempt": 0, "nodes": ["n1"]}


def test_a_group_stands_still_without_a_step_for_five_steps_and_five_seconds() -> None:
    status = at(15.15)  # all three step five times a second; the last step was told at 15.1
    assert aged(status, ex.START + 20).groups == status.groups
    late = aged(status, ex.START + 30.1)
    assert (late.steps_per_s, late.at_work) == (None, 0)
    found: Any = to_json(status, ex.START + 30.1)
    assert found["steps_per_s"] is None
    assert [g["still_s"] for g in found["groups"]] == pytest.approx([15, 15, 15], abs=0.1)
    slow = [ex.progress(1 + 60 * n, 0, n) for n in range(1, 8)]
    status = play(ex.started(1), ex.launched(0, 0), ex.ready(1, 0), ex.joined(1, 0, 0), *slow)
    assert aged(status, ex.START + 421 + 299).at_work == 1
    assert aged(status, ex.START + 421 + 301).at_work == 0


def test_groups_that_meet_rarely_do_not_stand_still_in_between() -> None:
    lines = [ex.started(1), ex.launched(0, 0), ex.ready(1, 0), ex.joined(600, 0, 1)]  # LocalSGD: ten minutes apart
    lines += [ex.progress(700, 0, 1, participants=2)]  # another quorum, no new step
    assert aged(play(*lines), ex.START + 1100).at_work == 1
    assert aged(play(*lines), ex.START + 1300).at_work == 0
    status = play(*lines, ex.progress(1200, 0, 2))
    assert status.steps_per_s == pytest.approx(1 / 600, rel=0.2)
    assert aged(status, ex.START + 3600).at_work == 1


def test_a_step_that_is_told_again_is_no_step() -> None:
    again = [ex.progress(20 + n, 0, 10) for n in range(20)]  # its votes fail, one after another
    steps = [ex.progress(n, 0, n) for n in range(2, 11)]
    status = play(ex.started(1), ex.launched(0, 0), ex.ready(1, 0), ex.joined(1, 0, 1), *steps, *again)
    assert aged(status, ex.START + 40).groups[0].still_s == pytest.approx(30)


def test_a_group_that_commits_is_set_aside_no_longer_whatever_the_lighthouse_has_told() -> None:
    lines = [ex.started(1), ex.launched(0, 0), ex.ready(1, 0), ex.joined(1, 0, 1), ex.progress(10, 0, 10)]
    lines += [ex.event(13, "group_set_aside", group=0, attempt=0, seconds=3.0)]
    lines += [ex.progress(14, 0, 11, at=ex.START + 10.5), ex.progress(15, 0, 11)]  # a late line, and no new step
    assert play(*lines).groups[0].aside == ex.START + 10
    assert play(*lines, ex.progress(16, 0, 12)).groups[0].aside is None


def test_a_group_that_is_set_aside_has_no_rate_and_its_silent_rank_is_named() -> None:
    steps = [ex.progress(n, 0, n) for n in range(2, 11)]
    status = play(ex.started(1), ex.launched(0, 0), ex.ready(1, 0), ex.joined(1, 0, 1), *steps)
    assert aged(status, ex.START + 14).steps_per_s == 1
    status = fold(status, ex.event(13, "group_set_aside", group=0, attempt=0, seconds=3.0))
    assert aged(status, ex.START + 14).steps_per_s is None
    wait = wait_of(status.groups[0], status)
    assert wait is not None
    assert "its rank 0" in wait.what


def test_a_run_that_is_over_does_not_stand_still() -> None:
    status = fold(RunStatus(), *ex.one_kill())
    assert aged(status, ex.START + 1000) == status


def test_a_line_that_comes_late_tells_when_its_step_was(tmp_path: Path) -> None:
    lines = [ex.started(1), ex.launched(1, 0), ex.ready(2, 0), ex.joined(3, 0, 1), ex.progress(4, 0, 5)]
    run = write(RunDir(tmp_path / "run"), [*lines, ex.progress(20, 0, 10, at=ex.START + 5)])
    status = Story(run).status
    assert status.groups[0].stepped == ex.START + 5
    assert status.updated == ex.START + 20


def test_groups_of_a_large_run_do_not_stand_still_between_two_of_their_lines() -> None:
    groups = 80  # a line each ten seconds
    lines = [ex.started(groups), *(ex.launched(1, g) for g in range(groups)), *(ex.ready(2, g) for g in range(groups))]
    lines += [ex.joined(3, g, 1) for g in range(groups)] + [ex.progress(13, g, 51) for g in range(groups)]
    status = play(*lines)
    assert status.steps_per_s == 5.0
    assert aged(status, ex.START + 26).at_work == groups
    assert aged(status, ex.START + 29).at_work == 0


def test_a_restart_on_request_is_no_failure_and_drained_nodes_are_named() -> None:
    asked = ex.event(5, "step_recalled", unit="group-0000", group=0, attempt=0, reason="n1 is drained")
    lines = [
        ex.started(1),
        ex.launched(0, 0),
        ex.ready(1, 0),
        ex.joined(2, 0, 1),
        ex.event(4, "node_drained", node="n1"),
    ]
    status = play(*lines, asked)
    assert status.groups[0].phase is Phase.STOPPING
    assert status.drained_nodes.keys() == {"n1"}
    status = fold(status, ex.exited(6, 0, cause="requested", error="n1 is drained"))
    assert not status.groups[0].down
    assert fold(status, ex.event(7, "node_undrained", node="n1")).drained_nodes == {}


def test_a_warning_goes_with_its_cause() -> None:
    full = ex.event(1, "warning", group=None, text="no space: the training goes on")
    assert play(full).warnings == ["no space: the training goes on"]
    over = ex.event(2, "warning", group=None, text="it can be written again", over=full["text"])
    assert play(full, over).warnings == []
    assert play(over).warnings == []
