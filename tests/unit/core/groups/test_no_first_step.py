"""A training without a first step: the times of the report, and its likely reason."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
import said
from histories import (
    RUNNING,
    STARTED,
    Moment,
    config,
    finished,
    granted,
    killed,
    play,
    ready,
    stepped,
    store,
    with_units,
)
from steps import A0, B0, B1, LIGHT0, URL

from ftslurm.config.schema import Config
from ftslurm.core.groups import reports
from ftslurm.core.rules import begin
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Marks, Phase, Pulse
from ftslurm.core.state.turn import Turn
from ftslurm.monitor.event_text import no_first_step
from ftslurm.protocol.records import NoFirstStep
from ftslurm.protocol.stages import Stage

COMPUTES, ASKS, HAS_QUORUM, COLLECTIVE, VOTES, _ = Stage
EARLY: tuple[Moment, ...] = (
    *STARTED,
    (4, ev.Alive(A0, 0, 4.0, step=0, stage=0), ev.Alive(B0, 0, 4.0, step=0, stage=ASKS)),
)


def settings(limit_s: float = 60.0, **sections: Any) -> Config:
    return config({"first_step_s": limit_s}, **sections)


def told(*moments: Moment, config: Config | None = None) -> list[float]:
    """Return the times of the reports, in seconds."""
    return [record["seconds"] for record in play(*moments, config=config or settings()).records("no_first_step")]


def test_people_are_told_when_all_scripts_have_run_long_and_at_every_doubling() -> None:
    story = play(*EARLY, (600,), config=settings())
    first, *later = story.records("no_first_step")
    assert first["seconds"] == 60
    rows = [{"group": 0, "attempt": 0, "stage": "script"}, {"group": 1, "attempt": 0, "stage": "quorum"}]
    assert first["groups"] == rows
    assert first["stages"] == {"script": 1, "quorum": 1}
    assert [record["seconds"] for record in later] == [120, 240, 480]
    assert story.outcome() is None  # nothing is ended


@pytest.mark.parametrize(
    ("moments", "config_"),
    [
        pytest.param((*RUNNING, (600,)), settings(), id="they train"),
        pytest.param((*EARLY, (60, stepped(A0, 1)), (600,)), settings(), id="the first step came in time"),
        pytest.param((*EARLY, (600,)), settings(inf), id="it is off"),
        pytest.param((*EARLY, (600,)), settings(lighthouse={"kind": "none"}), id="no quorum, no steps"),
        pytest.param((*EARLY, (30, finished(A0)), (600,)), settings(), id="one had nothing to do"),
        pytest.param((*STARTED[:3], (600,)), settings(), id="they are not ready yet"),
        pytest.param((*RUNNING, (30, killed(B0)), (31, ready(B1)), (32, store(B1)), (600,)), settings(), id="heals"),
    ],
)
def test_nobody_is_told_when(moments: tuple[Moment, ...], config_: Config) -> None:
    assert told(*moments, config=config_) == []


def test_the_time_goes_on_while_a_group_fails_and_comes_back() -> None:
    again = ((50, killed(B0)), (51, ready(B1)), (52, store(B1)))
    assert told(*EARLY, *again, (70,)) == [60]


def test_a_full_restart_begins_the_time_anew() -> None:
    saved = {"on_state_loss": "checkpoint"}
    story = play(*RUNNING, (30, killed(A0), killed(B0)), (200,), config=settings(restart=saved))
    assert story.state.stepless is None


def because(*doing: tuple[int, int, int] | None, least: int = 1, quorum: bool = False) -> str:
    """Return the sentence for groups at these steps and stages, with so many aborted steps each."""
    made = settings(groups={"count": len(doing), "min": least})
    units = []
    for unit, place in zip(begin(made).groups, doing, strict=True):
        marks = Marks(quorum=8.0 if quorum else None)
        unit = replace(unit, phase=Phase.RUNNING, marks=marks)
        if place is not None:
            step, stage, aborted = place
            unit = replace(
                unit, pulses=(Pulse(9.0, step=step, stage=stage),), current=replace(unit.current, aborted=aborted)
            )
        units.append(unit)
    turn = Turn(replace(with_units(begin(made), *units), stepless=(0.0, 0.0)), 100.0, made)
    reports.tell_waiting(turn)
    (record,) = (action for action in turn.actions if isinstance(action, NoFirstStep))
    return no_first_step(record)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (because((0, COMPUTES, 0), (0, COMPUTES, 0)), "no script has asked for a quorum"),
        (because(None), "no script has asked for a quorum"),
        (because((0, ASKS, 0), (0, ASKS, 0)), "all ask for a quorum. If lighthouse.log has none"),
        (because((0, ASKS, 0), (0, COMPUTES, 0), None), "1 of 3 groups ask for a quorum and may wait for the others"),
        (because((0, ASKS, 0), least=2), "only 1 groups run, and no quorum comes with fewer than groups.min=2"),
        (because((0, COMPUTES, 3), (0, ASKS, 2)), "5 steps were tried and none was committed"),
        (because((0, COLLECTIVE, 0), (0, VOTES, 0)), "all ask for a quorum"),  # in another thread
        (because((0, COLLECTIVE, 0), (0, HAS_QUORUM, 0), quorum=True), "cluster.interface"),
        (because((0, HAS_QUORUM, 0), (0, VOTES, 0), quorum=True), "raise job.longest_step_s"),
    ],
)
def test_the_likely_reason(reason: str, words: str) -> None:
    assert words in reason


def test_steps_that_were_tried_and_not_committed_are_counted() -> None:
    tried = said.progressed(A0, 0, quorum_id=1, participants=1, committed=0, aborted=7)
    (record,) = play(*EARLY, (5, tried), (100,), config=settings()).records("no_first_step")
    assert record["aborted"] == 7


def test_a_group_that_has_no_node_does_not_keep_it_from_being_told() -> None:
    wide = settings(groups={"count": 2, "min": 1})
    one_node = ((0, granted(1)), (1, said.lighthouse_up(LIGHT0, URL)), (2, ready(A0)), (3, store(A0)), (80,))
    assert told(*one_node, config=wide) == [60]
