"""Time limits to find a node and to commit the first step; and the messages of a run that has to end."""

from __future__ import annotations

import pytest
import said
from histories import (
    LIGHTHOUSE_UP,
    RUNNING,
    Moment,
    config,
    finished,
    granted,
    killed,
    node_lost,
    play,
    ready,
    stepped,
    stop,
    store,
)
from steps import A0, B0, B1, C0, LIGHT0

from ftslurm.core.groups.reports import TOLD_S
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import SIGTERM, SLURM, Evidence, Phase, StepId
from ftslurm.core.state.unit_names import group_unit
from ftslurm.protocol.causes import Cause

TWO: tuple[Moment, ...] = ((0, granted(2)), *RUNNING[1:], (30, node_lost(B0, "n2")))  # no spare node


def test_a_group_without_a_node_says_once_what_it_waits_for() -> None:
    story = play(*TWO, (300, stepped(A0, 900)))
    waits = {"group": 1, "reason": "a free node: n2 left out", "allocation": None}
    assert story.records("group_waits") == [waits]
    assert story.state.groups[1].waits_for == "a free node: n2 left out"


def test_it_says_so_again_when_something_else_is_missing() -> None:
    three = config(groups={"count": 3, "min": 1})
    story = play((0, granted(3)), (20, node_lost(B0, "n2")), (21, node_lost(C0, "n3")), config=three)
    one, both = "a free node: n2 left out", "a free node: n2, n3 left out"
    assert [(r["group"], r["reason"]) for r in story.records("group_waits")] == [(1, one), (1, both), (2, both)]


@pytest.mark.parametrize("count", [10, 40])
def test_a_run_that_loses_its_nodes_one_by_one_says_so_a_few_times_for_each_group(count: int) -> None:
    lost = [(20 + n, node_lost(StepId(group_unit(n), 0), f"n{n + 1}")) for n in range(1, count)]
    story = play((0, granted(count)), (1, LIGHTHOUSE_UP), *lost, config=config(groups={"count": count, "min": 1}))
    told = story.records("group_waits")
    assert len(told) <= count + 10
    assert max(len(record["reason"]) for record in told) < 100
    assert told[-1]["reason"] == "a free node: more than 3 nodes left out"


def test_when_a_node_comes_free_it_is_launched_and_waits_for_nothing() -> None:
    story = play(*TWO, (100, ev.Looked("n2", True, ())))
    assert story.ids(act.Launch, since=100) == [B1]
    assert story.state.groups[1].waits_for is None
    assert story.records("step_launched", since=100)[0]["down_s"] == 70


def test_a_group_waits_for_a_node_for_as_long_as_the_run_goes_on() -> None:
    story = play(*TWO, (100_000,))
    assert story.phases() == [Phase.RUNNING, Phase.PENDING]
    assert story.records("group_given_up") == []


# --- the first step --------------------------------------------------------------------------------------------------

BACK: tuple[Moment, ...] = (*RUNNING, (30, killed(B0)), (31, ready(B1)), (32, store(B1)))
LIMITED = config({"join_timeout_s": 100.0})


def test_a_group_whose_script_never_commits_a_step_while_others_do_is_started_again() -> None:
    story = play(*BACK, (132.3, ev.Ended(B1, 137)), config=LIMITED)
    assert story.times(act.Kill, B1) == [132]
    exited = story.records("step_exited")[-1]
    assert (exited["cause"], exited["noticed"]) == ("start_timeout", 132)
    assert exited["error"] == "no step 100 s after its script began (see job.longest_step_s)"


def test_one_that_has_committed_a_step_has_no_such_limit() -> None:
    assert play(*BACK, (120, stepped(B1, 40)), (5000,), config=LIMITED).ids(act.Kill) == []


def test_while_nobody_commits_nobody_is_too_slow() -> None:
    assert play(*RUNNING[:-2], (500,), config=LIMITED).ids(act.Kill) == []


