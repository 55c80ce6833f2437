"""A message whose handling raises is dropped and recorded; all others are still handled."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import example_journal as example
import histories
import pytest
import said
from folded import fold
from histories import RUNNING, play, stepped
from steps import A0, B0

from ftslurm.controller.error_boundary import EVERY_S, ErrorBoundary, decide
from ftslurm.core import rules as core
from ftslurm.core.groups import exits
from ftslurm.core.groups.verdict import classify
from ftslurm.core.reduce import observe
from ftslurm.core.state.events import Ended, Event, TaskFailed
from ftslurm.core.state.model import Evidence, Exit, Phase, Unit
from ftslurm.core.state.turn import Turn
from ftslurm.monitor.sentences import describe
from ftslurm.monitor.status import RunStatus
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.records import JournalRecord
from ftslurm.run.leadership import Superseded


@dataclass
class Told:
    """An error boundary with records and a clock for the test."""

    now: float = 0.0
    records: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.errors = ErrorBoundary(
            lambda record: self.records.append({"event": record.event, **record.fields}), lambda: self.now
        )

    def fails(self, error: Exception) -> None:
        with self.errors.contain("a message of group-0000/0", {"type": "x"}):
            raise error


@pytest.fixture
def bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant an error in the core: it cannot handle a warning with this text."""

    def broken(turn: Turn, event: Event) -> None:
        if event == said.warned(A0, "poison"):
            raise IndexError("tuple index out of range")
        observe(turn, event)

    monkeypatch.setattr(core, "observe", broken)


def test_an_error_is_recorded_with_what_it_was_about(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    with caplog.at_level(logging.ERROR):
        told.fails(KeyError("task"))
    assert told.records == [
        {"event": "controller_error", "where": "a message of group-0000/0", "error": "KeyError: 'task'"}
    ]
    assert "Traceback" in caplog.text


def test_the_same_error_is_recorded_once_a_minute_and_another_at_once() -> None:
    told = Told()
    for told.now in (0.0, 1.0, EVERY_S - 1):
        told.fails(KeyError("task"))
    assert len(told.records) == 1
    told.fails(TypeError("x"))
    assert len(told.records) == 2
    told.now = EVERY_S
    told.fails(KeyError("other"))
    assert len(told.records) == 3


def test_a_long_error_is_cut() -> None:
    told = Told()
    told.fails(ValueError("x" * 100_000))
    assert len(str(told.records[0]["error"])) < 1000


@pytest.mark.parametrize("end", [Superseded(), KeyboardInterrupt(), SystemExit(1)])
def test_what_ends_the_controller_on_purpose_still_does(end: BaseException) -> None:
    with pytest.raises(type(end)), Told().errors.contain("a message", None):
        raise end


@pytest.mark.usefixtures("bug")
def test_of_several_events_only_the_one_that_fails_is_dropped() -> None:
    told, story = Told(), play(*RUNNING)
    events = [stepped(A0, 11), said.warned(A0, "poison"), stepped(B0, 12), said.warned(B0, "sound")]
    state, actions = decide(story.state, events, 21.0, story.config, told.errors)
    assert (state.groups[0].current.step, state.groups[1].current.step, state.lineage.step) == (11, 12, 12)
    assert state.warnings == {"sound"}
    assert [action.event for action in actions if isinstance(action, JournalRecord)] == [
        "progress",
        "progress",
        "warning",
    ]
    (record,) = told.records
    assert (record["where"], record["error"]) == ("an event (Notice)", "IndexError: tuple index out of range")


@pytest.mark.parametrize("kind", [Cause.KILLED, Cause.HANG, None])
def test_the_end_of_a_step_is_not_dropped_whatever_sign_cannot_be_judged(
    kind: Cause | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its unit would be brought down for ever."""

    def broken(unit: Unit, *rest: object) -> Exit:
        if unit.current.evidence:
            raise IndexError("tuple index out of range")
        return classify(unit, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(exits, "classify", broken)
    told, story = Told(), play(*RUNNING, (20.5, TaskFailed(B0, Evidence(0, "n2", signal=9, cause=kind))))
    assert story.phases() == [Phase.RUNNING, Phase.STOPPING]
    state, actions = decide(story.state, [Ended(B0, code=137), stepped(A0, 11)], 21.0, story.config, told.errors)
    assert state.groups[1].phase in (Phase.PENDING, Phase.STARTING)
    assert {"step_exited", "restart_scheduled"} <= {one.event for one in actions if isinstance(one, JournalRecord)}
    assert [record["where"] for record in told.records] == ["an event (Ended)"]


def test_without_an_error_all_events_are_decided_on_together() -> None:
    told, story = Told(), play(*RUNNING)
    events = [stepped(A0, 11), stepped(B0, 12)]
    decided = decide(story.state, events, 21.0, story.config, told.errors)
    assert decided == core.decide(story.state, events, 21.0, story.config)
    assert told.records == []


def test_a_rule_that_fails_on_the_state_alone_ends_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(turn: Turn) -> None:
        raise ZeroDivisionError

    told, story = Told(), play(*RUNNING)
    monkeypatch.setattr(core, "RULES", (*core.RULES, broken))
    with pytest.raises(ZeroDivisionError):
        decide(story.state, [stepped(A0, 11)], 21.0, story.config, told.errors)
    assert told.records == []


def test_a_run_that_cannot_begin_ends_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(core, "observe", broken)
    config = histories.config()
    with pytest.raises(ZeroDivisionError):
        decide(core.begin(config), [histories.granted(2)], 0.0, config, Told().errors)


def test_people_read_of_the_error_in_status_and_in_the_lines() -> None:
    line = example.event(9.0, "controller_error", where="a message of group-0000/0", error="KeyError: 'x'")
    status = fold(fold(RunStatus(), example.started()), line)
    (warning,) = status.warnings
    assert warning == describe(line, status)
    assert "in the handling of a message of group-0000/0, which is dropped; the run goes on: KeyError: 'x'" in warning
