"""The Lighthouse is relaunched at once; a run whose Lighthouse cannot start fails, as histories."""

from __future__ import annotations

import pytest
import said
from histories import (
    LIGHTHOUSE_UP,
    RUNNING,
    config,
    granted,
    killed,
    play,
)
from steps import LIGHT0, LIGHT1, LIGHT2, LIGHT3, URL

from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence, Phase, StepId
from ftslurm.protocol import messages as msg


@pytest.mark.parametrize(
    "end",
    [
        pytest.param([ev.Ended(LIGHT0, None, signal=9)], id="it is simply gone"),
        pytest.param(killed(LIGHT0), id="its guard had a last word"),
    ],
)
def test_a_lighthouse_that_dies_is_relaunched_at_once_and_the_groups_are_not_touched(end: list[ev.Event]) -> None:
    before, after = play(*RUNNING), play(*RUNNING, (30, end), (32, said.lighthouse_up(LIGHT1, URL)))
    assert after.times(act.Launch, LIGHT1) == [30]
    assert after.records("step_launched", since=30)[0]["reason"].startswith("restart: killed (signal 9)")
    assert after.state.groups == before.state.groups
    assert after.ids(act.Assign, since=30) + after.ids(msg.Begin, since=30) == []
    assert after.state.lighthouse.phase is Phase.RUNNING


def test_a_lighthouse_may_die_as_often_as_it_likes_once_it_has_been_up() -> None:
    lives = [
        ((t, killed(StepId("lighthouse", n))), (t + 5, said.lighthouse_up(StepId("lighthouse", n + 1), URL)))
        for n, t in enumerate(range(30, 130, 10))
    ]
    story = play(*RUNNING, *(moment for life in lives for moment in life))
    assert story.outcome() is None
    assert story.state.lighthouse.attempt == 10
    assert [end["away_since"] for end in story.records("step_exited")] == [*range(30, 130, 10)]


def dud(step: StepId, how: str) -> list[ev.Event]:
    refused = ev.TaskFailed(step, Evidence(0, None, code=1, error="address already in use", started=False))
    return {
        "it says why": [refused, ev.TaskFailed(step, Evidence(0, None, code=1)), ev.Ended(step, code=1)],
        "srun fails": [ev.Ended(step, code=78, launcher_failed=True)],
        "it ends without a word": [ev.Ended(step, code=1)],
        "its process is killed": killed(step),
    }[how]


DUDS = ["it says why", "srun fails", "it ends without a word", "its process is killed"]


@pytest.mark.parametrize("how", DUDS)
def test_a_lighthouse_that_cannot_start_fails_the_run_after_three_attempts(how: str) -> None:
    steps = [LIGHT0] * 3 if how == "srun fails" else [LIGHT0, LIGHT1, LIGHT2]  # a refused launch is no attempt
    story = play((0, granted(3)), *((1 + 2 * n, dud(step, how)) for n, step in enumerate(steps)), (9,))
    assert [t for t, action in story.done if isinstance(action, act.Launch) and action.id in steps][:2] == [0, 2]
    assert story.outcome() == "failed"
    assert "the Lighthouse cannot start" in story.reason()
    assert story.times(act.Launch, LIGHT3) == []


@pytest.mark.parametrize("how", DUDS)
def test_two_dud_starts_are_forgiven_also_after_a_long_life(how: str) -> None:
    second, last = (LIGHT1, LIGHT1) if how == "srun fails" else (LIGHT2, LIGHT3)
    story = play(*RUNNING, (30, killed(LIGHT0)), (32, dud(LIGHT1, how)), (34, dud(second, how)), (36,))
    assert story.outcome() is None
    assert story.times(act.Launch, last)[-1] > 34


@pytest.mark.parametrize(("until", "outcome"), [(60, None), (700, "failed")])
def test_a_training_is_given_up_after_ten_minutes_of_dud_starts_not_after_three(
    until: int, outcome: str | None
) -> None:
    duds = [(32 + 2 * n, dud(StepId("lighthouse", n + 1), DUDS[2])) for n in range((until - 32) // 2)]
    assert play(*RUNNING, (30, killed(LIGHT0)), *duds, (until,)).outcome() == outcome


def test_dud_starts_count_only_in_a_row() -> None:
    fourth = StepId("lighthouse", 4)
    up = ((36, said.lighthouse_up(LIGHT3, URL)), (40, killed(LIGHT3)), (42, dud(fourth, DUDS[0])), (44,))
    story = play(*RUNNING, (30, killed(LIGHT0)), (32, dud(LIGHT1, DUDS[0])), (34, dud(LIGHT2, DUDS[0])), *up)
    assert story.outcome() is None
    assert story.times(act.Launch, fourth) == [40]  # it had been up: at once


def test_a_lighthouse_that_never_says_its_address_fails_the_run_after_three_attempts() -> None:
    short = config(health={"start_timeout_s": 10.0})
    gone = ((10.5, ev.Ended(LIGHT0, 137)), (22, ev.Ended(LIGHT1, 137)), (33.5, ev.Ended(LIGHT2, 137)))
    story = play((0, granted(3)), *gone, (60,), config=short)
    assert [story.times(act.Kill, step)[0] for step in (LIGHT0, LIGHT1, LIGHT2)] == [10, 21.5, 33]
    assert story.times(act.Launch, LIGHT3) == []
    assert story.outcome() == "failed"
    assert "the Lighthouse cannot start" in story.reason()


def test_a_lighthouse_that_is_being_killed_does_not_come_back_to_life() -> None:
    short = config(health={"start_timeout_s": 10.0})
    story = play((0, granted(3)), (10,), (10.1, LIGHTHOUSE_UP), config=short)
    assert story.times(act.Kill, LIGHT0) == [10]
    assert story.state.lighthouse.phase is Phase.STOPPING
