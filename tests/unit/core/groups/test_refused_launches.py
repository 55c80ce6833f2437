"""Launches that Slurm refuses before there is a step: they are no attempts, and cost no budget."""

from __future__ import annotations

import pytest
from histories import RUNNING, STARTED, Moment, Story, config, granted, killed, play, ready, stepped, stop, store
from steps import A0, B0, B1, B2, LIGHT0, S0, S1

from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence, Phase, StepId
from ftslurm.protocol.records import GroupGivenUp, LaunchRefused

WORDS = "srun: error: Unable to create step for job 7: Memory required by task is not available"


def refused(step: StepId, words: str = WORDS) -> ev.Event:
    return ev.Ended(step, 78, error=words, launcher_failed=True)


AGAIN: tuple[Moment, ...] = ((30, killed(B0)), (31, refused(B1)), (34, refused(B1)))


def test_a_refused_launch_is_tried_again_with_the_same_number_and_recorded_as_such() -> None:
    story = play(*RUNNING, *AGAIN, (37, ready(B1)), (38, store(B1)), (39, stepped(B1, 40)))
    assert story.times(act.Launch, B1) == [30, 33, 36]
    told = {"unit": "group-0001", "group": 1, "attempt": 1, "reason": WORDS}
    assert story.records("launch_refused") == [told, told]
    assert [(r["attempt"], r["cause"]) for r in story.records("step_exited")] == [(0, "killed")]
    assert len(story.records("restart_scheduled")) == 1
    (back,) = story.records("group_joined", since=30)
    assert (back["attempt"], back["recovery_s"], back["phases"]["wait"]) == (1, 9, 6)
    reasons = {r["reason"] for r in story.records("step_launched", since=30)}
    assert reasons == {"restart: killed (signal 9) on n2, rank 0"}


def test_it_costs_nothing_of_the_budget_and_later_attempts_count_on() -> None:
    story = play(*RUNNING, *AGAIN, (37, ready(B1)), (38, killed(B1)), config=config(restart={"max_per_group": 2}))
    assert story.records("group_given_up") == []
    story.wait(60)
    assert story.times(act.Launch, B2) == [39]  # the second failure's backoff, and no more


def test_a_first_launch_may_be_refused_too() -> None:
    story = play(*STARTED[:2], (1.5, refused(A0)), (4, ready(A0), ready(B0)))
    assert story.times(act.Launch, A0) == [0, 3.5]
    assert {r["attempt"] for r in story.records("step_launched")} == {0}


def test_refusals_without_end_are_given_up_after_start_timeout_s() -> None:
    tries = [(31 + 3 * n, refused(B1)) for n in range(12)]
    story = play(*RUNNING, (30, killed(B0)), *tries, config=config(health={"start_timeout_s": 20.0}))
    (given_up,) = story.records("group_given_up")
    assert "start_timeout_s" in given_up["reason"]
    ends = [type(action) for _, action in story.done if isinstance(action, (LaunchRefused, GroupGivenUp))]
    assert ends[-2:] == [LaunchRefused, GroupGivenUp]
    assert story.phases()[1] is Phase.FAILED


def test_who_had_a_step_has_failed_as_ever() -> None:
    lost = ev.TaskFailed(
        B1, Evidence(None, "n2", node_lost=True, error="Slurm cannot start a step on n2", started=False)
    )
    for moment in [(31, lost, refused(B1)), (31, ready(B1), refused(B1))]:
        story = play(*RUNNING, (30, killed(B0)), moment)
        assert story.records("launch_refused") == []
        assert [r["attempt"] for r in story.records("step_exited")] == [0, 1]


def test_a_standby_that_was_refused_does_not_clean_up_itself() -> None:
    story = play(*RUNNING, (21, refused(S0)), (24, refused(S0)), (27,), config=config(standby={"count": 1}))
    assert len(story.times(act.Launch, S0)) == 3
    assert S0 not in [step for launch in story.all(act.Launch) if launch.id == S0 for step in launch.fence]
    story.turn(30, [*ready(S0, "n3")])
    story.turn(31, killed(S0))
    story.wait(60)
    assert [launch.fence for launch in story.all(act.Launch) if launch.id == S1] == [(S0, S0, S0)]


def test_one_that_is_refused_while_the_run_ends_is_not_tried_again() -> None:
    story = play(*RUNNING, (30, killed(B0)), (30.5, stop()), (31, refused(B1)), (40,))
    assert story.times(act.Launch, B1) == [30]


@pytest.mark.parametrize("error", [WORDS, None])
def test_it_says_why(error: str | None) -> None:
    story = play(*RUNNING, (30, killed(B0)), (31, ev.Ended(B1, 78, error=error, launcher_failed=True)))
    assert story.records("launch_refused")[0]["reason"] == (error or "srun has failed without a word")


MANY = config(groups={"count": 20, "min": 1}, standby={"count": 1}, restart={"backoff_s": 0.1})


def all_refused(seconds: int) -> Story:
    """Return a run of 20 groups and a standby, each launch of which Slurm refuses at once, after so long."""
    story = play((0, granted(21)), config=MANY)
    for now in range(1, seconds):
        live = [unit.id for unit in (*story.state.groups, *story.state.standbys) if unit.phase is Phase.STARTING]
        story.turn(now, [refused(step) for step in live])
    return story


def test_launches_that_slurm_refuses_are_few_a_minute_in_all_and_standbys_give_way() -> None:
    story = all_refused(400)
    tried = [(at, action.id) for at, action in story.done if isinstance(action, act.Launch) and action.id != LIGHT0]
    first, later = [step for at, step in tried if at < 2], [at for at, _ in tried if at >= 2]
    assert len(first) == 21
    assert len([at for at in later if at < 62]) == 8
    assert len([at for at in later if 100 <= at < 400]) == 10
    assert S0 not in [step for at, step in tried if at >= 2]


def test_once_a_step_has_begun_all_are_launched() -> None:
    story, now = all_refused(100), 100
    while not (starting := [unit.id for unit in story.state.groups if unit.phase is Phase.STARTING]):
        story.turn(now := now + 1, [])
    story.turn(now + 1, [ready(starting[0])])
    story.wait(now + 62)  # the longest wait of a group that was refused often
    assert all(unit.phase is Phase.STARTING for unit in story.state.groups)
