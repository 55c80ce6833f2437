"""Drills in the history of a run: the faults and their targets, the journal lines, and the refusals."""

from __future__ import annotations

from typing import Any

import pytest
import said
from histories import (
    LIGHTHOUSE_UP,
    RUNNING,
    STARTED,
    Story,
    config,
    finished,
    granted,
    is_a,
    killed,
    play,
    ready,
    stepped,
    stop,
    store,
)
from steps import A0, ANN, B0, B1, LIGHT0

from ftslurm.config.schema import Fault
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.protocol import messages as msg
from ftslurm.protocol.run_states import FAULTS


def asked(fault: str, group: int | None = None, rank: int = 0) -> ev.Asked:
    return ev.Asked("inject", ANN, "c", group, rank, fault=fault)


def acts(story: Story) -> list[act.Action]:
    return [action for _, action in story.done if is_a(action, msg.Inject, act.Cancel)]


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_its_action_and_its_record(fault: str) -> None:
    story = play(*RUNNING, (30, asked(fault, 1)), config=config(health={"compare_every": 100}))
    expected: dict[str, act.Action] = {"cancel": act.Cancel(B0), "lighthouse": act.Send(LIGHT0, msg.Inject("kill", 0))}
    assert acts(story) == [expected.get(fault, act.Send(B0, msg.Inject(fault, 0)))]
    (done,) = story.records("fault_injected")
    at_group = {"group": 1, "attempt": 0, "node": "n2", "step": 10}
    at_lighthouse = {"group": None, "attempt": 0, "step": None}
    known = at_lighthouse if fault == "lighthouse" else at_group
    assert (known | {"kind": fault, "rank": 0, "by": "ann"}).items() <= done.items()


def test_without_a_group_the_first_that_runs_is_taken() -> None:
    assert acts(play(*RUNNING, (30, asked("kill")))) == [act.Send(A0, msg.Inject("kill", 0))]
    assert acts(play(*RUNNING, (30, killed(A0)), (30.1, asked("kill")))) == [act.Send(B0, msg.Inject("kill", 0))]


def test_the_rank_is_found_where_slurm_has_put_it() -> None:
    wide = config(groups={"nodes": 2, "workers": 2})
    up = (2, ready(A0, "n1", "n2", "n1", "n2"), ready(B0, "n3", "n4", "n3", "n4"))
    story = play((0, granted(4)), STARTED[1], up, STARTED[3], (30, asked("kill", 0, 1)), config=wide)
    assert acts(story) == [act.Send(A0, msg.Inject("kill", 2))]  # task 2 is rank 1: the second on n1
    assert story.records("fault_injected")[0]["node"] == "n1"


@pytest.mark.parametrize(
    ("before", "drill", "reason"),
    [
        pytest.param([], asked("kill", 7), "group 7 does not run", id="no such group"),
        pytest.param([(29, killed(B0))], asked("kill", 1), "group 1 does not run", id="a group that is starting"),
        pytest.param([(29, finished(B0))], asked("kill", 1), "group 1 does not run", id="a group that has finished"),
        pytest.param([(29, killed(A0), killed(B0))], asked("kill"), "no group runs", id="nobody"),
        pytest.param([], asked("corrupt", 1), "nothing would find it", id="groups that are not compared"),
        pytest.param([], asked("kill", 1, 5), "it has no rank 5", id="no such rank"),
        pytest.param([], asked("kill", 1, -1), "it has no rank -1", id="a rank below 0"),
        pytest.param([(29, killed(LIGHT0))], asked("lighthouse"), "lighthouse does not run", id="no Lighthouse"),
        pytest.param([(29, stop())], asked("kill", 1), "group 1 does not run", id="the run is ending"),
    ],
)
def test_what_cannot_be_done_is_refused_and_says_why(before: list[Any], drill: ev.Asked, reason: str) -> None:
    story = play(*RUNNING, *before, (30, drill), config=config(health={"compare_every": 0}))
    assert acts(story) == []
    assert [reason in refused["reason"] for refused in story.records("fault_refused")] == [True]
    assert story.records("fault_injected") == []


def test_before_the_run_has_nodes_a_drill_is_refused() -> None:
    assert [r["reason"] for r in play((0, asked("kill"))).records("fault_refused")] == ["no group runs"]


