"""The time of the next decision; and a decision never changes the state that it gets."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from histories import (
    RUNNING,
    Moment,
    finished,
    granted,
    killed,
    play,
    stop,
)
from steps import A0, B0, B1, LIGHT0

from ftslurm.core.rules import KILL_AGAIN_S
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence


@pytest.mark.parametrize(
    ("history", "due"),
    [
        pytest.param(((0, granted(3)),), 5, id="the first look at a start"),
        pytest.param(((0, granted(3)), (599,)), 600, id="the start's time-out"),
        pytest.param(RUNNING, inf, id="nothing to wait for"),
        pytest.param((*RUNNING, (30, killed(B0)), (40, killed(B1))), 41, id="the backoff"),
        pytest.param((*RUNNING, (30, stop())), 40, id="the grace"),
        pytest.param((*RUNNING, (30, stop()), (41,)), 45, id="the next kill"),
        pytest.param((*RUNNING, (50, killed(B0)), (60, finished(A0))), 62, id="finishing together"),
    ],
)
def test_the_next_deadline_is(history: tuple[Moment, ...], due: float) -> None:
    assert play(*history).state.wakes == due


def test_ten_minutes_without_a_word_are_no_busy_loop() -> None:
    story = play(*RUNNING, (30, ev.TaskFailed(B0, Evidence(0, None, signal=9))))
    story.wait(630)
    assert len(story.times(act.Kill, B0)) == 600 / KILL_AGAIN_S


def test_nodes_can_be_granted_when_units_have_waited_for_long() -> None:
    story = play((0,), (500, ev.Granted(granted(2).allocation)))
    assert story.ids(act.Launch) == [LIGHT0, A0, B0]
    assert [u.due for u in story.state.units] == [1100] * 3


def test_decisions_never_change_the_state_they_were_given() -> None:
    story = play(*RUNNING)
    copy = replace(story.state)
    play(*RUNNING, (30, killed(B0)))
    assert story.state == copy
