"""The source of the training's state: live groups, a checkpoint, or none; the controller's part of the guard."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import said
from histories import (
    CHECKPOINT,
    RUNNING,
    STARTED,
    Story,
    config,
    finished,
    granted,
    killed,
    node_lost,
    play,
    ready,
    stepped,
    store,
)
from steps import A0, A1, B0, B1, B2, LIGHT0

from ftslurm.core.lineage.continuity import reached
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import (
    SIGTERM,
    SLURM,
    Allocation,
    Evidence,
    Exit,
    Node,
    Nodes,
    Out,
    Phase,
    RunOutcome,
    Saved,
    StepId,
)
from ftslurm.protocol import messages as msg
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.stages import Stage

NODES = Allocation("1", ("n1", "n2", "n3"))
URL = "http://n1:1"
OLDER = "/ckpt/step-00000003"
BOTH_BEGIN = ((2, said.lighthouse_up(LIGHT0, URL)), (3, ready(A0), ready(B0)), (4, store(A0), store(B0)))
OURS = config(lighthouse={"kind": "ftslurm"})


def asks(step_id, step: int, now: float) -> ev.Event:
    return ev.Alive(step_id, 0, now, step=step, stage=Stage.SEEKING_QUORUM)


def test_who_begins_while_another_holds_the_state_heals_and_must_come_out_above_it() -> None:
    story = play(*RUNNING, (25, stepped(A0, 40)), (30, killed(B0)), (31, ready(B1)), (32, store(B1)))
    assert story.all(msg.Begin, since=30) == [
        act.Send(B1, msg.Begin("n2", 29500, heals=True, floor=39))
    ]  # A may be one step short


def test_a_group_that_begins_when_the_others_have_finished_must_heal_and_cannot_step() -> None:
    # It would begin with nothing to fall below, and could load a checkpoint and train the last steps a second time.
    done = ((30, killed(B0)), (31, ready(B1)), (32, said.task_done(A0, 0), ev.Ended(A0, 0)), (32.1, store(B1)))
    story = play(*RUNNING, (25, stepped(A0, 40)), *done)
    assert story.all(msg.Begin, since=30) == [act.Send(B1, msg.Begin("n2", 29500, heals=True, floor=39))]


def test_how_far_the_run_is_by_now_is_known_but_while_all_groups_start_over() -> None:
    assert reached(play(*STARTED).state, config()) == 0
    assert reached(play(*RUNNING, (25, stepped(A0, 40))).state, config()) == 39
    down = (30, killed(A0, checkpoint=CHECKPOINT), killed(B0, checkpoint=CHECKPOINT))
    over = play(*RUNNING, down, (31, ready(A1), ready(B1)), (32, store(A1), store(B1)))
    assert reached(over.state, config()) == 0
    over.turn(33, [stepped(A1, 6)])
    assert reached(over.state, config()) == 5


def test_at_the_first_start_there_is_nothing_to_heal_from_and_nothing_to_fall_below() -> None:
    assert {(b.heals, b.floor) for b in play(*STARTED).sent(msg.Begin)} == {(False, 0)}


@pytest.mark.parametrize(("first", "killed_for_it"), [(39, True), (38, True), (1, True), (40, False), (90, False)])
def test_a_first_step_not_above_the_state_it_should_have_healed_to_is_a_new_history(
    first: int, killed_for_it: bool
) -> None:
    # `committed` is 1: also one that has loaded an old checkpoint, and trains on alone from there, is caught.
    begun = ((30, killed(B0)), (31, ready(B1)), (32, store(B1)))
    story = play(*RUNNING, (25, stepped(A0, 40)), *begun, (33, stepped(B1, first)))
    assert (story.ids(act.Kill) == [B1]) is killed_for_it
    assert (len(story.records("group_joined", since=30)) == 1) is not killed_for_it


def test_a_run_starts_from_the_checkpoint_it_finds_and_the_lighthouse_knows() -> None:
    story = play((0, ev.Granted(NODES, CHECKPOINT)), *BOTH_BEGIN, (5,), config=OURS)
    assert [(b.heals, b.floor) for b in story.sent(msg.Begin)] == [(False, 5), (False, 5)]
    assert story.all(msg.NewHistory) == [act.Send(LIGHT0, msg.NewHistory(5))]
    story.turn(6, [stepped(A0, 6), stepped(B0, 6)])
    assert story.phases() == [Phase.RUNNING, Phase.RUNNING]
    assert story.state.lineage.step == 6


def test_files_of_the_scripts_own_are_the_scripts_business_at_the_start() -> None:
    story = play(
        (0, ev.Granted(NODES, Saved("/ckpt", None))), *BOTH_BEGIN, (5, stepped(A0, 1), stepped(B0, 1)), config=OURS
    )
    assert story.all(msg.NewHistory) == []
    assert [unit.joined for unit in story.state.groups] == [True, True]


def test_if_no_group_has_resumed_the_run_ends_and_says_what_to_do() -> None:
    begun = ((0, ev.Granted(NODES, CHECKPOINT)), *BOTH_BEGIN)
    one = play(*begun, (6, asks(A0, 0, 6)), config=OURS)
    assert one.outcome() is None  # the other may still be loading
    both = play(*begun, (6, asks(A0, 0, 6)), (7, asks(B0, 0, 7)), config=OURS)
    assert both.state.ending is not None
    assert "/ckpt/step-00000005 has the training at step 5, and no group has resumed" in both.state.ending.reason
    good = play(*begun, (6, asks(A0, 0, 6)), (7, asks(B0, 5, 7)), config=OURS)  # A heals from B
    assert good.outcome() is None


def test_one_that_restarts_from_a_checkpoint_and_trains_from_step_0_is_brought_down() -> None:
    story = play((0, ev.Granted(NODES, CHECKPOINT)), *BOTH_BEGIN, (6, stepped(A0, 1)), config=OURS)
    assert story.ids(act.Kill) == [A0]


def test_if_the_newest_checkpoint_can_be_read_by_nobody_the_older_one_counts() -> None:
    begun = ((0, ev.Granted(NODES, CHECKPOINT)), *BOTH_BEGIN)
    half = play(*begun, (5, said.restored(A0, 3, OLDER)), config=OURS)
    assert half.all(msg.NewHistory, since=5) == []  # B may have read the newest
    both = play(
        *begun,
        (5, said.restored(A0, 3, OLDER)),
        (6, said.restored(B0, 3, OLDER), asks(A0, 3, 6), asks(B0, 3, 6)),
        config=OURS,
    )
    assert both.all(msg.NewHistory, since=5) == [act.Send(LIGHT0, msg.NewHistory(3))]
    assert both.outcome() is None
    assert [r["step"] for r in both.records("checkpoint_restored")] == [3, 3]
    fine = play(*begun, (5, said.restored(A0, 3, OLDER)), (6, said.restored(B0, 5, CHECKPOINT.path)), config=OURS)
    assert fine.all(msg.NewHistory, since=5) == []


def test_a_requeued_run_goes_on_from_the_newest_checkpoint_with_the_next_attempts() -> None:
    story = play(*RUNNING, (30, killed(A0)), (31,), config=OURS)
    story.taken_over(1000, home="requeued", checkpoint=CHECKPOINT)
    story.wait(1010)
    assert [f"{i}" for i in story.ids(act.Launch, since=1000)] == ["lighthouse/1", "group-0000/2", "group-0001/1"]
    (full,) = story.records("full_restart")
    assert (full["step"], full["checkpoint_step"]) == (10, 5)
    assert "requeued" in full["reason"]


def test_a_requeued_run_without_a_checkpoint_does_not_begin_anew() -> None:
    story = play(*RUNNING).taken_over(1000, home="requeued")
    assert story.ids(act.Launch, since=1000) == []
    assert story.state.ending is not None
    assert "restart.on_state_loss" in story.state.ending.reason


def test_a_requeued_run_that_had_not_committed_a_step_begins_again() -> None:
    story = play(*STARTED).taken_over(1000, home="requeued")
    story.wait(1010)
    assert story.ids(act.Launch, since=1000)[1:] == [A1, B1]
    assert story.records("full_restart") == []


def requeued(
    *, at: float = 10_000.0, events: tuple[Any, ...] = (), exits: tuple[Exit, ...] = (), nodes: Nodes | None = None
) -> Story:
    """Play a run of two groups at step 10, requeued into a job with three nodes; a second later come these events.

    Args:
        exits: how the earlier attempts of group 1 had ended.
        nodes: what is known of the nodes.
    """
    story = play(*RUNNING, config=OURS)
    state = story.state
    second = replace(state.groups[1], exits=exits, attempt=4)
    story.state = replace(state, table=state.table.put(second), nodes=nodes or state.nodes)
    story.taken_over(at, home="requeued", checkpoint=CHECKPOINT)
    story.turn(at + 1, list(events))
    return story


@pytest.mark.parametrize(("since", "given_up"), [(9000.0, 1), (1000.0, 0)])
def test_budgets_go_on_where_they_were(since: float, given_up: int) -> None:
    ends = tuple(Exit(n, since + n, Cause.KILLED, (f"n{n % 3 + 1}",)) for n in range(5))
    story = requeued(exits=ends, events=(killed(StepId("group-0001", 5), checkpoint=CHECKPOINT),))
    reasons = [record["reason"] for record in story.records("group_given_up")]
    assert len(reasons) == given_up
    assert all("6 failures within 3600 s are more than restart.max_per_group=5" in reason for reason in reasons)


def test_the_groups_begin_together_although_one_had_failed_before() -> None:
    ends = (Exit(4, 9000.0, Cause.KILLED, ("n2",)),)
    first, second = StepId("group-0000", 1), StepId("group-0001", 5)
    up = said.lighthouse_up(LIGHT0, URL), ready(first), store(first), ready(second)
    story = requeued(exits=ends, events=up)
    assert story.ids(msg.Begin, since=10_000) == []
    story.turn(10_002, [store(second)])
    assert story.ids(msg.Begin, since=10_000) == [first, second]


def test_a_lost_node_is_probed_before_it_is_used_and_a_bad_one_is_the_last_choice() -> None:
    lost, bad = Node(Out.LOST, 9990.0), Node(Out.BLAMED, 9990.0)
    story = requeued(nodes=Nodes({"n1": lost, "n2": bad}))
    assert story.all(act.Probe) == [act.ProbeLost("n1", None)]
    assert [launch.place.nodes for launch in story.all(act.Launch, since=10_000)[1:]] == [("n3",), ("n2",)]
    assert [record["node"] for record in story.records("node_restored")] == ["n2"]
    story = requeued(nodes=Nodes({"n1": lost, "n3": lost}), events=(ev.Looked("n1", True),))
    assert [launch.place.nodes for launch in story.all(act.Launch, since=10_000)[1:]] == [("n2",), ("n1",)]


def test_a_drained_node_is_still_the_last_choice_of_the_next_controller() -> None:
    story = requeued(nodes=Nodes({"n1": Node(shunned=True)}))
    assert [launch.place.nodes for launch in story.all(act.Launch, since=10_000)[1:]] == [("n2",), ("n3",)]
    assert story.state.nodes.those(lambda node: node.shunned) == {"n1"}


def test_a_run_without_a_spare_node_waits_to_know_whether_its_lost_node_is_back() -> None:
    tight = config(lighthouse={"kind": "ftslurm"}, groups={"min": 2}, cluster={"requeue": False})
    for back in (True, False):
        story = play((0, granted(2)), *RUNNING[1:], config=tight)
        story.state = replace(story.state, nodes=Nodes({"n2": Node(Out.LOST, 9990.0)}))
        story.taken_over(10_000, home="requeued", checkpoint=CHECKPOINT)
        story.turn(10_000.3, [ev.Looked("n2", back)])
        story.wait(11_000)
        if back:
            assert (story.outcome(), len(story.ids(act.Launch, since=10_000))) == (None, 3)
        else:
            assert "no node to run on" in story.reason()


def test_a_run_on_this_machine_leaves_no_node_out() -> None:
    local = config(cluster={"kind": "local"})
    story = play(*RUNNING, (21, node_lost(A0, "n1")), config=local)
    assert story.state.nodes.out() == frozenset()


def test_a_full_restart_is_lost_again_only_when_it_had_come_to_a_step() -> None:
    down = (30, killed(A0, checkpoint=CHECKPOINT), killed(B0, checkpoint=CHECKPOINT))
    again = (31, killed(A1, checkpoint=CHECKPOINT), killed(B1, checkpoint=CHECKPOINT))
    story = play(*RUNNING, down, again, (60,))
    assert len(story.records("full_restart")) == 1  # nothing was lost the second time: the same checkpoint
    assert story.outcome() is None


def test_a_run_begins_with_its_lighthouse_and_all_groups() -> None:
    assert play((0, granted(3))).ids(act.Launch) == [LIGHT0, A0, B0]


def test_who_has_read_the_older_checkpoint_is_let_go_on_from_there_and_no_other() -> None:
    begun = ((0, ev.Granted(NODES, CHECKPOINT)), *BOTH_BEGIN)
    loaded = (5, said.restored(A0, 3, OLDER), said.restored(B0, 3, OLDER))
    assert play(*begun, loaded, (6, stepped(A0, 4), stepped(B0, 4)), config=OURS).ids(act.Kill) == []
    elsewhere = (5, said.restored(A0, 3, "/mine/step-00000003"), said.restored(B0, 3, "/mine/step-00000003"))
    assert play(*begun, elsewhere, (6, stepped(A0, 4)), config=OURS).ids(act.Kill) == [A0]


def test_if_all_fail_again_before_a_step_is_told_the_lighthouse_is_allowed_anew() -> None:
    down = (30, killed(A0, checkpoint=CHECKPOINT), killed(B0, checkpoint=CHECKPOINT))
    up = ((31, ready(A1), ready(B1)), (32, store(A1), store(B1)))
    story = play(*RUNNING, down, *up, (33, killed(A1)), (34, killed(B1)), config=OURS)
    assert story.all(msg.NewHistory, since=30) == [act.Send(LIGHT0, msg.NewHistory(5))] * 2


def test_after_a_full_restart_all_begin_together_after_the_longest_wait() -> None:
    slow = config(restart={"backoff_s": 8.0}, lighthouse={"kind": "ftslurm"})
    first = ((25, killed(B0)), (26, ready(B1)), (27, store(B1)), (28, stepped(B1, 20)))
    down = (30, killed(A0, checkpoint=CHECKPOINT), killed(B1, checkpoint=CHECKPOINT))
    story = play(*RUNNING, *first, down, (45,), config=slow)
    assert [story.times(act.Launch, step)[0] for step in (A1, B2)] == [38, 38]
    story.turn(46, [*ready(A1), store(A1)])
    assert story.all(msg.Begin, since=30) == []
    story.turn(50, [*ready(B2), store(B2)])
    assert [(b.heals, b.floor) for b in story.sent(msg.Begin, since=30)] == [(False, 5), (False, 5)]


def test_a_run_with_nothing_left_to_do_says_so() -> None:
    story = play(
        (0, ev.Granted(NODES, CHECKPOINT)),
        *BOTH_BEGIN,
        (5, finished(A0), finished(B0)),
        (7, ev.Ended(LIGHT0, 0)),
        config=OURS,
    )
    assert "nothing was left to do after the checkpoint of step 5" in story.reason()
    (end,) = story.records("run_finished")
    assert end["steps"] == 5


def test_the_end_waits_a_moment_for_slurms_word_on_why() -> None:
    asked = ev.StopAsked("SIGTERM", SIGTERM, wait_s=5.0)
    ends = (31, ev.Ended(A0, 143), ev.Ended(B0, 143), ev.Ended(LIGHT0, 0))
    told = ev.StopAsked("requeued", SLURM, Cause.PREEMPTED, RunOutcome.REQUEUED)
    waited = play(*RUNNING, (30, asked), ends, (33,))
    assert waited.records("run_finished") == []
    waited.turn(34, [told, ev.Explained(True)])
    assert len(waited.records("run_requeued")) == 1
    silent = play(*RUNNING, (30, asked), ends, (36,))
    assert [r["outcome"] for r in silent.records("run_finished")] == ["stopped"]


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.TIME_LIMIT, Cause.CANCELLED])
@pytest.mark.parametrize("first", ["its step", "its job"])
def test_a_step_that_slurm_ends_beside_its_word_on_the_job_has_the_same_cause(first: str, cause: Cause) -> None:
    sign = ev.TaskFailed(A0, Evidence(None, "n1", cause=Cause.CANCELLED, error="Slurm cancelled the step (scancel)"))
    told = ev.StopAsked("the job ends", SLURM, cause)
    words = (sign, told) if first == "its step" else (told, sign)
    story = play(*RUNNING, (30, *words), (30.02, ev.Ended(A0, 143), ev.Ended(B0, 143)))
    assert [end["cause"] for end in story.records("step_exited") if end["group"] is not None] == [cause.value] * 2


@pytest.mark.parametrize(
    "order",
    [one for one in itertools.permutations(range(4)) if one.index(2) > max(one.index(0), one.index(1))],  # its end last
)
def test_all_that_slurm_says_in_one_moment_means_the_same_in_any_order(order: tuple[int, ...]) -> None:
    words = (
        ev.TaskFailed(B0, Evidence(0, "n2", signal=15)),
        ev.TaskFailed(B0, Evidence(None, "n2", cause=Cause.CANCELLED, error="Slurm cancelled the step (scancel)")),
        ev.Ended(B0, 143),
        ev.StopAsked("the job ends", SLURM, Cause.PREEMPTED),
    )
    story = play(*RUNNING, (30, *(words[i] for i in order)), (30.02, ev.Ended(A0, 143)))
    assert [end["cause"] for end in story.records("step_exited") if end["group"] == 1] == ["preempted"]


def test_who_asks_for_checkpoints_and_gets_none_is_told() -> None:
    asked = config(checkpoint={"every": 10})
    later = (20, stepped(A0, 50, committed=50), stepped(B0, 50, committed=50))
    story = play(*STARTED, (10, stepped(A0, 49, committed=49)), later, config=asked)
    (warning,) = story.records("warning")
    assert "checkpoint.every=10" in warning["text"]
    saves = (9, said.checkpointed(A0, 10, "/ckpt/step-00000010", 0.1))
    assert play(*STARTED, saves, later, config=asked).records("warning") == []
    own = config(checkpoint={"every": 10}, restart={"on_state_loss": "checkpoint"})
    assert play(*STARTED, later, config=own).records("warning") == []
