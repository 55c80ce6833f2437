"""Groups are added and removed while the others train."""

from __future__ import annotations

import pytest
from histories import STARTED, Story, config, finished, granted, play, ready, stepped, stop, store
from steps import A0, ANN, B0, C0, C1, LIGHT0

from ftslurm.config.schema import Config
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Phase, StepId
from ftslurm.protocol import messages as msg

D0 = StepId("group-0003", 0)
FOUR = config(groups={"max": 4})
AT_WORK = ((0, granted(4)), *STARTED[1:], (5, stepped(A0, 1), stepped(B0, 1)), (10, stepped(A0, 10), stepped(B0, 10)))


def to(groups: int) -> ev.Asked:
    return ev.Asked("scale", ANN, "c1", groups=groups)


def grown() -> Story:
    story = play(*AT_WORK, (11, to(4)), config=FOUR)
    story.turn(12, [*ready(C0), *ready(D0)])
    story.turn(13, [store(C0), store(D0)])
    story.turn(14, [stepped(C0, 11), stepped(D0, 11)])
    return story


def test_new_groups_start_on_free_nodes_and_heal_in_while_the_others_go_on() -> None:
    story = grown()
    assert story.records("scaled") == [{"groups": 4, "by": ANN, "command": "c1"}]
    assert story.ids(act.Launch)[-2:] == [C0, D0]
    assert story.phases() == [Phase.RUNNING] * 4
    assert story.all(msg.Stop) == story.all(act.Kill) == []


def test_the_last_groups_leave_politely_and_are_forgotten() -> None:
    story = grown()
    story.turn(20, [to(2)])
    assert story.ids(msg.Stop) == [C0, D0]
    story.turn(21, [ev.Ended(C0, code=143)])
    assert len(story.state.groups) == 4  # numbers have no gaps
    story.turn(22, [ev.Ended(D0, code=0)])
    assert len(story.state.groups) == 2
    assert [r["cause"] for r in story.records("step_exited")] == ["cancelled"] * 2
    assert story.records("restart_scheduled") == []
    story.wait(500)
    assert story.ids(act.Launch)[-1] == D0
    assert story.outcome() is None


def test_a_group_that_does_not_stop_is_killed_after_its_grace_time() -> None:
    story = grown()
    story.turn(20, [to(3)])
    story.wait(29)
    assert story.all(act.Kill) == []
    story.wait(31)
    assert story.ids(act.Kill) == [D0]


def test_a_group_that_comes_again_is_the_next_attempt_of_its_number() -> None:
    story = grown()
    story.turn(20, [to(2)])
    story.turn(21, [ev.Ended(C0, code=143), ev.Ended(D0, code=143)])
    story.turn(30, [to(3)])
    assert story.ids(act.Launch)[-1] == C1
    assert story.records("step_launched")[-1]["attempt"] == 1


def test_that_is_no_restart() -> None:
    story = grown()
    story.turn(20, [to(2)])
    story.turn(21, [ev.Ended(C0, code=143), ev.Ended(D0, code=143)])
    story.turn(30, [to(3)])
    story.turn(31, ready(C1))
    story.turn(32, [store(C1)])
    story.turn(33, [stepped(C1, 20)])
    story.turn(40, [event for step in (A0, B0, C1) for event in finished(step)])
    story.turn(41, [ev.Ended(LIGHT0, code=0)])
    assert [action.outcome for action in story.all(act.Finish)] == ["succeeded"]
    assert story.records("run_finished")[0]["restarts"] == 0


def test_a_stopped_group_does_not_keep_the_training_alone() -> None:
    stopped = ev.Alive(A0, 0, 11.0, state="T", step=10)
    assert play(*AT_WORK, (11, stopped), (12, to(1)), config=FOUR).records("command_refused")[0]["what"] == "scale"
    assert play(*AT_WORK, (12, to(1)), config=FOUR).records("command_refused") == []


