"""A run from its launch to its end, as histories; every decision is made twice (see histories.Story.turn)."""

from __future__ import annotations

import random
from math import inf

import pytest
import said
from histories import (
    LIGHTHOUSE_UP,
    RUNNING,
    STARTED,
    Moment,
    config,
    finished,
    granted,
    is_a,
    killed,
    kind_of,
    play,
    ready,
    stepped,
    store,
)
from steps import A0, B0, B1, LIGHT0, LIGHT1, LIGHT2, URL

from ftslurm.core.groups.finishing import TOGETHER_S
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Phase, Place
from ftslurm.protocol import messages as msg
from ftslurm.protocol.messages import Rank
from ftslurm.protocol.records import JournalRecord


def test_a_run_lives_and_succeeds() -> None:
    story = play(*RUNNING, (60, finished(A0)), (60.5, finished(B0)), (60.6, ev.Ended(LIGHT0, code=137)))
    assert [r.event for r in story.all(JournalRecord)] == [
        "allocation_granted",
        *["step_launched"] * 3,
        *["step_ready"] * 3,
        *["script_begun"] * 2,
        *["group_joined", "progress"] * 2,
        *["progress"] * 2,
        *["step_exited"] * 3,
        "run_finished",
    ]
    assert [kind_of(a) for _, a in story.done if not is_a(a, JournalRecord, msg.Member, msg.Evict)] == [
        *[act.Launch] * 3,
        *[act.Assign] * 2,
        *[msg.Begin] * 2,
        act.Kill,
        act.Finish,
    ]
    assert story.records("run_finished") == [
        {"outcome": "succeeded", "reason": "all groups finished", "steps": 10, "restarts": 0}
    ]
    assert story.state.finished
    assert story.phases() == [Phase.SUCCEEDED] * 2


def test_everything_is_launched_at_once_when_nodes_are_granted() -> None:
    story = play((0, granted(3)))
    assert story.all(act.Launch) == [
        act.Launch(LIGHT0, None, Place(("n1",))),  # on the controller's node: what kills one kills both
        act.Launch(A0, 0, Place(("n1",))),
        act.Launch(B0, 1, Place(("n2",))),
    ]
    known = {"unit": "group-0001", "group": 1, "attempt": 0, "nodes": ["n2"], "slot": 0, "allocation": "7"}
    assert {**known, "hosts": ["n2"], "reason": "start"}.items() <= story.records("step_launched")[2].items()


def test_the_lighthouse_is_one_task_however_many_workers_a_group_has() -> None:
    lighthouse, group, *_ = play((0, granted(4)), config=WIDE).records("step_launched")
    assert (len(lighthouse["hosts"]), len(group["hosts"])) == (1, 4)


def test_nothing_is_launched_before_there_are_nodes() -> None:
    story = play((0,), (1000,))
    assert story.done == []
    assert story.state.wakes == inf


WIDE = config(groups={"nodes": 2, "workers": 2})


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param([*ready(A0, "n1", "n1", "n2"), LIGHTHOUSE_UP], id="a task is missing"),
        pytest.param(ready(A0, "n1", "n1", "n2", "n2"), id="the Lighthouse is missing"),
        pytest.param([*ready(A0, "n1", "n1", "n2", "n2")[:-1], LIGHTHOUSE_UP], id="a task is there, but not ready"),
    ],
)
def test_a_group_is_assigned_once_all_tasks_are_ready_and_the_lighthouse_is_up(
    missing: list[ev.Event],
) -> None:
    before = play((0, granted(4)), (2, missing), config=WIDE)
    assert before.ids(act.Assign) == []
    after = play((0, granted(4)), (2, missing), (3, LIGHTHOUSE_UP, ready(A0, "n1", "n1", "n2", "n2")), config=WIDE)
    assert after.ids(act.Assign) == [A0]


def test_a_task_that_is_ready_before_it_has_said_hello_is_waited_for() -> None:
    early = play((0, granted(3)), (1, LIGHTHOUSE_UP), (2, said.ready(A0, 0)))
    assert early.ids(act.Assign) == []
    story = play((0, granted(3)), (1, LIGHTHOUSE_UP), (2, said.ready(A0, 0)), (3, said.hello(A0, 0, "n1")))
    assert story.all(act.Assign) == [act.Assign(A0, 0, (Rank(0, "n1", 0, 0),), URL)]


