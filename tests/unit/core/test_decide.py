"""The state machine, as histories: what happened, and what was done about it.

Every decision of every history is also asked twice, and its records have to come first: see histories.Story.turn.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from histories import (
    A0,
    A1,
    A2,
    B0,
    B1,
    B2,
    B3,
    C0,
    C1,
    CHECKPOINT,
    FOREIGN,
    LIGHT0,
    LIGHT1,
    LIGHT2,
    LIGHT3,
    RUNNING,
    STARTED,
    URL,
    Moment,
    config,
    finished,
    granted,
    killed,
    node_lost,
    play,
    raised,
    ready,
    stepped,
    stop,
    store,
)

from ftslurm.config.schema import Fault
from ftslurm.core.groups.launching import FINISH_TOGETHER_S
from ftslurm.core.rules import KILL_AGAIN_S, deadline
from ftslurm.core.state.actions import Assign, Begin, Finish, Inject, Kill, Launch, Record, Stop
from ftslurm.core.state.events import (
    LAST_LINE,
    Ended,
    Event,
    Granted,
    Hello,
    LighthouseUp,
    NodesLeft,
    Progressed,
    Ready,
    StopAsked,
    StoreUp,
    TaskDone,
    TaskFailed,
    Warned,
)
from ftslurm.core.state.model import Announce, Cause, Evict, Evidence, Phase, Place, Rank, Saved, StepId

THREE = config(groups={"count": 3})
ALL_THREE: tuple[Moment, ...] = (
    (0, granted(4)),
    (1, LighthouseUp(LIGHT0, URL)),
    (2, ready(A0), ready(B0), ready(C0)),
    (3, store(A0), store(B0), store(C0)),
    (20, stepped(A0, 10), stepped(B0, 10), stepped(C0, 10)),
)


# --- the normal life of a run ----------------------------------------------------------------------------------------


def test_a_run_lives_and_succeeds() -> None:
    story = play(*RUNNING, (60, finished(A0)), (60.5, finished(B0)), (60.6, Ended(LIGHT0, code=137)))
    assert [r.event for r in story.all(Record)] == [
        "allocation_granted",
        *["step_launched"] * 3,
        *["step_ready"] * 3,
        *["group_joined", "progress"] * 2,
        *["progress"] * 2,
        *["step_exited"] * 3,
        "run_finished",
    ]
    assert [type(a) for a in story.all(object) if not isinstance(a, Record | Announce | Evict)] == [
        *[Launch] * 3,
        *[Assign] * 2,
        *[Begin] * 2,
        Kill,
        Finish,
    ]
    assert story.records("run_finished") == [
        {"outcome": "succeeded", "reason": "all groups finished", "steps": 10, "restarts": 0}
    ]
    assert story.state.finished
    assert story.phases() == [Phase.SUCCEEDED] * 2


def test_everything_is_launched_at_once_when_nodes_are_granted() -> None:
    story = play((0, granted(3)))
    assert story.all(Launch) == [
        Launch(LIGHT0, None, Place(("n1",))),  # on the controller's node: what kills one kills both
        Launch(A0, 0, Place(("n1",))),
        Launch(B0, 1, Place(("n2",))),
    ]
    ranks = [{"rank": 0, "node": "n2", "local_rank": 0, "node_rank": 0}]
    known = {"unit": "group-0001", "group": 1, "attempt": 0, "nodes": ["n2"], "slot": 0, "allocation": "7"}
    assert {**known, "ranks": ranks, "reason": "start"}.items() <= story.records("step_launched")[2].items()


def test_the_lighthouse_is_one_task_however_many_workers_a_group_has() -> None:
    lighthouse, group, *_ = play((0, granted(4)), config=WIDE).records("step_launched")
    assert (len(lighthouse["ranks"]), len(group["ranks"])) == (1, 4)


def test_nothing_is_launched_before_there_are_nodes() -> None:
    story = play((0,), (1000,))
    assert story.done == []
    assert deadline(story.state, 1000, story.config) is None


WIDE = config(groups={"nodes": 2, "workers": 2})
UP = LighthouseUp(LIGHT0, URL)


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param([*ready(A0, "n1", "n1", "n2"), UP], id="a task is missing"),
        pytest.param(ready(A0, "n1", "n1", "n2", "n2"), id="the Lighthouse is missing"),
        pytest.param([*ready(A0, "n1", "n1", "n2", "n2")[:-1], UP], id="a task is there, but not ready"),
    ],
)
def test_a_group_is_assigned_only_when_all_its_tasks_are_ready_and_the_lighthouse_is_up(missing: list[Event]) -> None:
    before = play((0, granted(4)), (2, missing), config=WIDE)
    assert before.ids(Assign) == []
    after = play((0, granted(4)), (2, missing), (3, UP, ready(A0, "n1", "n1", "n2", "n2")), config=WIDE)
    assert after.ids(Assign) == [A0]


def test_a_task_that_is_ready_before_it_has_said_hello_is_waited_for() -> None:
    early = play((0, granted(3)), (1, UP), (2, Ready(A0, 0)))
    assert early.ids(Assign) == []
    story = play((0, granted(3)), (1, UP), (2, Ready(A0, 0)), (3, Hello(A0, 0, "n1")))
    assert story.all(Assign) == [Assign(A0, 0, (Rank(0, "n1", 0, 0),), URL)]


def test_a_task_that_the_step_does_not_have_is_ignored() -> None:
    assert play((0, granted(3)), (1, Hello(A0, 1, "n1"))).state == play((0, granted(3)), (1,)).state


def test_a_lighthouse_that_comes_last_lets_all_groups_be_assigned() -> None:
    story = play((0, granted(3)), (2, ready(A0), ready(B0)), (3, UP))
    assert story.all(Assign) == [
        Assign(A0, 0, (Rank(0, "n1", 0, 0),), URL),
        Assign(B0, 1, (Rank(0, "n2", 0, 0),), URL),
    ]


def test_ranks_follow_the_tasks_also_when_slurm_deals_them_out_cyclically() -> None:
    story = play((0, granted(4)), (1, UP), (2, ready(A0, "n1", "n2", "n1", "n2")), config=WIDE)
    ranks = (Rank(0, "n1", 0, 0), Rank(2, "n2", 0, 1), Rank(1, "n1", 1, 0), Rank(3, "n2", 1, 1))
    assert story.all(Assign) == [Assign(A0, 0, ranks, URL)]
    assert [row["rank"] for row in story.records("step_ready")[1]["ranks"]] == [0, 2, 1, 3]


def test_the_journal_repeats_the_ranks_only_when_they_are_not_the_expected_ones() -> None:
    story = play((0, granted(4)), (1, UP), (2, ready(A0, "n1", "n1", "n2", "n2")), config=WIDE)
    (_, group) = story.records("step_ready")
    assert (group["unit"], group["attempt"], group["seconds"]) == ("group-0000", 0, 2)
    assert "ranks" not in group


def test_at_the_first_start_the_groups_begin_together() -> None:
    alone = play(*STARTED[:-1], (3, store(A0)))
    assert alone.ids(Begin) == []
    both = play(*STARTED[:-1], (3, store(A0)), (9, store(B0)))
    assert both.all(Begin, since=9) == [Begin(A0, "n1", 29500), Begin(B0, "n2", 29500)]


def test_a_group_that_fails_at_the_first_start_is_not_waited_for() -> None:
    story = play(*STARTED[:-1], (3, store(A0)), (4, killed(B0)))
    assert story.ids(Begin) == [A0]


def test_a_group_has_joined_with_its_first_commit() -> None:
    story = play(*STARTED, (4, stepped(A0, 0, committed=0)), (5, stepped(A0, 1)), (6, stepped(A0, 2)))
    assert [p["step"] for p in story.records("progress")] == [0, 1, 2]
    (joined,) = story.records("group_joined")
    known = {"group": 0, "attempt": 0, "step": 1, "quorum_id": 3, "participants": 2, "seconds": 5, "recovery_s": None}
    assert known.items() <= joined.items()


@pytest.mark.parametrize("end", [[Ended(A0, code=0)], [TaskDone(A0, 0), Ended(A0, code=1)]])
def test_a_step_that_ends_with_0_or_whose_tasks_all_did_has_succeeded(end: list[Event]) -> None:
    assert play(*RUNNING, (60, end)).phases() == [Phase.SUCCEEDED, Phase.RUNNING]


def test_the_lighthouse_goes_last() -> None:
    story = play(*RUNNING, (60, finished(A0)), (61, finished(B0)), (62, Ended(LIGHT0, code=137)))
    assert story.times(Kill, LIGHT0) == [61]
    assert story.all(Finish) == [Finish("succeeded", "all groups finished")]
    assert story.records("step_exited")[-1]["cause"] == "cancelled"


# --- a group fails ---------------------------------------------------------------------------------------------------


def test_a_failed_group_is_relaunched_alone_and_the_others_are_not_touched() -> None:
    before, after = play(*RUNNING), play(*RUNNING, (30, killed(B0)))
    assert after.all(Launch, since=30) == [Launch(B1, 1, Place(("n2",)))]
    assert after.state.groups[0] == before.state.groups[0]
    assert after.state.lighthouse == before.state.lighthouse
    assert after.ids(Kill) + after.ids(Stop) == []


def test_the_journal_tells_the_story_of_a_failure() -> None:
    story = play(*RUNNING, (30, TaskFailed(B0, Evidence(0, None, signal=9))), (30.3, Ended(B0, code=137)))
    (exited,), (scheduled,) = story.records("step_exited"), story.records("restart_scheduled")
    known = {"unit": "group-0001", "group": 1, "attempt": 0, "cause": "killed", "code": None, "signal": 9}
    known |= {"node": "n2", "rank": 0, "error": None, "step": 10, "noticed": 30}
    assert known.items() <= exited.items()
    reason = "restart: killed by signal 9 (SIGKILL) on n2"
    assert {"group": 1, "attempt": 1, "due": 30.3, "reason": reason}.items() <= scheduled.items()
    assert story.records("step_launched", since=30)[0]["reason"] == reason


def test_a_step_is_brought_down_at_the_first_sign_and_relaunched_when_it_is_gone() -> None:
    story = play(*RUNNING, (30, TaskFailed(B0, Evidence(0, None, signal=9))), (30.3, Ended(B0, code=137)))
    assert story.times(Kill, B0) == [30]
    assert story.times(Launch, B1) == [30.3]


def test_a_restarted_group_begins_alone_with_its_new_ranks() -> None:
    wide = config(groups={"nodes": 2, "workers": 1})
    started = (
        (0, granted(5)),
        (1, UP),
        (2, ready(A0, "n1", "n2"), ready(B0, "n3", "n4")),
        (3, store(A0), store(B0)),
        (20, stepped(A0, 10), stepped(B0, 10)),
    )
    story = play(*started, (30, node_lost(B0, "n3")), (32, ready(B1, "n4", "n5")), (33, store(B1)), config=wide)
    assert story.all(Launch, since=30) == [Launch(B1, 1, Place(("n4", "n5")))]
    assert story.all(Assign, since=30) == [Assign(B1, 1, (Rank(0, "n4", 0, 0), Rank(1, "n5", 0, 1)), URL, attempt=1)]
    assert story.all(Begin, since=30) == [Begin(B1, "n2", 29500, heals=True, floor=9)]


def test_a_quick_group_begins_when_the_lighthouse_has_forgotten_its_last_attempt() -> None:
    stock = config(lighthouse={"kind": "torchft", "heartbeat_timeout_ms": 1000})
    story = play(*RUNNING, (30, killed(B0)), (30.1, ready(B1)), (30.2, store(B1)), (35,), config=stock)
    heartbeats, ticks = story.config.lighthouse.heartbeat_timeout_ms, 2 * story.config.lighthouse.quorum_tick_ms
    assert story.times(Assign, B1) == [30.1]
    assert story.times(Begin, B1) == [pytest.approx(30 + (heartbeats + ticks) / 1000, abs=0.1)]
    assert story.times(Begin, B1)[0] > 30 + (heartbeats + ticks) / 1000


def test_a_slow_group_begins_when_its_store_is_up() -> None:
    story = play(*RUNNING, (30, killed(B0)), (32, ready(B1)), (33, store(B1)), (35,))
    assert story.times(Begin, B1) == [33]


def test_recovery_is_counted_from_the_first_sign_to_the_first_commit() -> None:
    story = play(
        *RUNNING,
        (30, TaskFailed(B0, Evidence(0, None, signal=9))),
        (30.3, Ended(B0, code=137)),
        (31, ready(B1)),
        (32, store(B1)),
        (33.5, stepped(B1, 44)),
    )
    joined = story.records("group_joined", since=30)
    assert [(j["attempt"], j["seconds"], j["recovery_s"]) for j in joined] == [(1, 3.2, 3.5)]


def test_a_step_that_ends_without_a_sign_is_noticed_when_it_is_gone() -> None:
    again = ((31, ready(B1)), (32, store(B1)), (33, stepped(B1, 40)), (50, Ended(B1, None, signal=9)))
    back = ((51, ready(B2)), (52, store(B2)), (54, stepped(B2, 60)))
    story = play(*RUNNING, (30, killed(B0)), *again, *back)
    assert [exited["noticed"] for exited in story.records("step_exited")] == [30, 50]
    assert [joined["recovery_s"] for joined in story.records("group_joined", since=30)] == [3, 4]


def test_each_failure_waits_twice_as_long_as_the_one_before() -> None:
    story = play(
        *RUNNING, (30, killed(B0)), (40, killed(B1)), (50, killed(B2)), (60,), config=config(restart={"backoff_s": 2})
    )
    assert [story.times(Launch, step) for step in (B1, B2, B3)] == [[30], [42], [54]]


def test_waiting_for_the_backoff_the_group_is_pending_and_asked_about_when_it_is_due() -> None:
    story = play(*RUNNING, (30, killed(B0)), (40, killed(B1)))
    assert story.phases() == [Phase.RUNNING, Phase.PENDING]
    assert deadline(story.state, 40, story.config) == 41


def test_two_groups_that_fail_in_the_same_decision_are_both_relaunched() -> None:
    story = play(*ALL_THREE, (30, killed(B0), killed(C0)), config=THREE)
    assert [(launch.id.unit, launch.place) for launch in story.all(Launch, since=30)] == [
        ("group-0001", Place(("n2",))),
        ("group-0002", Place(("n3",))),
    ]
    assert story.outcome() is None


def test_two_groups_whose_nodes_die_in_the_same_decision_do_not_move_to_the_same_spare_node() -> None:
    story = play(*ALL_THREE, (30, node_lost(B0, "n2"), node_lost(C0, "n3")), config=THREE)
    assert [launch.place for launch in story.all(Launch, since=30)] == [Place(("n4",))]
    assert story.phases() == [Phase.RUNNING, Phase.STARTING, Phase.PENDING]


def test_policy_never_gives_the_group_up_and_the_others_go_on() -> None:
    story = play(
        *RUNNING,
        (30, killed(B0)),
        (60, finished(A0)),
        (61, Ended(LIGHT0, 0)),
        config=config(restart={"policy": "never"}),
    )
    assert story.records("group_given_up") == [
        {"group": 1, "reason": "killed by signal 9 (SIGKILL) on n2; restart.policy=never"}
    ]
    assert story.ids(Launch, since=1) == []
    assert story.all(Finish) == [Finish("succeeded", "1 of 2 groups finished; group 1 did not")]


@pytest.mark.parametrize(("least", "goes_on"), [(1, True), (2, False)])
def test_a_used_up_budget_ends_the_run_only_if_fewer_than_groups_min_are_left(least: int, goes_on: bool) -> None:
    once = config(groups={"min": least}, restart={"max_per_group": 1})
    story = play(*RUNNING, (30, killed(B0)), (40, killed(B1)), config=once)
    assert "restart.max_per_group=1" in story.records("group_given_up")[0]["reason"]
    assert story.phases()[1] is Phase.FAILED
    if goes_on:
        assert story.outcome() is None
        assert story.phases()[0] is Phase.RUNNING
    else:
        assert story.outcome() == "failed"
        assert "groups.min=2" in story.reason()
        assert "restart.max_per_group=1" in story.reason()
        assert story.ids(Stop) == [A0]


def test_failures_older_than_the_window_are_forgotten() -> None:
    once = config(restart={"max_per_group": 1, "window_s": 100.0})
    story = play(*RUNNING, (30, killed(B0)), (131, killed(B1)), config=once)
    assert story.times(Launch, B2) == [131]


# --- nodes are lost --------------------------------------------------------------------------------------------------


def test_a_group_whose_node_is_lost_moves_to_a_spare_one_and_nothing_is_placed_there_again() -> None:
    story = play(*RUNNING, (30, node_lost(B0, "n2")), (40, killed(B1)), (50,))
    assert [launch.place for launch in story.all(Launch, since=30)] == [Place(("n3",)), Place(("n3",))]
    assert story.state.nodes.avoid == {"n2"}
    assert story.records("step_exited", since=30)[0]["cause"] == "node_lost"


def test_without_a_spare_node_the_group_waits_and_the_others_go_on() -> None:
    two = ((0, granted(2)), *RUNNING[1:])
    story = play(*two, (30, node_lost(B0, "n2")), (500, stepped(A0, 900)))
    assert story.phases() == [Phase.RUNNING, Phase.PENDING]
    assert story.ids(Launch, since=30) == []
    due = deadline(story.state, 500, story.config)
    assert due is not None  # it is looked for now and then
    assert due >= 510  # and not in a busy loop


def test_a_waiting_group_gets_the_nodes_of_one_that_was_given_up() -> None:
    once = config(groups={"count": 3}, restart={"max_per_group": 1})
    full = ((0, granted(3)), *ALL_THREE[1:])
    story = play(*full, (30, killed(C0)), (40, node_lost(B0, "n2")), (50, killed(C1)), config=once)
    assert story.phases() == [Phase.RUNNING, Phase.STARTING, Phase.FAILED]
    assert story.all(Launch, since=40) == [Launch(B1, 1, Place(("n3",)))]


# --- finishing -------------------------------------------------------------------------------------------------------


def test_a_group_that_fails_after_another_has_succeeded_is_not_restarted() -> None:
    story = play(*RUNNING, (60, finished(A0)), (61, killed(B0)), (62, Ended(LIGHT0, 0)))
    assert story.ids(Launch, since=1) == []
    assert "group 0 had already finished" in story.records("group_given_up")[0]["reason"]
    assert story.all(Finish) == [Finish("succeeded", "1 of 2 groups finished; group 1 did not")]


def test_too_few_groups_that_finish_are_no_success() -> None:
    story = play(*RUNNING, (60, finished(A0)), (61, killed(B0)), config=config(groups={"min": 2}))
    assert story.outcome() == "failed"
    assert "groups.min=2" in story.reason()


def test_a_group_that_has_joined_may_finish_as_late_as_it_likes() -> None:
    story = play(*RUNNING, (60, finished(A0)), (600, finished(B0)), (601, Ended(LIGHT0, 0)))
    assert story.all(Finish) == [Finish("succeeded", "all groups finished")]


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param((), id="starting"),
        pytest.param(((51, ready(B1)), (52, store(B1))), id="running, but not joined"),
    ],
)
def test_a_group_that_has_not_joined_soon_after_another_finished_is_brought_down(rest: tuple[Moment, ...]) -> None:
    story = play(*RUNNING, (50, killed(B0)), *rest, (60, finished(A0)), (62.2, Ended(B1, code=137)))
    assert story.times(Kill, B1) == [60 + FINISH_TOGETHER_S]
    assert story.records("step_exited")[-1]["cause"] == "cancelled"
    assert "group 0 had already finished" in story.records("group_given_up")[0]["reason"]
    assert story.outcome() == "succeeded"


def test_groups_of_a_script_that_never_steps_end_when_they_like() -> None:
    story = play(*STARTED, (10, finished(A0)), (600, finished(B0)), (601, Ended(LIGHT0, 0)))
    (end,) = story.all(Finish)
    assert end.outcome == "succeeded"
    assert "no step was ever committed" in end.reason  # whoever forgot torchft's Manager should hear of it
    assert story.times(Kill, B0) == []


def test_a_lighthouse_that_waits_for_its_restart_when_a_group_finishes_is_not_given_up() -> None:
    dies = ((61.5, killed(LIGHT0)), (61.8, Ended(LIGHT1, 1)))
    story = play(*RUNNING, (60, finished(A0)), *dies, (70,))
    assert len(story.times(Launch, LIGHT2)) == 1
    assert story.records("group_given_up") == []


def test_a_group_that_begins_a_new_history_when_another_has_finished_is_brought_down() -> None:
    # torchft's Lighthouse forgets the finished group after a second of silence and then lets the newcomer step alone.
    running = ((50, killed(B0)), (51, ready(B1)), (52, store(B1)))
    story = play(*RUNNING, *running, (60, finished(A0)), (61.5, stepped(B1, 1)), (63, Ended(B1, code=137)))
    assert story.times(Kill, B1)[0] <= 60 + FINISH_TOGETHER_S
    assert story.outcome() == "succeeded"
    assert story.ids(Launch, since=60) == []


def test_a_group_that_joins_in_time_is_let_finish() -> None:
    story = play(
        *RUNNING,
        (50, killed(B0)),
        (51, ready(B1)),
        (52, store(B1)),
        (60, finished(A0)),
        (61, stepped(B1, 99)),
        (70, finished(B1)),
    )
    assert story.ids(Kill) == [LIGHT0]
    assert story.state.ending is not None
    assert story.reason() == "all groups finished"


def test_a_group_that_waits_when_another_finishes_is_given_up_and_the_run_ends_there() -> None:
    slow = config(restart={"backoff_s": 60.0})
    story = play(*RUNNING, (30, killed(B0)), (40, killed(B1)), (60, finished(A0)), (70,), config=slow)
    assert story.ids(Launch, since=40) == []
    assert "had already finished" in story.records("group_given_up")[0]["reason"]
    assert story.times(Kill, LIGHT0)[0] == 60 + FINISH_TOGETHER_S
    assert story.outcome() == "succeeded"


# --- no live state is left -------------------------------------------------------------------------------------------

DAMAGED = Saved("/ckpt/step-00000009", None, "x is missing")
RESUME = config(restart={"on_state_loss": "checkpoint"})


@pytest.mark.parametrize(
    ("settings", "checkpoint", "names"),
    [
        pytest.param(config(), None, "set checkpoint.every=STEPS", id="no checkpoint"),
        pytest.param(RESUME, DAMAGED, "(/ckpt/step-00000009: x is missing)", id="all damaged"),
        pytest.param(RESUME, None, "there is no checkpoint", id="none, whatever the setting"),
        pytest.param(config(checkpoint={"every": 9}), None, "none was complete yet (checkpoint.every=9)", id="not yet"),
        pytest.param(config(), FOREIGN, "set restart.on_state_loss=checkpoint", id="the script's own files"),
    ],
)
def test_all_groups_down_at_once_fails_the_run_and_names_the_setting(settings, checkpoint, names) -> None:
    story = play(*RUNNING, (30, killed(A0, checkpoint=checkpoint), killed(B0, checkpoint=checkpoint)), config=settings)
    assert story.outcome() == "failed"
    assert "state of step 10" in story.reason()
    assert names in story.reason()
    assert story.ids(Launch, since=30) == []


@pytest.mark.parametrize(("settings", "checkpoint"), [(config(), CHECKPOINT), (RESUME, FOREIGN), (RESUME, CHECKPOINT)])
def test_all_groups_down_at_once_with_a_checkpoint_are_all_restarted_from_it(settings, checkpoint) -> None:
    story = play(*RUNNING, (30, killed(A0, checkpoint=checkpoint), killed(B0, checkpoint=checkpoint)), config=settings)
    assert story.ids(Launch, since=30) == [A1, B1]
    assert story.outcome() is None
    (full,) = story.records("full_restart")
    assert (full["step"], full["checkpoint"], full["checkpoint_step"]) == (10, checkpoint.path, checkpoint.step)


def test_all_groups_down_after_a_single_step_have_lost_it() -> None:
    assert play(*STARTED, (5, stepped(A0, 1)), (30, killed(A0), killed(B0))).outcome() == "failed"


def test_groups_that_resume_from_a_checkpoint_may_be_behind_where_the_run_was() -> None:
    down = (30, killed(A0, checkpoint=CHECKPOINT), killed(B0, checkpoint=CHECKPOINT))
    up = ((31, ready(A1), ready(B1)), (32, store(A1), store(B1)), (33, stepped(A1, 6), stepped(B1, 6)))
    story = play(*RUNNING, down, *up, (40,), config=RESUME)
    assert story.phases() == [Phase.RUNNING, Phase.RUNNING]
    assert [unit.joined for unit in story.state.groups] == [True, True]


def test_a_newcomer_whose_first_step_is_aborted_is_left_alone() -> None:
    begun = ((31, ready(B1)), (32, store(B1)))
    story = play(*RUNNING, (30, killed(B0)), *begun, (33, stepped(B1, 0, committed=0)), (34, stepped(B1, 41)))
    assert story.ids(Kill) == []
    assert [joined["step"] for joined in story.records("group_joined", since=30)] == [41]


def test_a_group_whose_reports_come_a_little_later_than_the_others_is_left_alone() -> None:
    reports = ((5, stepped(A0, 1), stepped(B0, 1)), (9, stepped(A0, 10, committed=10), stepped(B0, 9, committed=9)))
    assert play(*STARTED, *reports).ids(Kill) == []


def test_all_groups_down_before_the_first_commit_have_lost_nothing() -> None:
    story = play(*STARTED, (30, killed(A0), killed(B0)))
    assert story.ids(Launch, since=30) == [A1, B1]


@pytest.mark.parametrize(
    "so_far",
    [
        pytest.param([], id="just launched"),
        pytest.param([(31, ready(B1))], id="assigned"),
        pytest.param([(31, ready(B1)), (32, store(B1))], id="its script runs"),
    ],
)
def test_a_group_that_has_not_joined_does_not_train_on_alone_from_step_0(so_far: list[Moment]) -> None:
    story = play(*RUNNING, (30, killed(B0)), *so_far, (33, killed(A0)), (33.1, store(B1)))
    story.turn(34, [Ended(B1, code=137)])
    assert story.outcome() == "failed"
    assert "restart.on_state_loss" in story.reason()
    assert story.ids(Begin, since=33) == []


def test_nobody_begins_in_the_decision_that_ends_the_run() -> None:
    story = play(*RUNNING, (30, killed(B0)), (31, ready(B1)), (33, store(B1), killed(A0)))
    assert story.ids(Begin, since=30) == []
    assert story.ids(Kill, since=33) == [B1]


@pytest.mark.parametrize("settings", [pytest.param(config(), id="fail"), pytest.param(RESUME, id="checkpoint")])
def test_nor_while_the_last_live_group_is_still_being_brought_down(settings) -> None:
    # On a dead node srun takes seconds to end; meanwhile torchft's Lighthouse lets the newcomer step alone, from 0.
    story = play(
        *RUNNING,
        (30, killed(B0)),
        (31, ready(B1)),
        (32, store(B1)),
        (33, TaskFailed(A0, Evidence(None, "n1", node_lost=True))),
        (35, stepped(B1, 1)),
        (39, Ended(A0, code=137), Ended(B1, code=137)),
        config=settings,
    )
    assert story.outcome() == "failed"
    assert story.ids(Launch, since=33) == []
    assert "restart.on_state_loss" in story.reason()


def test_a_live_group_that_joined_is_enough_to_heal_from() -> None:
    story = play(
        *RUNNING, (30, killed(B0)), (31, ready(B1)), (32, store(B1)), (33, stepped(B1, 40)), (34, killed(A0)), (35,)
    )
    assert story.ids(Launch, since=34) == [A1]
    assert story.outcome() is None


def test_the_journal_has_each_sign_once_and_a_last_line_only_where_nothing_better_was_said() -> None:
    printed = f"{LAST_LINE}KeyError: 'lr'"
    said = [Evidence(0, None, code=1, error=words) for words in ("KeyError: 'lr'", printed, "KeyError: 'lr'")]
    signs = [*said, Evidence(1, None, code=3, error=printed), Evidence(1, None, code=3, error=printed)]
    story = play(*RUNNING, (30, *(TaskFailed(B0, sign) for sign in signs), Ended(B0, code=1)))
    (exited,) = story.records("step_exited")
    assert exited["evidence"] == ["task 0 on n2: exit code 1: KeyError: 'lr'", f"task 1: exit code 3: {printed}"]


# --- starts that go wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("started", [True, False])
def test_the_same_error_in_every_group_before_the_first_step_is_the_scripts_and_fails_the_run_at_once(started) -> None:
    error = "ModuleNotFoundError: No module named 'models'"
    story = play(*STARTED, (4, raised(A0, error, started)), (4.5, raised(B0, error, started)))
    assert story.outcome() == "failed"
    assert error in story.reason()
    assert story.ids(Launch, since=4) == [A1]


def test_different_errors_are_tried_again() -> None:
    story = play(*STARTED, (4, raised(A0, "ValueError: x")), (4.5, raised(B0, "ValueError: y")), (9,))
    assert story.outcome() is None
    assert story.ids(Launch, since=4) == [A1, B1]


def test_the_same_error_after_the_first_step_is_tried_again() -> None:
    back = ((31, ready(B1)), (32, store(B1)), (33, stepped(B1, 40)))
    story = play(*RUNNING, (30, raised(B0)), *back, (50, raised(A0)), (51,))
    assert story.outcome() is None
    assert story.ids(Launch, since=50) == [A1]


@pytest.mark.parametrize(
    "evidence",
    [
        pytest.param(Evidence(0, None, code=3), id="an exit code says nothing"),
        pytest.param(Evidence(0, None, out_of_memory=True, error="Out Of Memory"), id="another node may have more"),
    ],
)
def test_ends_that_are_alike_but_no_errors_of_the_script_are_tried_again(evidence: Evidence) -> None:
    ends = [event for step in (A0, B0) for event in (TaskFailed(step, evidence), Ended(step, code=137))]
    story = play(*STARTED, (4, ends), (9,))
    assert story.ids(Launch, since=4) == [A1, B1]


ONE = config(groups={"count": 1})
ALONE: tuple[Moment, ...] = ((0, granted(1)), (1, UP), (2, ready(A0)), (3, store(A0)))


def test_a_lone_group_may_fail_once_by_chance_but_not_twice_in_the_same_words() -> None:
    once = play(*ALONE, (4, raised(A0)), config=ONE)
    assert once.ids(Launch, since=4) == [A1]
    twice = play(*ALONE, (4, raised(A0)), (6, raised(A1)), config=ONE)
    assert twice.outcome() == "failed"
    assert "ValueError: x" in twice.reason()


@pytest.mark.parametrize("first", [killed(A0), raised(A0, "OSError: port taken")])
def test_a_lone_group_that_fails_in_two_different_ways_is_tried_again(first: list[Event]) -> None:
    history = (*ALONE, (4, first), (6, raised(A1)), (60,))
    story = play(*history, config=ONE)
    assert story.outcome() is None
    assert story.ids(Launch, since=4) == [A1, A2]
    assert play(*history, (61, raised(A2)), config=ONE).outcome() == "failed"


def test_a_step_that_takes_too_long_to_start_is_killed_and_the_restart_policy_asked() -> None:
    story = play((0, granted(3)), (1, UP), (2, ready(A0), ready(B0)), (3, store(A0)), (602.3, Ended(B0, 137)))
    assert story.times(Kill, B0) == [602]
    (exited,) = story.records("step_exited")
    assert (exited["cause"], exited["noticed"]) == ("start_timeout", 602)
    assert story.times(Launch, B1) == [602.3]


def test_a_step_that_runs_has_started_in_time() -> None:
    assert play(*RUNNING, (5000,)).ids(Kill) == []


def test_a_step_that_cannot_even_be_launched_is_a_failed_start() -> None:
    error = "cannot start srun: No such file"
    events = [TaskFailed(B0, Evidence(None, None, error=error, started=False)), Ended(B0, None)]
    story = play((0, granted(3)), (0.1, events))
    assert story.records("step_exited")[0]["cause"] == "start_failed"
    assert story.ids(Launch, since=0.1) == [B1]


# --- the Lighthouse --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "end",
    [
        pytest.param([Ended(LIGHT0, None, signal=9)], id="it is simply gone"),
        pytest.param(killed(LIGHT0), id="its guard had a last word"),
    ],
)
def test_a_lighthouse_that_dies_is_relaunched_at_once_and_the_groups_are_not_touched(end: list[Event]) -> None:
    before, after = play(*RUNNING), play(*RUNNING, (30, end), (32, LighthouseUp(LIGHT1, URL)))
    assert after.times(Launch, LIGHT1) == [30]
    assert after.records("step_launched", since=30)[0]["reason"].startswith("restart: killed by signal 9")
    assert after.state.groups == before.state.groups
    assert after.ids(Assign, since=30) + after.ids(Begin, since=30) == []
    assert after.state.lighthouse.phase is Phase.RUNNING


def test_a_lighthouse_may_die_as_often_as_it_likes_once_it_has_been_up() -> None:
    lives = [
        ((t, killed(StepId("lighthouse", n))), (t + 5, LighthouseUp(StepId("lighthouse", n + 1), URL)))
        for n, t in enumerate(range(30, 130, 10))
    ]
    story = play(*RUNNING, *(moment for life in lives for moment in life))
    assert story.outcome() is None
    assert story.state.lighthouse.attempt == 10


def dud(step: StepId, how: str) -> list[Event]:
    refused = TaskFailed(step, Evidence(0, None, code=1, error="address already in use", started=False))
    return {
        "it says why": [refused, TaskFailed(step, Evidence(0, None, code=1)), Ended(step, code=1)],
        "srun fails": [Ended(step, code=78, launcher_failed=True)],
        "it ends without a word": [Ended(step, code=1)],
        "its process is killed": killed(step),
    }[how]


DUDS = ["it says why", "srun fails", "it ends without a word", "its process is killed"]


@pytest.mark.parametrize("how", DUDS)
def test_a_lighthouse_that_cannot_start_fails_the_run_after_three_attempts(how: str) -> None:
    steps = [LIGHT0] * 3 if how == "srun fails" else [LIGHT0, LIGHT1, LIGHT2]  # a refused launch is no attempt
    story = play((0, granted(3)), *((1 + 2 * n, dud(step, how)) for n, step in enumerate(steps)), (9,))
    assert [t for t, action in story.done if isinstance(action, Launch) and action.id in steps][:2] == [0, 2]
    assert story.outcome() == "failed"
    assert "the Lighthouse cannot start" in story.reason()
    assert story.times(Launch, LIGHT3) == []


@pytest.mark.parametrize("how", DUDS)
def test_two_dud_starts_are_forgiven_also_after_a_long_life(how: str) -> None:
    second, last = (LIGHT1, LIGHT1) if how == "srun fails" else (LIGHT2, LIGHT3)
    story = play(*RUNNING, (30, killed(LIGHT0)), (32, dud(LIGHT1, how)), (34, dud(second, how)), (36,))
    assert story.outcome() is None
    assert story.times(Launch, last)[-1] > 34


@pytest.mark.parametrize(("until", "outcome"), [(60, None), (700, "failed")])
def test_a_training_is_not_thrown_away_for_three_dud_starts_but_for_ten_minutes_of_them(
    until: int, outcome: str | None
) -> None:
    duds = [(32 + 2 * n, dud(StepId("lighthouse", n + 1), DUDS[2])) for n in range((until - 32) // 2)]
    assert play(*RUNNING, (30, killed(LIGHT0)), *duds, (until,)).outcome() == outcome


def test_dud_starts_count_only_in_a_row() -> None:
    fourth = StepId("lighthouse", 4)
    up = ((36, LighthouseUp(LIGHT3, URL)), (40, killed(LIGHT3)), (42, dud(fourth, DUDS[0])), (44,))
    story = play(*RUNNING, (30, killed(LIGHT0)), (32, dud(LIGHT1, DUDS[0])), (34, dud(LIGHT2, DUDS[0])), *up)
    assert story.outcome() is None
    assert story.times(Launch, fourth) == [40]  # it had been up: at once


def test_a_lighthouse_that_never_says_its_address_fails_the_run_after_three_attempts() -> None:
    short = config(health={"start_timeout_s": 10.0})
    gone = ((10.5, Ended(LIGHT0, 137)), (22, Ended(LIGHT1, 137)), (33.5, Ended(LIGHT2, 137)))
    story = play((0, granted(3)), *gone, (60,), config=short)
    assert [story.times(Kill, step)[0] for step in (LIGHT0, LIGHT1, LIGHT2)] == [10, 21.5, 33]
    assert story.times(Launch, LIGHT3) == []
    assert story.outcome() == "failed"
    assert "the Lighthouse cannot start" in story.reason()


def test_a_lighthouse_that_is_being_killed_does_not_come_back_to_life() -> None:
    short = config(health={"start_timeout_s": 10.0})
    story = play((0, granted(3)), (10,), (10.1, UP), config=short)
    assert story.times(Kill, LIGHT0) == [10]
    assert story.state.lighthouse.phase is Phase.STOPPING


# --- stop ------------------------------------------------------------------------------------------------------------


def test_a_run_that_is_stopped_before_it_has_nodes_ends_at_once() -> None:
    story = play((0,), (1, stop()))
    assert [type(a) for a in story.all(object)] == [Record, Record, Finish]
    assert story.records("command") == [{"what": "stop", "by": "ann", "reason": "stopped by ann"}]
    assert story.records("run_finished")[0]["outcome"] == "stopped"
    assert {unit.phase for unit in story.state.units} == {Phase.FAILED}


def test_stop_kills_at_once_what_is_still_starting() -> None:
    story = play((0, granted(3)), (1, stop()), (1.3, Ended(A0, 137), Ended(B0, 137)), (1.5, Ended(LIGHT0, 137)))
    assert story.ids(Stop) == []
    assert [story.times(Kill, step) for step in (A0, B0, LIGHT0)] == [[1], [1], [1.3]]
    assert story.all(Finish) == [Finish("stopped", "stopped by ann")]


def test_stop_asks_running_groups_first_and_kills_them_after_the_grace() -> None:
    story = play(*RUNNING, (30, stop()), (32, Ended(A0, 0)), (39.9,))
    assert story.ids(Stop) == [A0, B0]
    assert story.ids(Kill) == []
    story = play(*RUNNING, (30, stop()), (32, Ended(A0, 0)), (40.3, Ended(B0, 137)), (41, Ended(LIGHT0, 0)))
    assert story.times(Kill, B0) == [40]
    assert [e["cause"] for e in story.records("step_exited")] == ["cancelled"] * 3
    assert [e["noticed"] for e in story.records("step_exited")] == [30, 30, 40.3]
    assert story.all(Finish) == [Finish("stopped", "stopped by ann")]


def test_stop_also_ends_groups_that_wait_for_their_restart() -> None:
    story = play(
        *RUNNING, (30, killed(B0)), (40, killed(B1)), (40.1, stop()), (41, Ended(A0, 0)), (42, Ended(LIGHT0, 0))
    )
    assert story.ids(Launch, since=40) == []
    assert story.state.finished
    assert {unit.phase for unit in story.state.units} == {Phase.FAILED}


def test_stop_while_a_step_is_being_brought_down_waits_for_its_end() -> None:
    story = play(*RUNNING, (30, TaskFailed(B0, Evidence(0, None, signal=9))), (30.1, stop()), (31, Ended(A0, 0)))
    assert not story.state.finished
    assert story.ids(Kill) == [B0]
    story = play(*RUNNING, (30, TaskFailed(B0, Evidence(0, None, signal=9))), (30.1, stop()), (31, Ended(B0, 137)))
    assert story.ids(Launch, since=30) == []


def test_a_second_stop_changes_nothing_and_hurries_nobody() -> None:
    once = play(*RUNNING, (30, stop()), (35,))
    twice = play(*RUNNING, (30, stop()), (35, stop("again")))
    assert once.state == twice.state
    assert [a for _, a in twice.done[len(once.done) :]] == [
        Record("command", {"what": "stop", "by": "ann", "reason": "again"})
    ]


def test_a_stop_at_the_time_limit_says_so() -> None:
    limit = StopAsked("the time limit is near", "slurm", Cause.TIME_LIMIT)
    story = play(*RUNNING, (30, limit), (31, Ended(A0, 0), Ended(B0, 0)), (32, Ended(LIGHT0, 0)))
    assert [e["cause"] for e in story.records("step_exited")] == ["time_limit", "time_limit", "cancelled"]
    assert story.outcome() == "stopped"


def test_a_kill_is_repeated_until_the_step_is_gone() -> None:
    story = play(*RUNNING, (30, TaskFailed(B0, Evidence(0, None, signal=9))), (47, Ended(B0, 137)), (60,))
    assert story.times(Kill, B0) == [30, 30 + KILL_AGAIN_S, 30 + 2 * KILL_AGAIN_S, 30 + 3 * KILL_AGAIN_S]


def test_signs_that_follow_the_first_do_not_kill_again() -> None:
    story = play(*RUNNING, *((30 + n / 10, TaskFailed(B0, Evidence(0, None, signal=9))) for n in range(5)))
    assert story.times(Kill, B0) == [30]


# --- late, early and repeated words ----------------------------------------------------------------------------------


def every_event(step: StepId) -> list[Event]:
    return [
        Hello(step, 0, "n9"),
        Ready(step, 0),
        StoreUp(step, "n9", 1),
        Progressed(step, 99, 1, 1, 1, 0),
        TaskDone(step, 0),
        TaskFailed(step, Evidence(0, "n9", node_lost=True)),
        Ended(step, code=1),
    ]


@pytest.mark.parametrize("event", every_event(B0), ids=lambda event: type(event).__name__)
def test_a_late_word_of_an_old_attempt_is_ignored(event: Event) -> None:
    before = play(*RUNNING, (30, killed(B0)))
    after = play(*RUNNING, (30, killed(B0)), (30, event))
    assert (before.state, before.done) == (after.state, after.done)


@pytest.mark.parametrize("event", every_event(A0), ids=lambda event: type(event).__name__)
def test_a_word_after_the_end_is_ignored(event: Event) -> None:
    before = play(*RUNNING, (30, finished(A0)))
    after = play(*RUNNING, (30, finished(A0)), (30, event))
    assert (before.state, before.done) == (after.state, after.done)


@pytest.mark.parametrize("event", every_event(StepId("group-0009", 0)), ids=lambda event: type(event).__name__)
def test_a_word_of_an_unknown_group_is_ignored(event: Event) -> None:
    assert play(*RUNNING, (30, event)).state == play(*RUNNING).state


def test_a_lighthouse_that_is_over_is_not_up_again() -> None:
    story = play(*RUNNING, (30, killed(LIGHT0)), (30.1, LighthouseUp(LIGHT0, "http://old:1")))
    assert story.state.lighthouse_url == URL


# --- drills ----------------------------------------------------------------------------------------------------------


def drilled(**fault: float) -> list[float]:
    """When group B was hit, if it commits steps 10 to 60 at the seconds of the same number, restarted at 40."""
    settings = config(faults={"plan": [Fault(**{"group": 1, **fault})]}, job={"total_steps": 100})  # type: ignore[arg-type]
    steps = [(t, stepped(A0, t), stepped(B0, t)) for t in (10, 20, 30)]
    again = [(t, stepped(A0, t), stepped(B1, t)) for t in (50, 60)]
    story = play(*STARTED, *steps, (40, killed(B0)), (41, ready(B1)), (42, store(B1)), *again, config=settings)
    assert len(story.all(Inject)) == len(story.records("fault_injected"))
    assert {action.id for action in story.all(Inject)} <= {B0, B1}
    return [t for t, action in story.done if isinstance(action, Inject)]


@pytest.mark.parametrize(
    ("fault", "when"),
    [
        ({"at": 20}, [20]),
        ({"at": 21}, [30]),  # the first report at or after its step
        ({"at": 1}, [10]),
        ({"at": 0.3}, [30]),  # a fraction of job.total_steps
        ({"at": 45}, [50]),  # reached by the next attempt
        ({"at": 61}, []),
    ],
)
def test_a_drill_fires_once_when_its_group_reaches_its_step(fault: dict[str, float], when: list[float]) -> None:
    assert drilled(**fault) == when


def test_a_drill_hits_its_rank_and_is_in_the_journal() -> None:
    settings = config(groups={"workers": 2}, faults={"plan": [Fault(group=1, at=5, rank=1)]})
    started = ((0, granted(2)), (1, UP), (2, ready(A0, "n1", "n1"), ready(B0, "n2", "n2")), (3, store(A0), store(B0)))
    story = play(*started, (10, stepped(B0, 5)), config=settings)
    assert story.all(Inject) == [Inject(B0, 1, "kill")]
    told = {"group": 1, "attempt": 0, "kind": "kill", "rank": 1, "step": 5, "node": "n2", "by": "faults.plan"}
    assert story.records("fault_injected") == [{**told, "reason": None}]


# --- deadlines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "due"),
    [
        pytest.param(((0, granted(3)),), 600, id="the start's time-out"),
        pytest.param(RUNNING, None, id="nothing to wait for"),
        pytest.param((*RUNNING, (30, killed(B0)), (40, killed(B1))), 41, id="the backoff"),
        pytest.param((*RUNNING, (30, stop())), 40, id="the grace"),
        pytest.param((*RUNNING, (30, stop()), (41,)), 45, id="the next kill"),
        pytest.param((*RUNNING, (50, killed(B0)), (60, finished(A0))), 62, id="finishing together"),
    ],
)
def test_the_next_deadline_is(history: tuple[Moment, ...], due: float | None) -> None:
    story = play(*history)
    assert deadline(story.state, story.now, story.config) == due


def test_an_hour_without_a_word_is_no_busy_loop() -> None:
    story = play(*RUNNING, (30, TaskFailed(B0, Evidence(0, None, signal=9))))
    story.wait(3630)
    assert len(story.times(Kill, B0)) == 3600 / KILL_AGAIN_S


def test_nodes_can_be_granted_when_units_have_waited_for_long() -> None:
    story = play((0,), (500, Granted(granted(2).allocation)))
    assert story.ids(Launch) == [LIGHT0, A0, B0]
    assert [u.due for u in story.state.units] == [1100] * 3


def test_decisions_never_change_the_state_they_were_given() -> None:
    story = play(*RUNNING)
    copy = replace(story.state)
    play(*RUNNING, (30, killed(B0)))
    assert story.state == copy


# --- a full restart, and nowhere to go -------------------------------------------------------------------------------


def test_with_a_checkpoint_every_group_starts_over_and_only_when_all_are_down() -> None:
    early = (30, killed(B0))
    last = ((31, ready(B1)), (32, store(B1)), (33, TaskFailed(A0, Evidence(0, None, signal=9))))
    ends = ((34, Ended(B1, 137, checkpoint=CHECKPOINT)), (39, Ended(A0, 137, checkpoint=CHECKPOINT)), (40,))
    story = play(*RUNNING, early, *last, *ends, config=RESUME)
    assert story.times(Kill, B1) == [33]  # it had not healed: what it would train from is nobody's state
    assert story.records("full_restart")[0]["step"] > 0
    assert story.ids(Launch, since=33) == [A1, B2]
    assert min(story.times(Launch, B2)) >= 39
    assert story.outcome() is None


def test_when_too_few_groups_have_a_node_left_the_run_fails_and_names_the_spare_nodes() -> None:
    def lose_nodes(minimum: int):
        first = (30, TaskFailed(B0, Evidence(None, "n2", node_lost=True)), Ended(B0, 137))
        spare = (40, TaskFailed(B1, Evidence(None, "n3", node_lost=True)), Ended(B1, 137))
        gone = (50, NodesLeft(("n1",)))  # until Slurm has taken them away, they may come back
        return play(*RUNNING, first, spare, gone, config=config(groups={"min": minimum}))

    story = lose_nodes(2)
    assert story.state.ending is not None
    assert "cluster.spare_nodes" in story.state.ending.reason
    assert lose_nodes(1).state.ending is None  # the other group goes on


def test_a_warning_is_told_once_whichever_groups_and_attempts_give_it() -> None:
    again = [Warned(B0, "nothing heals it"), Warned(A0, "nothing heals it"), Warned(A0, "and another")]
    story = play(*STARTED, (5, Warned(A0, "nothing heals it")), (6, again))
    assert story.records("warning") == [
        {"group": 0, "text": "nothing heals it"},
        {"group": 0, "text": "and another"},
    ]
    story = play(*STARTED, (5, [Warned(A0, f"warning {n}") for n in range(1000)]))
    assert len(story.records("warning")) == 20
