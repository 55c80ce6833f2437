"""Requests of users to a running group: restart, stacks, save. Answers, and what the rules do then."""

from __future__ import annotations

from typing import Any

import pytest
import said
from histories import (
    RUNNING,
    STARTED,
    Story,
    config,
    finished,
    granted,
    killed,
    play,
    ready,
    stepped,
    stop,
    store,
)
from steps import A0, ANN, B0, B1, B2, LIGHT0, S0, URL

from ftslurm.core.reduce import REQUESTS
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Phase
from ftslurm.protocol import messages as msg
from ftslurm.protocol import records


def restart(group: int) -> ev.Event:
    return ev.Asked("restart", ANN, "c1", group)


def done(story: Story) -> list[str]:
    return [record.text for record in story.all(records.CommandDone)]


def refused(story: Story) -> list[str]:
    return [record.reason for record in story.all(records.CommandRefused)]


def test_a_group_leaves_politely_and_its_next_attempt_is_no_restart_after_a_failure() -> None:
    settings = config(restart={"max_per_group": 0})
    story = play(*RUNNING, (21, restart(1)), (23, said.task_done(B0, 0), ev.Ended(B0, code=0)), config=settings)
    assert done(story) == ["group 1 is asked to leave, and starts again as attempt 1"]
    assert story.ids(msg.Stop) == [B0]
    assert story.all(act.Kill) == []
    (exited,) = story.records("step_exited")
    assert (exited["cause"], exited["error"]) == ("requested", "asked for with ftslurm restart")
    assert story.ids(act.Launch)[-1] == B1
    assert story.records("step_launched")[-1]["reason"] == "restart: asked for with ftslurm restart"
    assert story.phases() == [Phase.RUNNING, Phase.STARTING]


def test_a_script_that_does_not_stop_is_killed_after_its_grace_time() -> None:
    story = play(*RUNNING, (21, restart(1)), (30,))
    assert story.all(act.Kill) == []
    story.wait(32)
    assert story.ids(act.Kill) == [B0]


@pytest.mark.parametrize("first", [restart(1), ev.Asked("scale", ANN, "c0", groups=1)])
def test_the_last_group_that_stays_is_not_restarted_as_the_other_one_leaves(
    first: ev.Event,
) -> None:
    story = play(*RUNNING, (21, first, restart(0)))
    assert story.ids(msg.Stop) == [B0]
    assert story.records("command_refused")[0]["reason"].startswith("only group 0 holds the training's state now")


def test_any_number_of_restarts_costs_no_budget_and_no_backoff() -> None:
    story = play(*RUNNING, config=config(restart={"max_per_group": 1}))
    for attempt, step in enumerate((B0, B1, B2)):
        story.turn(30 + 10 * attempt, [restart(1)])
        story.turn(31 + 10 * attempt, [ev.Ended(step, code=143)])
        new = type(step)(step.unit, step.attempt + 1)
        assert story.times(act.Launch, new) == [31 + 10 * attempt]
        story.turn(32 + 10 * attempt, ready(new))
        story.turn(33 + 10 * attempt, [store(new)])
        story.turn(34 + 10 * attempt, [stepped(new, 20 + attempt)])
    assert story.outcome() is None


def test_a_warm_standby_takes_over_at_once() -> None:
    story = play(*RUNNING, (20.5, ready(S0, "n3")), config=config(standby={"count": 1}))
    story.turn(21, [restart(1)])
    story.turn(22, [ev.Ended(B0, code=143)])
    assert story.records("step_launched")[-1]["standby"] == "standby-000/0"
    assert [a.id for a in story.all(act.Assign)][-1] == S0


@pytest.mark.parametrize(
    ("before", "request_", "why"),
    [
        (RUNNING, restart(2), "there is no group 2; the run has groups 0 to 1"),
        (RUNNING, restart(-1), "there is no group -1; the run has groups 0 to 1"),
        (RUNNING, ev.Asked("stacks", ANN, "c1", 1, 1), "group 1 has no rank 1; it has ranks 0 to 0"),
        ((*RUNNING, (20.5, restart(1))), restart(1), "group 1 is being brought down already"),
        ((*RUNNING, (20.5, killed(B0)), (20.55, killed(B1))), restart(1), "group 1 does not run (PENDING)"),
        ((*RUNNING, (20.5, stop())), restart(1), "the run is ending: stopped by ann"),
        ((*RUNNING, (20.5, finished(A0))), restart(1), "a group has finished already"),
        ((*RUNNING, (20.5, said.script_done(B0, 0))), restart(1), "the script of group 1 has ended"),
        ((*RUNNING, (20.5, killed(A0))), restart(1), "only group 1 holds the training's state now"),
        (
            (*RUNNING, (20.5, ev.Alive(A0, 0, 20.5, state="T", step=10))),
            restart(1),
            "only group 1 holds the training's state now",
        ),
    ],
)  # fmt: skip
def test_a_restart_that_cannot_be_is_refused_with_the_reason(before: Any, request_: ev.Event, why: str) -> None:
    settings = config(restart={"backoff_s": 60.0})
    story = play(*before, (20.6, request_), config=settings)
    assert refused(story)[-1].startswith(why)


