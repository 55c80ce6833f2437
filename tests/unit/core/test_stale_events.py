"""Events of attempts that are over or unknown, and repeated events, change nothing."""

from __future__ import annotations

import pytest
import said
from histories import (
    RUNNING,
    STARTED,
    finished,
    killed,
    play,
)
from steps import A0, B0, LIGHT0, URL

from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence, StepId


def every_event(step: StepId) -> list[ev.Event]:
    return [
        said.hello(step, 0, "n9"),
        said.ready(step, 0),
        said.store_up(step, "n9", 1),
        said.progressed(step, 99, 1, 1, 1, 0),
        said.task_done(step, 0),
        ev.TaskFailed(step, Evidence(0, "n9", node_lost=True)),
        ev.Ended(step, code=1),
    ]


@pytest.mark.parametrize("event", every_event(B0), ids=lambda event: type(event).__name__)
def test_a_late_word_of_an_old_attempt_is_ignored(event: ev.Event) -> None:
    before = play(*RUNNING, (30, killed(B0)))
    after = play(*RUNNING, (30, killed(B0)), (30, event))
    assert (before.state, before.done) == (after.state, after.done)


@pytest.mark.parametrize("event", every_event(A0), ids=lambda event: type(event).__name__)
def test_a_word_after_the_end_is_ignored(event: ev.Event) -> None:
    before = play(*RUNNING, (30, finished(A0)))
    after = play(*RUNNING, (30, finished(A0)), (30, event))
    assert (before.state, before.done) == (after.state, after.done)


@pytest.mark.parametrize("event", every_event(StepId("group-0009", 0)), ids=lambda event: type(event).__name__)
def test_a_word_of_an_unknown_group_is_ignored(event: ev.Event) -> None:
    assert play(*RUNNING, (30, event)).state == play(*RUNNING).state


def test_a_lighthouse_that_is_over_is_not_up_again() -> None:
    story = play(*RUNNING, (30, killed(LIGHT0)), (30.1, said.lighthouse_up(LIGHT0, "http://old:1")))
    assert story.state.lighthouse_url == URL


def test_a_warning_is_told_once_whichever_groups_and_attempts_give_it() -> None:
    again = [said.warned(B0, "nothing heals it"), said.warned(A0, "nothing heals it"), said.warned(A0, "and another")]
    story = play(*STARTED, (5, said.warned(A0, "nothing heals it")), (6, again))
    assert story.records("warning") == [
        {"group": 0, "text": "nothing heals it"},
        {"group": 0, "text": "and another"},
    ]
    story = play(*STARTED, (5, [said.warned(A0, f"warning {n}") for n in range(1000)]))
    assert len(story.records("warning")) == 20
