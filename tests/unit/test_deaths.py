"""A death that no check has planned is found in the journal, and one that was planned is not."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from deaths import CRASHES, INJECTED, Kill, crashed, unplanned


def launched(unit: str, attempt: int) -> dict[str, Any]:
    return {"event": "step_launched", "unit": unit, "attempt": attempt}


def ended(unit: str, attempt: int, cause: str = "killed", number: int | None = signal.SIGKILL) -> dict[str, Any]:
    return {"event": "step_exited", "unit": unit, "attempt": attempt, "cause": cause, "signal": number, "step": 7}


def injected(kind: str, group: int, attempt: int | None) -> dict[str, Any]:
    return {"event": "fault_injected", "kind": kind, "group": group, "attempt": attempt}


START = [launched("lighthouse", 0), launched("group-0000", 0), launched("group-0001", 0)]
OVER = {"event": "run_finished"}


@pytest.mark.parametrize("unit", ["lighthouse", "group-0000", "standby-001"])
@pytest.mark.parametrize("cause", ["killed", "user_error", "hang", "diverged", "cancelled", "preempted", "unknown"])
def test_an_end_that_nobody_has_planned_is_found_whatever_it_is(unit: str, cause: str) -> None:
    for number in (None, *CRASHES, signal.SIGKILL):
        (said,) = unplanned([*START, ended(unit, 0, cause, number), launched(unit, 1)])
        assert said.startswith(f"{unit} attempt 0 ended at step 7: {cause}")


@pytest.mark.parametrize("number", sorted(CRASHES))
def test_a_crash_of_a_group_that_is_to_be_killed_is_not_the_kill(number: int) -> None:
    events = [*START, injected("kill", 1, 0), ended("group-0001", 0, number=number)]
    assert unplanned(events)
    assert len(crashed(events)) == 1
    assert unplanned([*START, ended("group-0001", 0, number=number)], [Kill("group-0001", 0)])


@pytest.mark.parametrize("kind", list(INJECTED))
def test_what_ftslurm_has_injected_is_planned_for_that_attempt_only(kind: str) -> None:
    unit = "lighthouse" if kind == "lighthouse" else "group-0001"
    causes, number = INJECTED[kind]
    events = [*START, injected(kind, 1, 0), *(ended(unit, 0, cause, number) for cause in causes)]
    assert unplanned(events) == []
    assert crashed(events) == []
    assert len(unplanned([*events, launched(unit, 1), ended(unit, 1, min(causes), number)])) == 1


def test_what_ftslurm_ends_when_its_run_is_over_has_not_died_but_what_was_cancelled_before_has() -> None:
    end = [ended("group-0001", 0, "cancelled", signal.SIGTERM), ended("lighthouse", 0, "cancelled", None)]
    assert unplanned([*START, ended("group-0000", 0, "ok", None), *end, OVER]) == []
    assert len(unplanned([*START, *end])) == 2
    assert len(unplanned([*START, end[0], launched("group-0001", 1), OVER])) == 1
