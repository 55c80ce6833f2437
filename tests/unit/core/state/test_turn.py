"""What the rules look at in a decision, and when the next one is wanted."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from math import inf

import pytest
import typed_changes
from histories import config, granted

from ftslurm.core import rules
from ftslurm.core.state.events import Event
from ftslurm.core.state.model import JOBS, JobPool, Lineage, Phase
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.turn import OF_ALL, Turn

CONFIG = config(groups={"count": 3})


class Watched:
    """Decisions by a few rules, the first of which notes the groups that it looks at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *some: Callable[[Turn], None]) -> None:
        monkeypatch.setattr(rules, "RULES", (self._note, *some))
        self.seen: list[str] = []
        self.state: RunState = rules.begin(CONFIG)
        self.at(0.0)

    def _note(self, turn: Turn) -> None:
        self.seen += [str(unit.group) for unit in turn.attended() if unit.group is not None]

    def at(self, now: float, *events: Event) -> str:
        """Decide; return the numbers of the groups that were looked at."""
        self.seen = []
        self.state, _ = rules.decide(self.state, events, now, CONFIG)
        return " ".join(self.seen)


def times(turn: Turn) -> None:
    for unit in turn.attended():
        if unit.group is not None and unit.phase is Phase.PENDING:
            turn.due(10.0 * (unit.group + 1), unit.name)


def test_a_unit_is_looked_at_when_its_time_has_come_and_no_other_is(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Watched(monkeypatch, times)
    assert run.state.wakes == 10.0
    assert (run.at(9.9), run.state.wakes) == ("", 10.0)
    assert (run.at(10.0), run.state.wakes) == ("0", 20.0)
    assert (run.at(30.5), run.state.wakes) == ("1 2", inf)  # the controller was late
    assert run.at(99.0) == ""


def test_the_earliest_of_several_times_comes_first_and_then_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def thrice(turn: Turn) -> None:
        for unit in turn.attended():
            for time in (40.0, 20.0, 30.0):
                assert turn.due(time, unit.name) is (turn.now >= time)

    run = Watched(monkeypatch, thrice)
    for time in (20.0, 30.0, 40.0):
        assert run.state.wakes == time
        assert run.at(time) == "0 1 2"
    assert run.state.wakes == inf


def test_what_is_compared_in_every_decision_is_forgotten_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def early(turn: Turn) -> None:
        if turn.now < 5.0:
            turn.due(50.0)

    run = Watched(monkeypatch, early)
    assert run.state.wakes == 50.0
    run.at(5.0)
    assert run.state.wakes == inf


def test_jobs_keep_their_time_until_they_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []

    def jobs(turn: Turn) -> None:
        if turn.attends_jobs():
            looked.append(turn.now)
            turn.due(turn.now + 10.0, JOBS)

    run = Watched(monkeypatch, jobs)
    for now in (3.0, 10.0, 12.0, 25.0):
        run.at(now)
    assert (looked, run.state.wakes) == ([0.0, 10.0, 25.0], 35.0)


def test_the_first_rules_see_what_the_last_one_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def last(turn: Turn) -> None:
        if turn.now >= 7.0:
            turn.change(turn.table.group(1), reason="changed")

    run = Watched(monkeypatch, times, last)
    assert run.at(6.0) == ""
    assert run.at(7.0) == "1"
    assert run.state.wakes == 10.0  # the others are asked again as they wanted


def test_news_of_all_makes_the_rules_look_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Watched(monkeypatch, times)
    assert run.at(1.0, granted(3)) == "0 1 2"
    assert run.at(2.0) == ""


def test_the_fields_of_every_change_are_checked_by_mypy() -> None:
    changes = {name for name, method in vars(Turn).items() if takes_fields(method)}
    assert changes == set(typed_changes.CHANGED)
    for name, kind in typed_changes.CHANGED.items():
        module, _, kind_name = kind.rpartition(".")
        assert hasattr(importlib.import_module(module), kind_name), name


def takes_fields(method: object) -> bool:
    """Return whether something is a method that takes any named arguments."""
    there = inspect.signature(method).parameters.values() if inspect.isfunction(method) else ()
    return any(one.kind is one.VAR_KEYWORD for one in there)


def test_what_concerns_all_exists() -> None:
    assert {name for kind in (RunState, Lineage, JobPool) for name in kind.__annotations__} >= OF_ALL