def test_a_task_that_the_step_does_not_have_is_ignored() -> None:
    assert play((0, granted(3)), (1, said.hello(A0, 1, "n1"))).state == play((0, granted(3)), (1,)).state


def test_a_lighthouse_that_comes_last_lets_all_groups_be_assigned() -> None:
    story = play((0, granted(3)), (2, ready(A0), ready(B0)), (3, LIGHTHOUSE_UP))
    assert story.all(act.Assign) == [
        act.Assign(A0, 0, (Rank(0, "n1", 0, 0),), URL),
        act.Assign(B0, 1, (Rank(0, "n2", 0, 0),), URL),
    ]


def test_ranks_follow_the_tasks_also_when_slurm_deals_them_out_cyclically() -> None:
    story = play((0, granted(4)), (1, LIGHTHOUSE_UP), (2, ready(A0, "n1", "n2", "n1", "n2")), config=WIDE)
    ranks = (Rank(0, "n1", 0, 0), Rank(2, "n2", 0, 1), Rank(1, "n1", 1, 0), Rank(3, "n2", 1, 1))
    assert story.all(act.Assign) == [act.Assign(A0, 0, ranks, URL)]
    assert story.records("step_ready")[1]["hosts"] == ["n1", "n2", "n1", "n2"]


def test_the_journal_repeats_the_nodes_of_the_tasks_only_when_they_are_not_the_expected_ones() -> None:
    story = play((0, granted(4)), (1, LIGHTHOUSE_UP), (2, ready(A0, "n1", "n1", "n2", "n2")), config=WIDE)
    (_, group) = story.records("step_ready")
    assert (group["unit"], group["attempt"], group["seconds"]) == ("group-0000", 0, 2)
    assert "hosts" not in group


@pytest.mark.parametrize("seed", range(8))
def test_a_step_is_ready_when_its_workers_and_their_guards_were_heard_in_any_order(seed: int) -> None:
    heard, hosts = list(ready(A0, "n2", "n2", "n1", "n1")), {"n1", "n2"}
    random.Random(seed).shuffle(heard)
    story = play((0, granted(4)), (1, LIGHTHOUSE_UP), *((2 + at, one) for at, one in enumerate(heard)), config=WIDE)
    (_, group) = story.records("step_ready")
    assert (set(group["hosts"]), group["seconds"]) == (hosts, 9)
    assert len(story.all(act.Assign)) == 1


def test_at_the_first_start_the_groups_begin_together() -> None:
    alone = play(*STARTED[:-1], (3, store(A0)))
    assert alone.ids(msg.Begin) == []
    both = play(*STARTED[:-1], (3, store(A0)), (9, store(B0)))
    assert both.all(msg.Begin, since=9) == [act.Send(A0, msg.Begin("n1", 29500)), act.Send(B0, msg.Begin("n2", 29500))]


def test_a_group_that_fails_at_the_first_start_is_not_waited_for() -> None:
    story = play(*STARTED[:-1], (3, store(A0)), (4, killed(B0)))
    assert story.ids(msg.Begin) == [A0]


def test_a_group_has_joined_with_its_first_commit() -> None:
    story = play(*STARTED, (4, stepped(A0, 0, committed=0)), (5, stepped(A0, 1)), (6, stepped(A0, 2)))
    assert [p["step"] for p in story.records("progress")] == [0, 1, 2]
    (joined,) = story.records("group_joined")
    known = {"group": 0, "attempt": 0, "step": 1, "quorum_id": 3, "participants": 2, "seconds": 5, "recovery_s": None}
    assert known.items() <= joined.items()


@pytest.mark.parametrize("code", [0, 1])
def test_a_step_has_succeeded_if_all_its_ranks_report_the_end_whatever_its_srun_says(code: int) -> None:
    silent = play(*RUNNING, (60, ev.Ended(A0, code=code)))
    assert silent.phases() == [Phase.STARTING, Phase.RUNNING]
    assert [end["cause"] for end in silent.records("step_exited")] == ["unknown"]
    done = play(*RUNNING, (60, said.task_done(A0, 0), ev.Ended(A0, code=code)))
    assert done.phases() == [Phase.SUCCEEDED, Phase.RUNNING]


def test_the_lighthouse_goes_last() -> None:
    story = play(*RUNNING, (60, finished(A0)), (61, finished(B0)), (62, ev.Ended(LIGHT0, code=137)))
    assert story.times(act.Kill, LIGHT0) == [61]
    assert story.all(act.Finish) == [act.Finish("succeeded", "all groups finished")]
    assert story.records("step_exited")[-1]["cause"] == "cancelled"