def test_a_fault_that_a_worker_refused_is_not_the_cause_of_later_failures() -> None:
    story = play(
        *RUNNING, (30, asked("node", 1)), (30.1, said.inject_refused(B0, 0, "node", "not permitted")), (31, killed(B0))
    )
    (refused,) = story.records("fault_refused")
    assert refused == {"kind": "node", "group": 1, "rank": 0, "reason": "not permitted"}
    assert story.state.groups[1].marks.died == 31


def test_the_lighthouse_is_drilled_when_the_groups_step_says_so() -> None:
    settings = config(faults={"plan": [Fault(kind="lighthouse", group=0, at=5)]})
    assert acts(play(*RUNNING, config=settings)) == [act.Send(LIGHT0, msg.Inject("kill", 0))]


def test_a_drill_whose_step_never_came_is_told_at_the_end() -> None:
    settings = config(faults={"plan": [Fault(group=1, at=500, rank=0), Fault(group=0, at=5)]})
    at_end = (
        (30, stepped(A0, 40), stepped(B0, 40)),
        (40, finished(A0)),
        (40.1, finished(B0)),
        (41, ev.Ended(LIGHT0, code=0)),
    )
    story = play(*RUNNING, *at_end, config=settings)
    assert story.records("run_finished")
    (warning,) = story.records("warning")
    assert warning["text"] == (
        "a drill was never done: kill of rank 0 of group 1, planned for step 500 of group 1 (faults.plan); the run "
        "committed 40 steps"
    )


def test_two_faults_of_one_step_are_both_done() -> None:
    settings = config(faults={"plan": [Fault(group=0, at=5), Fault(group=1, at=5), Fault(kind="lighthouse", at=5)]})
    assert acts(play(*RUNNING, config=settings)) == [
        act.Send(A0, msg.Inject("kill", 0)),
        act.Send(LIGHT0, msg.Inject("kill", 0)),
        act.Send(B0, msg.Inject("kill", 0)),
    ]


def drilled(**fault: float) -> list[float]:
    """Return the times at which group B was hit; it commits step N at second N, 10 to 60, and restarts at 40."""
    settings = config(faults={"plan": [Fault(**{"group": 1, **fault})]}, job={"total_steps": 100})  # type: ignore[arg-type]
    steps = [(t, stepped(A0, t), stepped(B0, t)) for t in (10, 20, 30)]
    again = [(t, stepped(A0, t), stepped(B1, t)) for t in (50, 60)]
    story = play(*STARTED, *steps, (40, killed(B0)), (41, ready(B1)), (42, store(B1)), *again, config=settings)
    assert len(story.all(msg.Inject)) == len(story.records("fault_injected"))
    assert {action.id for action in story.all(msg.Inject)} <= {B0, B1}
    return [t for t, action in story.done if is_a(action, msg.Inject)]


@pytest.mark.parametrize(
    ("fault", "when"),
    [
        ({"at": 20}, [20]),
        ({"at": 21}, [30]),  # the first report at or after its step
        ({"at": 1}, [10]),
        ({"at": 0.3}, [30]),  # a fraction of job.total_steps
        ({"at": 45}, [50]),  # reached by the next attempt
        ({"at": 61}, []),
    ],
)
def test_a_drill_fires_once_when_its_group_reaches_its_step(fault: dict[str, float], when: list[float]) -> None:
    assert drilled(**fault) == when


def test_a_drill_hits_its_rank_and_is_in_the_journal() -> None:
    settings = config(groups={"workers": 2}, faults={"plan": [Fault(group=1, at=5, rank=1)]})
    started = (
        (0, granted(2)),
        (1, LIGHTHOUSE_UP),
        (2, ready(A0, "n1", "n1"), ready(B0, "n2", "n2")),
        (3, store(A0), store(B0)),
    )
    story = play(*started, (10, stepped(B0, 5)), config=settings)
    assert story.all(msg.Inject) == [act.Send(B0, msg.Inject("kill", 1))]
    told = {"group": 1, "attempt": 0, "kind": "kill", "rank": 1, "step": 5, "node": "n2", "by": "faults.plan"}
    assert story.records("fault_injected") == [told]
