"""Failed starts: errors of the script, which end the run, and errors that are retried."""

from __future__ import annotations

import pytest
from histories import (
    LIGHTHOUSE_UP,
    RUNNING,
    STARTED,
    Moment,
    config,
    granted,
    killed,
    play,
    raised,
    ready,
    stepped,
    store,
)
from steps import A0, A1, A2, B0, B1

from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence


@pytest.mark.parametrize("started", [True, False])
def test_the_same_error_in_every_group_before_the_first_step_fails_the_run(started) -> None:
    error = "ModuleNotFoundError: No module named 'models'"
    story = play(*STARTED, (4, raised(A0, error, started)), (4.5, raised(B0, error, started)))
    assert story.outcome() == "failed"
    assert error in story.failure()
    assert story.ids(act.Launch, since=4) == [A1]


def test_different_errors_are_tried_again() -> None:
    story = play(*STARTED, (4, raised(A0, "ValueError: x")), (4.5, raised(B0, "ValueError: y")), (9,))
    assert story.outcome() is None
    assert story.ids(act.Launch, since=4) == [A1, B1]


def test_the_same_error_after_the_first_step_is_tried_again() -> None:
    back = ((31, ready(B1)), (32, store(B1)), (33, stepped(B1, 40)))
    story = play(*RUNNING, (30, raised(B0)), *back, (50, raised(A0)), (51,))
    assert story.outcome() is None
    assert story.ids(act.Launch, since=50) == [A1]


@pytest.mark.parametrize(
    "evidence",
    [
        pytest.param(Evidence(0, None, code=3), id="an exit code says nothing"),
        pytest.param(Evidence(0, None, out_of_memory=True, error="Out Of Memory"), id="another node may have more"),
    ],
)
def test_ends_that_are_alike_but_no_errors_of_the_script_are_tried_again(evidence: Evidence) -> None:
    ends = [event for step in (A0, B0) for event in (ev.TaskFailed(step, evidence), ev.Ended(step, code=137))]
    story = play(*STARTED, (4, ends), (9,))
    assert story.ids(act.Launch, since=4) == [A1, B1]


ONE = config(groups={"count": 1})


ALONE: tuple[Moment, ...] = ((0, granted(1)), (1, LIGHTHOUSE_UP), (2, ready(A0)), (3, store(A0)))


def test_a_lone_group_may_fail_once_by_chance_but_not_twice_in_the_same_words() -> None:
    once = play(*ALONE, (4, raised(A0)), config=ONE)
    assert once.ids(act.Launch, since=4) == [A1]
    twice = play(*ALONE, (4, raised(A0)), (6, raised(A1)), config=ONE)
    assert twice.outcome() == "failed"
    assert "ValueError: x" in twice.failure()


@pytest.mark.parametrize("first", [killed(A0), raised(A0, "OSError: port taken")])
def test_a_lone_group_that_fails_in_two_different_ways_is_tried_again(first: list[ev.Event]) -> None:
    history = (*ALONE, (4, first), (6, raised(A1)), (60,))
    story = play(*history, config=ONE)
    assert story.outcome() is None
    assert story.ids(act.Launch, since=4) == [A1, A2]
    assert play(*history, (61, raised(A2)), config=ONE).outcome() == "failed"


def test_a_step_that_takes_too_long_to_start_is_killed_and_the_restart_policy_asked() -> None:
    story = play(
        (0, granted(3)), (1, LIGHTHOUSE_UP), (2, ready(A0), ready(B0)), (3, store(A0)), (602.3, ev.Ended(B0, 137))
    )
    assert story.times(act.Kill, B0) == [602]
    (exited,) = story.records("step_exited")
    assert (exited["cause"], exited["noticed"]) == ("start_timeout", 602)
    assert story.times(act.Launch, B1) == [602.3]


def test_a_step_that_runs_has_started_in_time() -> None:
    assert play(*RUNNING, (5000,)).ids(act.Kill) == []


def test_a_step_that_cannot_even_be_launched_is_a_failed_start() -> None:
    error = "cannot start srun: No such file"
    events = [ev.TaskFailed(B0, Evidence(None, None, error=error, started=False)), ev.Ended(B0, None)]
    story = play((0, granted(3)), (0.1, events))
    assert story.records("step_exited")[0]["cause"] == "start_failed"
    assert story.ids(act.Launch, since=0.1) == [B1]
