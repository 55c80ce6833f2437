"""Checks of nodes before anything is placed there (health.preflight)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import said
from histories import (
    LIGHTHOUSE_UP,
    NO_NODES,
    STARTED,
    Moment,
    Story,
    array_config,
    config,
    granted,
    killed,
    node_lost,
    pilot,
    play,
    raised,
    ready,
    stepped,
    store,
)
from steps import A0, ANN, B0, B1, LIGHT0, S0, URL

from ftslurm.core.rules import begin, decide
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Allocation, Phase
from ftslurm.core.state.past import LeftOut, Past


def settings(**sections: dict[str, Any]) -> Any:
    sections["health"] = {"preflight": [["check"]], **sections.get("health", {})}
    return config(**sections)


def passed(*nodes: str) -> list[ev.Event]:
    return [ev.NodesChecked((n,), (ev.NodeResult(n, 1.0, f"logs/preflight-{n}-0.log"),)) for n in nodes]


def failed(*nodes: str, reason: str = "check: exit code 1: bad GPU") -> list[ev.Event]:
    return [ev.NodesChecked((n,), (ev.NodeResult(n, 1.0, f"logs/preflight-{n}-0.log", reason),)) for n in nodes]


def groups_launched(story: Story) -> list[Any]:
    return [step for step in story.ids(act.Launch) if step != LIGHT0]


def on(story: Story, unit: Any) -> tuple[str, ...]:
    place = story.unit(unit).place
    return () if place is None else place.nodes


def test_nothing_is_placed_on_a_node_before_it_has_passed() -> None:
    story = play((0, granted(3)), (1, LIGHTHOUSE_UP), (2,), config=settings())
    assert [one.nodes for one in story.all(act.CheckNodes)] == [("n1",), ("n2",), ("n3",)]
    assert story.records("node_checks_started") == [{"nodes": ["n1", "n2", "n3"]}]
    assert groups_launched(story) == []
    assert {r["reason"] for r in story.records("group_waits")} == {"the check of a node (health.preflight)"}
    story.turn(3, passed("n2"))
    assert groups_launched(story) == [A0]
    assert on(story, A0) == ("n2",)
    story.turn(4, passed("n1"))
    assert on(story, B0) == ("n1",)
    assert [r["node"] for r in story.records("node_check_passed")] == ["n2", "n1"]


def test_a_node_that_fails_is_left_out_and_new_jobs_avoid_it() -> None:
    story = play((0, granted(3)), (1, LIGHTHOUSE_UP), (2, failed("n1")), (3, passed("n2", "n3")), config=settings())
    assert (on(story, A0), on(story, B0)) == (("n2",), ("n3",))
    (record,) = story.records("node_check_failed")
    assert (record["node"], record["reason"]) == ("n1", "check: exit code 1: bad GPU")
    assert story.state.nodes.avoid == story.state.nodes.unfit == {"n1"}
    story.wait(3000)
    assert story.all(act.Probe) == []  # it is not lost: no probe brings it back


def test_undrain_has_a_node_checked_again_that_has_failed() -> None:
    story = play((0, granted(3)), (1, LIGHTHOUSE_UP), (2, failed("n1")), (3, passed("n2")), config=settings())
    story.turn(4, [ev.Asked("undrain", ANN, "c1", node="n1")])
    assert [one.nodes for one in story.all(act.CheckNodes)][3:] == [("n1",)]
    assert "n1 is checked again" in story.records("command_done")[0]["text"]
    assert [r["node"] for r in story.records("node_restored")] == ["n1"]
    story.turn(5, passed("n1"))
    assert on(story, B0) == ("n1",)


def test_a_run_all_of_whose_nodes_fail_ends_at_once_with_the_reasons() -> None:
    story = play((0, granted(2)), (2, failed("n1")), config=settings())
    assert story.outcome() is None
    story.turn(3, failed("n2", reason="timed out"))
    assert story.outcome() == "failed"
    assert "n1: check: exit code 1: bad GPU; see logs/preflight-n1-0.log; n2: timed out" in story.reason()
    assert groups_launched(story) == []


def test_a_group_without_a_sound_node_names_the_failed_one() -> None:
    made = settings(cluster={"requeue": False}, groups={"min": 2})
    story = play((0, granted(2)), (1, LIGHTHOUSE_UP), (2, failed("n1")), (3, passed("n2")), config=made)
    assert story.outcome() == "failed"
    assert "n1: check: exit code 1: bad GPU" in story.reason()
    waits = play((0, granted(2)), (1, LIGHTHOUSE_UP), (2, failed("n1")), (3, passed("n2")), config=settings())
    assert waits.all(act.RequestJobs) == [] or waits.all(act.RequestJobs)[0].exclude == ("n1",)
    assert waits.outcome() is None
    alone = play(
        (0, granted(2)), (1, LIGHTHOUSE_UP), (2, failed("n1")), (3, passed("n2")),
        config=settings(cluster={"requeue": False}),
    )  # fmt: skip
    assert alone.records("group_waits")[-1]["reason"] == "a free node: n1 left out by health.preflight"


RUNNING: tuple[Moment, ...] = (
    (0, granted(3)),
    (0.5, passed("n1", "n2", "n3")),
    *STARTED[1:],
    (5, stepped(A0, 1), stepped(B0, 1)),
)


def test_a_node_is_checked_again_after_a_kill_there_and_not_after_an_error_of_the_script() -> None:
    story = play(*RUNNING, (20, raised(B0)), config=settings())
    assert len(story.all(act.CheckNodes)) == 3
    story = play(*RUNNING, (20, killed(B0)), config=settings())
    assert [one.nodes for one in story.all(act.CheckNodes)][3:] == [("n2",)]
    assert on(story, B1) == ("n3",)  # it does not wait for its old node
    full = play(*((0, granted(2)), (0.5, passed("n1", "n2")), *RUNNING[2:]), (20, killed(B0)), config=settings())
    assert [step for step in full.ids(act.Launch) if step == B1] == []
    full.turn(21, passed("n2"))
    assert on(full, B1) == ("n2",)
    assert full.ids(act.Launch)[-1] == B1


def test_a_node_that_others_still_use_is_not_checked_again() -> None:
    made = settings(groups={"per_node": 2})
    story = play((0, granted(1)), (0.5, passed("n1")), *RUNNING[2:], (20, killed(B0)), (21,), config=made)
    assert len(story.all(act.CheckNodes)) == 1
    assert story.ids(act.Launch)[-1] == B1


def test_a_lost_node_that_comes_back_is_checked_before_it_is_used() -> None:
    story = play(*RUNNING, (20, node_lost(B0, "n2")), (21, ready(B1, "n3")), config=settings())
    story.wait(40)
    story.turn(41, [ev.Looked("n2", True)])
    assert [one.nodes for one in story.all(act.CheckNodes)][3:] == [("n2",)]
    assert "n2" in story.state.nodes.closed
    story.turn(42, passed("n2"))
    assert "n2" not in story.state.nodes.closed


def test_standbys_wait_for_the_check_too() -> None:
    made = settings(standby={"count": 1})
    story = play((0, granted(3)), (1, LIGHTHOUSE_UP), (2, passed("n1", "n2")), config=made)
    assert S0 not in story.ids(act.Launch) or on(story, S0) != ("n3",)
    story = play((0, granted(3)), (1, LIGHTHOUSE_UP), (2, passed("n1", "n2", "n3")), config=made)
    assert on(story, S0) == ("n3",)


def test_a_check_that_cannot_start_makes_the_node_lost_and_a_refused_one_is_repeated() -> None:
    story = play((0, granted(3)), (2, ev.NodesChecked(("n1",), (), "No route", unreachable=True)), config=settings())
    (out,) = story.records("node_excluded")
    assert (out["node"], "cannot start: No route" in out["reason"]) == ("n1", True)
    assert [back.node for back in story.state.nodes.returning] == ["n1"]
    story = play((0, granted(1)), (2, ev.NodesChecked(("n1",), (), "busy", refused=True)), (30,), config=settings())
    assert [time for time, action in story.done if isinstance(action, act.CheckNodes)] == [0, 7]
    broken = play((0, granted(3)), (2, ev.NodesChecked(("n1",), (), "no python")), config=settings())
    assert broken.state.nodes.checks.failed == (("n1", "no python"),)


def test_many_nodes_share_steps_and_those_without_an_answer_are_tried_alone() -> None:
    made = settings(groups={"count": 1000})
    story = play((0, granted(1000)), config=made)
    first = story.all(act.CheckNodes)
    assert len(first) == 32
    assert sorted(node for one in first for node in one.nodes) == sorted(f"n{i + 1}" for i in range(1000))
    some = first[0].nodes
    results = tuple(ev.NodeResult(node, 1.0, "log") for node in some[1:])
    story.turn(1, [ev.NodesChecked(some, results, "slurmstepd is gone")])
    assert story.all(act.CheckNodes)[32:] == [act.CheckNodes(some[:1])]
    story.turn(2, failed(some[0]))
    assert story.state.nodes.unfit == {some[0]}


def test_on_one_machine_all_nodes_share_one_check() -> None:
    made = settings(cluster={"kind": "local"})
    local = ev.Granted(Allocation("local", ("local0", "local1")))
    story = play((0, local), config=made)
    assert story.all(act.CheckNodes) == [act.CheckNodes(("local0", "local1"))]
    results = tuple(ev.NodeResult(node, 1.0, "log", "no space") for node in ("local0", "local1"))
    story.turn(1, [ev.NodesChecked(("local0", "local1"), results)])
    assert (story.outcome(), "no space" in story.reason()) == ("failed", True)
    fine = tuple(replace(result, reason=None) for result in results)
    hosts = ready(A0, "local0"), ready(B0, "local1")
    going = (1, ev.NodesChecked(("local0", "local1"), fine), LIGHTHOUSE_UP), (2, *hosts), (3, store(A0), store(B0))
    story = play((0, local), *going, (20, killed(B0)), config=made)
    assert len(story.all(act.CheckNodes)) == 1  # the other group works on this machine
    assert story.ids(act.Launch)[-1] == B1


def test_no_job_is_asked_for_while_a_check_may_give_a_place() -> None:
    made = settings(cluster={"kind": "slurm"})
    story = play((0, granted(2)), (1, LIGHTHOUSE_UP, ev.JobsSeen((), asked=0.0)), (20,), config=made)
    assert story.all(act.RequestJobs) == []
    story.turn(21, passed("n2"))
    assert story.all(act.RequestJobs) == []
    story.turn(22, failed("n1"))
    assert story.all(act.RequestJobs) == [act.RequestJobs(0, 1, ("n1",))]


def test_in_array_mode_each_job_is_checked_and_one_with_a_bad_node_is_replaced() -> None:
    made = array_config(health={"preflight": [["check"]]})
    jobs = pilot("90_0", "n1"), pilot("90_1", "n2")
    asked = (0.1, ev.JobsSeen((), asked=0.0)), (0.5, ev.Submitted(0, ("90_0", "90_1")))
    story = play((0, NO_NODES), *asked, (2.6, ev.JobsSeen(jobs, asked=2.5)), config=made)
    assert story.all(act.CheckNodes) == [act.CheckNodes(("n1",), "90_0"), act.CheckNodes(("n2",), "90_1")]
    assert story.all(act.CancelJobs) == []
    story.turn(3, [*passed("n2"), *failed("n1")])
    assert on(story, A0) == ("n2",)
    assert story.all(act.CancelJobs) == [act.CancelJobs(("90_0",))]
    assert story.all(act.RequestJobs)[-1].exclude == ("n1",)


def test_another_controller_knows_what_has_passed_and_failed() -> None:
    left = (LeftOut("n3", 1.0, unfit="bad GPU"),)
    past = Past(attempts=(), step=0, passed=("n1",), left_out=left, home="7.0")
    event = replace(granted(3), past=past, homes=frozenset({"7.0"}))
    story = play((0, event), (1, said.lighthouse_up(LIGHT0, URL)), config=settings())
    assert [one.nodes for one in story.all(act.CheckNodes)] == [("n2",)]
    assert story.state.nodes.unfit == {"n3"}
    assert story.unit(A0).phase is Phase.STARTING


def test_without_the_setting_no_node_is_checked() -> None:
    story = play(*STARTED)
    assert story.all(act.CheckNodes) == []
    assert story.records("node_checks_started") == []


@pytest.mark.nightly
def test_a_result_costs_little_with_10_000_groups() -> None:
    made = settings(groups={"count": 10_000})
    state, _ = decide(begin(made), [granted(10_000)], 0.0, made)
    nodes = tuple(f"n{i + 1}" for i in range(10_000))
    results = tuple(ev.NodeResult(node, 1.0, "log") for node in nodes)
    share = state.nodes.checks.running[0].nodes
    event = ev.NodesChecked(share, tuple(result for result in results if result.node in set(share)))
    state, actions = decide(state, [event], 1.0, made)
    assert sum(isinstance(action, act.Launch) for action in actions) == len(share)