def test_a_group_that_starts_is_ended_at_once() -> None:
    story = play(*STARTED[:2], (2, restart(1)), (2.5, ev.Ended(B0, code=137)))
    assert story.ids(act.Kill) == [B0]
    assert story.ids(act.Launch)[-1] == B1


def test_a_failure_after_a_restart_is_a_failure_again() -> None:
    story = play(*RUNNING, (21, restart(1)), (22, ev.Ended(B0, code=143)), (25, ready(B1)), (26, killed(B1)))
    assert [exited["cause"] for exited in story.records("step_exited")] == ["requested", "killed"]


def asks(name: str = "c1") -> ev.Event:
    return ev.Asked("save", ANN, name)


def saved(step: int, error: str | None = None) -> ev.Event:
    return said.checkpointed(A0, step, f"/ckpt/step-{step}", 0.5, error)


CAN_SAVE = (*RUNNING, (20.5, said.can_save(A0), said.can_save(B0)))


def test_a_checkpoint_is_asked_of_the_groups_and_answered_when_it_is_complete() -> None:
    story = play(*CAN_SAVE, (21, asks()))
    assert story.all(msg.Save) == [act.Send(A0, msg.Save(10)), act.Send(B0, msg.Save(10))]
    assert done(story) == refused(story) == []
    story.turn(22, [asks("c2")])
    story.turn(23, [saved(12)])
    answers = story.all(records.CommandDone)
    assert [(a.command, a.step, a.path) for a in answers] == [(c, 12, "/ckpt/step-12") for c in ("c1", "c2")]
    story.turn(24, [asks("c3")])
    assert story.all(msg.Save)[-1] == act.Send(B0, msg.Save(13))
    story.turn(25, [saved(13)])
    assert story.all(records.CommandDone)[-1].command == "c3"


def test_a_checkpoint_that_fails_or_never_comes_is_answered_too() -> None:
    story = play(*CAN_SAVE, (21, asks()), (23, saved(12, "OSError: disk full")))
    assert refused(story) == ["OSError: disk full"]
    story = play(*CAN_SAVE, (21, asks()), (700,))
    assert refused(story) == ["no group has saved one within 600 s"]
    story = play(*CAN_SAVE, (21, asks()), (22, stop()))
    assert refused(story) == ["the run ends: stopped by ann"]


@pytest.mark.parametrize(
    ("before", "settings", "why"),
    [
        (RUNNING, config(), "no script of the run has an ftslurm.checkpoint.Checkpointer"),
        ((*CAN_SAVE, (20.6, stop())), config(), "the run is ending"),
        (STARTED[:2], config(), "no group trains now"),
        (CAN_SAVE, config(lighthouse={"kind": "none"}), "groups without a quorum"),
    ],
)
def test_a_checkpoint_that_nobody_can_save_is_refused_at_once(before: Any, settings: Any, why: str) -> None:
    story = play(*before, (20.7, asks()), config=settings)
    assert refused(story)[-1].startswith(why)
    assert story.all(msg.Save) == []


def test_stacks_are_asked_of_one_rank_or_of_all_and_their_size_is_told() -> None:
    two = config(groups={"workers": 2})
    begun = ((0, granted(3)), (1, said.lighthouse_up(LIGHT0, URL)), (2, *ready(A0, "n1", "n1"), *ready(B0, "n2", "n2")))
    story = play(*begun, (3, store(A0), store(B0)), (4, stepped(A0, 1), stepped(B0, 1)), config=two)
    story.turn(5, [ev.Asked("stacks", ANN, "c1", 1, 1), ev.Asked("stacks", ANN, "c2", 0, None)])
    assert story.all(msg.Dump) == [
        act.Send(B0, msg.Dump("c1", 1)),
        act.Send(A0, msg.Dump("c2", None)),
    ]
    story.turn(6, [said.stacks_taken(B0, 1, "c1", 700), said.stacks_taken(A0, 0, "c2", None)])
    taken = [(r.group, r.rank, r.node, r.size) for r in story.all(records.StacksTaken)]
    assert taken == [(1, 1, "n2", 700), (0, 0, "n1", None)]
    story.turn(7, [ev.Asked("stacks", ANN, "c3", 1, 2), ev.Asked("stacks", ANN, "c4", 5, 0)])
    assert refused(story) == [
        "group 1 has no rank 2; it has ranks 0 to 1",
        "there is no group 5; the run has groups 0 to 1",
    ]
    story = play(*begun[:2], (2, ev.Asked("stacks", ANN, "c1", 1, 0)), config=two)
    assert refused(story) == ["group 1 is starting: its ranks are not assigned yet"]


@pytest.mark.parametrize("what", [what for what in REQUESTS if what not in ("scale", "save", "inject")])
def test_what_is_done_for_a_user_is_said_before_it_is_done(what: str) -> None:
    drained = (21, ev.Asked("drain", ANN, "c1", node="n3"))
    story = play(*RUNNING, *([drained] if what == "undrain" else []), config=config(cluster={"kind": "slurm"}))
    first, *_ = story.turn(22, [ev.Asked(what, ANN, "c2", group=1, node="n3")])
    assert isinstance(first, records.CommandDone)