def test_without_the_limit_it_may_take_as_long_as_it_likes() -> None:
    story = play(*BACK, (3000,))
    assert story.ids(act.Kill) == []
    assert story.state.wakes == 3000 + TOLD_S  # what it waits for is looked at


# --- messages of a run that ends -------------------------------------------------------------------------------------

TERM = ev.StopAsked("the controller was sent SIGTERM", SIGTERM)
PREEMPTED = ev.StopAsked("Slurm has preempted the job", SLURM, Cause.PREEMPTED)
TIMEOUT = ev.StopAsked("the time limit is over", SLURM, Cause.TIME_LIMIT)


@pytest.mark.parametrize(
    ("words", "cause", "reason"),
    [
        pytest.param([TERM], "cancelled", TERM.reason, id="a signal alone"),
        pytest.param([TERM, PREEMPTED], "preempted", PREEMPTED.reason, id="Slurm says a moment later: preempted"),
        pytest.param([TERM, TIMEOUT], "time_limit", TIMEOUT.reason, id="or: the time limit"),
        pytest.param([TIMEOUT, TERM], "time_limit", TIMEOUT.reason, id="a later signal explains nothing"),
        pytest.param([TERM, stop()], "cancelled", TERM.reason, id="nor does a later stop"),
    ],
)
def test_a_run_ends_of_what_slurm_says(words: list[ev.StopAsked], cause: str, reason: str) -> None:
    told = [(30 + n / 10, word) for n, word in enumerate(words)]
    story = play(*RUNNING, *told, (31, ev.Ended(A0, 0), ev.Ended(B0, 0)), (32, ev.Ended(LIGHT0, 0)))
    assert [exited["cause"] for exited in story.records("step_exited")] == [cause] * 3
    (end,) = story.records("run_finished")
    assert (end["outcome"], end["reason"]) == ("stopped", reason)
    assert len(story.records("command")) == len(words)


def test_what_had_failed_before_keeps_its_own_cause() -> None:
    story = play(*RUNNING, (29, killed(B0)), (30, TERM), (30.1, PREEMPTED), (31, ev.Ended(A0, 0), ev.Ended(B1, 137)))
    assert [exited["cause"] for exited in story.records("step_exited")] == ["killed", "preempted", "preempted"]


def test_a_run_that_has_failed_or_finished_is_not_explained_by_slurm() -> None:
    lost = play(*RUNNING, (30, killed(A0), killed(B0)), (30.1, PREEMPTED))
    assert lost.outcome() == "failed"
    assert "restart.on_state_loss" in lost.reason()
    done = play(*RUNNING, (30, finished(A0), finished(B0)), (30.1, PREEMPTED))
    assert done.outcome() == "succeeded"


def test_slurm_takes_the_last_nodes_and_too_few_groups_are_left() -> None:
    story = play(*TWO, (40, ev.NodesLeft(("n1",))), config=config(groups={"min": 2}))
    assert story.outcome() == "failed"
    assert "cluster.spare_nodes" in story.reason()


def test_a_crash_of_a_process_whose_script_has_ended_well_is_no_failure() -> None:
    crashed = (60, said.script_done(A0, 0), ev.TaskFailed(A0, Evidence(0, None, signal=6)), ev.Ended(A0, code=134))
    story = play(*RUNNING, crashed, (61, finished(B0)))
    assert [r["cause"] for r in story.records("step_exited")] == ["ok", "ok"]
    assert story.ids(act.Launch, since=60) == []
    killed_late = (60, said.script_done(A0, 0), ev.TaskFailed(A0, Evidence(0, None, signal=9)), ev.Ended(A0, code=137))
    assert play(*RUNNING, killed_late).records("step_exited")[0]["cause"] == "killed"
    before = (60, ev.TaskFailed(A0, Evidence(0, None, signal=6)), ev.Ended(A0, code=134))
    assert play(*RUNNING, before).records("step_exited")[0]["cause"] == "killed"