def test_a_group_that_fails_after_another_has_succeeded_is_not_restarted() -> None:
    story = play(*RUNNING, (60, finished(A0)), (61, killed(B0)), (62, ev.Ended(LIGHT0, 0)))
    assert story.ids(act.Launch, since=1) == []
    assert "too late for another attempt: group 0 had already finished" in story.records("group_given_up")[0]["reason"]
    assert story.all(act.Finish) == [act.Finish("succeeded", "1 of 2 groups finished; group 1 did not")]


def test_too_few_groups_that_finish_are_no_success() -> None:
    story = play(*RUNNING, (60, finished(A0)), (61, killed(B0)), config=config(groups={"min": 2}))
    assert story.outcome() == "failed"
    assert "groups.min=2" in story.reason()


def test_a_group_that_has_joined_may_finish_as_late_as_it_likes() -> None:
    story = play(*RUNNING, (60, finished(A0)), (600, finished(B0)), (601, ev.Ended(LIGHT0, 0)))
    assert story.all(act.Finish) == [act.Finish("succeeded", "all groups finished")]


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param((), id="starting"),
        pytest.param(((51, ready(B1)), (52, store(B1))), id="running, but not joined"),
    ],
)
def test_a_group_that_has_not_joined_soon_after_another_finished_is_brought_down(rest: tuple[Moment, ...]) -> None:
    story = play(*RUNNING, (50, killed(B0)), *rest, (60, finished(A0)), (62.2, ev.Ended(B1, code=137)))
    assert story.times(act.Kill, B1) == [60 + TOGETHER_S]
    assert story.records("step_exited")[-1]["cause"] == "cancelled"
    reason = story.records("group_given_up")[0]["reason"]
    assert "too late for another attempt: group 0 had already finished" in reason
    assert story.outcome() == "succeeded"


def test_groups_of_a_script_that_never_steps_end_when_they_like() -> None:
    story = play(*STARTED, (10, finished(A0)), (600, finished(B0)), (601, ev.Ended(LIGHT0, 0)))
    (end,) = story.all(act.Finish)
    assert end.outcome == "succeeded"
    assert "no step was reported" in end.reason  # a script without torchft's Manager must get a warning
    assert story.times(act.Kill, B0) == []


def test_a_lighthouse_that_awaits_its_restart_when_a_group_finishes_is_not_given_up() -> None:
    dies = ((61.5, killed(LIGHT0)), (61.8, ev.Ended(LIGHT1, 1)))
    story = play(*RUNNING, (60, finished(A0)), *dies, (70,))
    assert len(story.times(act.Launch, LIGHT2)) == 1
    assert story.records("group_given_up") == []


def test_a_group_that_begins_a_new_history_when_another_has_finished_is_brought_down() -> None:
    # torchft's Lighthouse drops the finished group after a second of silence and then lets the newcomer step alone.
    running = ((50, killed(B0)), (51, ready(B1)), (52, store(B1)))
    story = play(*RUNNING, *running, (60, finished(A0)), (61.5, stepped(B1, 1)), (63, ev.Ended(B1, code=137)))
    assert story.times(act.Kill, B1)[0] <= 60 + TOGETHER_S
    assert story.outcome() == "succeeded"
    assert story.ids(act.Launch, since=60) == []


def test_a_group_that_joins_in_time_is_let_finish() -> None:
    story = play(
        *RUNNING,
        (50, killed(B0)),
        (51, ready(B1)),
        (52, store(B1)),
        (60, finished(A0)),
        (61, stepped(B1, 11)),
        (70, finished(B1)),
    )
    assert story.ids(act.Kill) == [LIGHT0]
    assert story.state.ending is not None
    assert story.reason() == "all groups finished"


def test_a_group_that_waits_when_another_finishes_is_given_up_and_the_run_ends_there() -> None:
    slow = config(restart={"backoff_s": 60.0})
    story = play(*RUNNING, (30, killed(B0)), (40, killed(B1)), (60, finished(A0)), (70,), config=slow)
    assert story.ids(act.Launch, since=40) == []
    reason = story.records("group_given_up")[0]["reason"]
    assert "group 0 had already finished" in reason
    assert story.times(act.Kill, LIGHT0)[0] == 60 + TOGETHER_S
    assert story.outcome() == "succeeded"