def test_a_group_that_is_wanted_again_while_it_leaves_stays() -> None:
    story = grown()
    story.turn(20, [to(3)])
    story.turn(20.5, [to(4)])
    story.turn(21, [ev.Ended(D0, code=143)])
    story.wait(40)
    assert story.ids(act.Launch)[-1] == StepId("group-0003", 1)


def test_a_group_that_waits_for_a_node_leaves_at_once() -> None:
    story = play((0, granted(2)), *AT_WORK[1:], (11, to(4)), config=FOUR)
    assert [u.waits_for is not None for u in story.state.groups] == [False, False, True, True]
    story.turn(12, [to(2)])
    assert len(story.state.groups) == 2


def test_the_run_ends_when_those_that_are_left_have_finished() -> None:
    story = grown()
    story.turn(20, [to(2)])
    story.turn(21, [ev.Ended(C0, code=143), ev.Ended(D0, code=143)])
    story.turn(30, [*finished(A0), *finished(B0)])
    assert story.outcome() == "succeeded"


def test_it_is_too_late_when_a_group_has_finished_or_the_run_is_ending() -> None:
    late = play(*AT_WORK, (11, finished(A0)), (11.5, to(3)), config=FOUR)
    assert "has finished already" in late.records("command_refused")[0]["reason"]
    ending = play(*AT_WORK, (11, stop()), (11.5, to(3)), config=FOUR)
    (told,) = ending.records("command_refused")
    assert (told["command"], told["by"]) == ("c1", ANN)
    assert told["reason"] == "the run is ending: stopped by ann"
    assert len(ending.state.groups) == 2


@pytest.mark.parametrize(
    ("groups", "settings", "why"),
    [
        (2, FOUR, None),
        (4, FOUR, None),
        (5, FOUR, "5 is above groups.max=4, which is fixed when a run starts: start it with groups.max=5"),
        (3, config(), "3 is above groups.max=2 (not set: groups.count), which is fixed when a run starts: start it "
         "with groups.max=3"),
        (1, config(groups={"min": 2}), "1 is below groups.min=2"),
        (0, config(), "0 is below groups.min=1"),
        (2, config(groups={"roles": {"server": 1, "worker": 1}}), "groups that have roles (groups.roles) cannot "
         "become more or fewer"),
    ],
)  # fmt: skip
def test_what_a_run_cannot_become_is_refused_with_the_setting_that_says_so(
    groups: int, settings: Config, why: str | None
) -> None:
    story = play(*AT_WORK, (11, to(groups)), config=settings)
    told = [(r["reason"], r["wrong"]) for r in story.records("command_refused")]
    assert told == ([] if why is None else [(why, True)])


def test_it_does_not_let_the_last_groups_go_that_hold_the_state() -> None:
    story = grown()
    story.turn(20, [ev.Ended(A0, code=1), to(1)])
    (told,) = story.records("command_refused")
    assert told["reason"] == (
        "only groups 1, 2 and 3 hold the training's state now; try again when one that stays trains"
    )
    assert story.all(msg.Stop) == []
    story.turn(21, [to(2)])  # group 1 stays, and holds it
    assert story.ids(msg.Stop) == [C0, D0]


@pytest.mark.parametrize("groups", [1, 3, 4])
def test_without_a_lighthouse_groups_come_and_go_after_one_has_finished(groups: int) -> None:
    """None of them heals from another, and none begins a new history of all."""
    alone = config(groups={"max": 4}, lighthouse={"kind": "none"})
    up = (*ready(A0), *ready(B0)), (store(A0), store(B0))
    story = play((0, granted(4)), (2, *up[0]), (3, *up[1]), (20, finished(A0)), (21, to(groups)), config=alone)
    assert story.records("command_refused") == []
    assert story.records("scaled")[-1]["groups"] == groups
    launched = {step.unit for step in story.ids(act.Launch, since=21)}
    assert launched == {f"group-{n:04d}" for n in range(2, groups)}
