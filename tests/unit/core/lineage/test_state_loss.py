"""When no live group has the state, the run fails or all groups resume from a checkpoint, as histories."""

from __future__ import annotations

import pytest
import said
from histories import (
    CHECKPOINT,
    FOREIGN,
    RUNNING,
    STARTED,
    Moment,
    config,
    killed,
    play,
    ready,
    stepped,
    store,
)
from steps import A0, A1, B0, B1, B2

from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence, Phase, Saved
from ftslurm.protocol import messages as msg

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
    assert story.ids(act.Launch, since=30) == []


@pytest.mark.parametrize(("settings", "checkpoint"), [(config(), CHECKPOINT), (RESUME, FOREIGN), (RESUME, CHECKPOINT)])
def test_all_groups_down_at_once_with_a_checkpoint_are_all_restarted_from_it(settings, checkpoint) -> None:
    story = play(*RUNNING, (30, killed(A0, checkpoint=checkpoint), killed(B0, checkpoint=checkpoint)), config=settings)
    assert story.ids(act.Launch, since=30) == [A1, B1]
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
    assert story.ids(act.Kill) == []
    assert [joined["step"] for joined in story.records("group_joined", since=30)] == [41]


def test_a_group_whose_reports_come_a_little_later_than_the_others_is_left_alone() -> None:
    reports = ((5, stepped(A0, 1), stepped(B0, 1)), (9, stepped(A0, 10, committed=10), stepped(B0, 9, committed=9)))
    assert play(*STARTED, *reports).ids(act.Kill) == []


def test_all_groups_down_before_the_first_commit_have_lost_nothing() -> None:
    story = play(*STARTED, (30, killed(A0), killed(B0)))
    assert story.ids(act.Launch, since=30) == [A1, B1]


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
    story.turn(34, [ev.Ended(B1, code=137)])
    assert story.outcome() == "failed"
    assert "restart.on_state_loss" in story.reason()
    assert story.ids(msg.Begin, since=33) == []


def test_nobody_begins_in_the_decision_that_ends_the_run() -> None:
    story = play(*RUNNING, (30, killed(B0)), (31, ready(B1)), (33, store(B1), killed(A0)))
    assert story.ids(msg.Begin, since=30) == []
    assert story.ids(act.Kill, since=33) == [B1]


@pytest.mark.parametrize("settings", [pytest.param(config(), id="fail"), pytest.param(RESUME, id="checkpoint")])
def test_nor_while_the_last_live_group_is_still_being_brought_down(settings) -> None:
    # On a dead node srun takes seconds to end; meanwhile torchft's Lighthouse lets the newcomer step alone, from 0.
    story = play(
        *RUNNING,
        (30, killed(B0)),
        (31, ready(B1)),
        (32, store(B1)),
        (33, ev.TaskFailed(A0, Evidence(None, "n1", node_lost=True))),
        (35, stepped(B1, 1)),
        (39, ev.Ended(A0, code=137), ev.Ended(B1, code=137)),
        config=settings,
    )
    assert story.outcome() == "failed"
    assert story.ids(act.Launch, since=33) == []
    assert "restart.on_state_loss" in story.reason()


def test_a_live_group_that_joined_is_enough_to_heal_from() -> None:
    story = play(
        *RUNNING, (30, killed(B0)), (31, ready(B1)), (32, store(B1)), (33, stepped(B1, 40)), (34, killed(A0)), (35,)
    )
    assert story.ids(act.Launch, since=34) == [A1]
    assert story.outcome() is None


def test_with_a_checkpoint_every_group_starts_over_and_only_when_all_are_down() -> None:
    early = (30, killed(B0))
    last = ((31, ready(B1)), (32, store(B1)), (33, ev.TaskFailed(A0, Evidence(0, None, signal=9))))
    ends = ((34, ev.Ended(B1, 137, checkpoint=CHECKPOINT)), (39, ev.Ended(A0, 137, checkpoint=CHECKPOINT)), (40,))
    story = play(*RUNNING, early, *last, *ends, config=RESUME)
    assert story.times(act.Kill, B1) == [33]  # it had not healed: its weights are not the training's state
    assert story.records("full_restart")[0]["step"] > 0
    assert story.ids(act.Launch, since=33) == [A1, B2]
    assert min(story.times(act.Launch, B2)) >= 39
    assert [record["attempt"] for record in story.records("restart_scheduled")] == [1]  # of B; then all start over
    assert story.outcome() is None


def test_with_too_few_groups_that_have_a_node_the_run_fails_and_names_spare_nodes() -> None:
    def lose_nodes(minimum: int):
        first = (30, ev.TaskFailed(B0, Evidence(None, "n2", node_lost=True)), ev.Ended(B0, 137))
        spare = (40, ev.TaskFailed(B1, Evidence(None, "n3", node_lost=True)), ev.Ended(B1, 137))
        gone = (50, ev.NodesLeft(("n1",)))  # until Slurm has taken them away, they may come back
        return play(*RUNNING, first, spare, gone, config=config(groups={"min": minimum}))

    story = lose_nodes(2)
    assert story.state.ending is not None
    assert "cluster.spare_nodes" in story.state.ending.reason
    assert lose_nodes(1).state.ending is None  # the other group goes on


@pytest.mark.parametrize("older", [False, True])
def test_from_an_object_store_all_start_over_with_what_a_group_has_told_of(older: bool) -> None:
    told = [said.checkpointed(A0, step, f"s3://bucket/run/step-{step}", 0.5) for step in (12, *([7] if older else []))]
    elsewhere = said.checkpointed(A0, 14, "/elsewhere/step-14", 0.5)
    down = [event for step in (A0, B0) for event in killed(step)]  # nobody has read the store again
    settings = config(checkpoint={"dir": "s3://bucket/run"})
    story = play(*RUNNING, (25, [*told, elsewhere, *down]), (26,), config=settings)
    (restart,) = story.records("full_restart")
    assert (restart["checkpoint"], restart["checkpoint_step"]) == ("s3://bucket/run/step-12", 12)
