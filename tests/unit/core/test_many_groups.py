"""How the cost of a decision grows with the number of groups, in function calls: no other process changes them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
import said
from histories import NO_NODES, array_config, config, granted, ready, stepped, store
from steps import LIGHT0, URL

from ftslurm.config.schema import Config
from ftslurm.core.rules import begin, decide
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence, Job, Phase, StepId
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.unit_names import group_unit

ONE = StepId(group_unit(1), 0)
USUAL: dict[str, Sequence[ev.Event]] = {
    "nothing happens": [],
    "a heartbeat": [ev.Alive(ONE, 0, 20.0)],
    "a step is committed": [stepped(ONE, 2)],
    "a rank is killed": [ev.TaskFailed(ONE, Evidence(0, None, signal=9))],
}


def counted(state: RunState, events: Sequence[ev.Event], now: float, settings: Config) -> tuple[RunState, int]:
    """Decide, and count the functions that are called."""
    count = 0

    def called(_frame: Any, kind: str, _arg: Any) -> None:
        nonlocal count
        count += kind in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        state, _ = decide(state, events, now, settings)
    finally:
        sys.setprofile(before)
    return state, count


def calls(groups: int, events: Sequence[ev.Event]) -> int:
    """Return how many functions a decision calls in a run of so many groups that train."""
    settings = config(groups={"count": groups})
    steps = [StepId(group_unit(number), 0) for number in range(groups)]
    state = begin(settings)
    for now, some in (
        (0.0, [granted(groups), said.lighthouse_up(LIGHT0, URL)]),
        (1.0, [event for step in steps for event in ready(step)]),
        (2.0, [store(step) for step in steps]),
        (3.0, [stepped(step, 1) for step in steps]),
        (19.9, []),
    ):
        state, _ = decide(state, some, now, settings)
    return counted(state, events, 20.0, settings)[1]


@pytest.mark.parametrize("events", USUAL.values(), ids=USUAL)
def test_a_usual_decision_costs_no_more_with_many_groups(events: Sequence[ev.Event]) -> None:
    few, many = calls(10, events), calls(100, events)
    assert many < few + 20, "a rule looks at every group"


def start(groups: int) -> list[int]:
    """Return how many functions each decision calls until so many groups are launched, each in its own job."""
    settings, names = array_config(groups={"count": groups}), [f"90_{number}" for number in range(groups)]
    jobs = tuple(Job(name, 0, "RUNNING", name, (f"n{name}",)) for name in names)
    state, found = begin(settings), list[int]()
    for now, some in (
        (0.0, [NO_NODES, ev.JobsSeen((), asked=0.0)]),
        (0.5, [ev.Submitted(0, tuple(names)), said.lighthouse_up(LIGHT0, URL)]),
        (2.5, [ev.JobsSeen(jobs, asked=2.0)]),
    ):
        state, count = counted(state, some, now, settings)
        found.append(count)
    assert len(state.table.in_phase(Phase.STARTING)) == groups
    return found


def test_a_start_with_a_job_for_each_group_costs_as_much_for_each() -> None:
    assert all(many < 12 * few for few, many in zip(start(25), start(250), strict=True))
