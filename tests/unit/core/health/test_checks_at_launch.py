"""Checks of nodes by the first step there (health.preflight)."""

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
    ready,
    stepped,
    store,
)
from steps import A0, A1, ANN, B0, B1, LIGHT0, S0, URL

from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Allocation, Evidence, Node, Nodes, Out, Phase, StepId

BAD = "check: exit code 1: bad GPU"
TYPO = "chekc: cannot be started (No such file or directory)"


def settings(**sections: dict[str, Any]) -> Any:
    sections["health"] = {"preflight": [["check"]], **sections.get("health", {})}
    return config(**sections)


def failed(step: StepId, node: str, error: str = BAD, task: int = 0) -> list[ev.Event]:
    """Return the events of a step one of whose nodes fails its check."""
    ends = ev.TaskFailed(step, Evidence(task, None, code=1)), ev.Ended(step, code=1)
    return [said.node_checked(step, node, error, task), *ends]


def lacking(step: StepId, node: str) -> list[ev.Event]:
    """Return the events of a step on a node that cannot run the command."""
    ends = ev.TaskFailed(step, Evidence(0, None, code=1)), ev.Ended(step, code=1)
    return [said.node_checked(step, node, TYPO, unstarted=True), *ends]


def checks(story: Story) -> dict[StepId, tuple[str, ...]]:
    """Return what each step checks before its workers start."""
    return {launch.id: launch.check for launch in story.all(act.Launch)}


def on(story: Story, unit: Any) -> tuple[str, ...]:
    return story.unit(unit).place.nodes


def test_the_first_step_on_each_node_checks_it_and_no_later_one() -> None:
    story = play((0, granted(3)), (1, LIGHTHOUSE_UP), config=settings())
    assert checks(story) == {LIGHT0: (), A0: ("n1",), B0: ("n2",)}
    story.turn(2, [said.hello(A0, 0, "n1"), said.node_checked(A0, "n1"), said.node_checked(A0, "n1")])
    assert [r["node"] for r in story.records("node_check_passed")] == ["n1"]
    story.turn(3, killed(A0))
    assert (checks(story)[A1], on(story, A1)) == ((), ("n1",))
    assert "check" not in {launch.check for launch in play(*STARTED).all(act.Launch)}


def test_a_node_that_fails_is_left_out_and_its_group_starts_elsewhere_at_once() -> None:
    story = play((0, granted(3)), (1, LIGHTHOUSE_UP), (2, failed(A0, "n1")), config=settings())
    (record,) = story.records("node_check_failed")
    assert (record["node"], record["reason"]) == ("n1", BAD)
    (ended,) = story.records("step_exited")
    assert (ended["cause"], ended["node"]) == ("hardware", "n1")
    assert ended["error"] == f"{BAD}; see logs/preflight-n1-0.log"
    assert story.records("node_excluded") == []  # it is said once
    assert (on(story, A1), checks(story)[A1]) == (("n3",), ("n3",))
    assert story.all(act.NoteBroken) == [act.NoteBroken("n1", BAD)]
    story.wait(3000)
    assert story.all(act.Probe) == []  # it is not lost: no probe brings it back


def test_undrain_lets_a_node_be_checked_again_that_has_failed() -> None:
    begun = (0, granted(2)), (1, LIGHTHOUSE_UP), (2, failed(B0, "n2"))
    story = play(*begun, (3, ready(A0), store(A0)), config=settings(cluster={"requeue": False}))
    assert story.unit(B0).phase is Phase.PENDING
    story.turn(4, [ev.Asked("undrain", ANN, "c1", node="n2")])
    assert "health.preflight, if set, checks it before" in story.records("command_done")[0]["text"]
    assert [r["node"] for r in story.records("node_restored")] == ["n2"]
    assert (on(story, B1), checks(story)[B1]) == (("n2",), ("n2",))


@pytest.mark.parametrize("spare", [0, 1, 3])
def test_a_run_all_of_whose_nodes_fail_ends_at_once_with_the_reasons(spare: int) -> None:
    story = play((0, granted(2 + spare)), config=settings(cluster={"spare_nodes": spare}))
    for at in range(1, 3 + spare):
        assert story.outcome() is None
        unit = next(u for u in story.state.groups if u.phase is Phase.STARTING)
        story.turn(at, failed(unit.id, unit.place.nodes[0] if unit.place else ""))
    assert story.outcome() == "failed"
    assert f"none of the run's nodes has passed its check (health.preflight): n1: {BAD}; see logs/" in story.reason()


@pytest.mark.parametrize(("groups", "spare"), [(1, 0), (1, 3), (2, 0), (2, 5), (3, 1)])
def test_a_command_that_no_node_can_run_ends_the_run_and_breaks_no_node(groups: int, spare: int) -> None:
    made = settings(groups={"count": groups}, cluster={"spare_nodes": spare})
    story = play((0, granted(groups + spare)), (1, LIGHTHOUSE_UP), config=made)
    while story.outcome() is None and story.now < 60:
        starting = [unit for unit in story.state.groups if unit.phase is Phase.STARTING]
        story.turn(story.now + 1, [event for unit in starting for event in lacking(unit.id, unit.place.nodes[0])])
    assert (story.outcome(), story.reason()) == (
        "failed",
        "every group failed before its first step, all in the same way",
    )
    assert TYPO in story.failure()
    assert {record["cause"] for record in story.records("step_exited")} == {"start_failed"}
    assert (story.records("node_check_failed"), story.all(act.NoteBroken)) == ([], [])
    assert {launch.id.attempt for launch in story.all(act.Launch)} == ({0} if groups > 1 else {0, 1})


def test_a_group_leaves_a_node_that_lacks_the_command() -> None:
    story = play(
        (0, granted(4)),
        (1, LIGHTHOUSE_UP),
        (2, said.node_checked(A0, "n1"), said.hello(A0, 0, "n1")),
        config=settings(),
    )
    for at in (3, 10):
        story.turn(at, lacking(story.unit(B0).id, "n2"))
        story.wait(at + 5)
    assert (story.outcome(), on(story, B0)) == (None, ("n3",))
    assert story.records("node_check_failed") == []


def test_a_group_without_a_sound_node_names_the_failed_one() -> None:
    made = settings(cluster={"requeue": False}, groups={"min": 2})
    fails: tuple[Moment, ...] = ((0, granted(2)), (1, LIGHTHOUSE_UP), (2, said.node_checked(B0, "n2")))
    story = play(*fails, (3, failed(A0, "n1")), config=made)
    assert (story.outcome(), "n1 left out by health.preflight" in story.reason()) == ("failed", True)
    assert BAD in story.failure()
    alone = play(*fails, (3, failed(A0, "n1")), config=settings(cluster={"requeue": False}))
    assert alone.outcome() is None
    assert alone.records("group_waits")[-1]["reason"] == "a free node: n1 left out by health.preflight"
    made = settings(cluster={"kind": "slurm"})
    seen = ev.JobsSeen((), asked=0.0)
    asks = play((0, granted(2)), (1, LIGHTHOUSE_UP, seen), (3, failed(A0, "n1")), (5,), config=made)
    assert asks.all(act.RequestJobs) == [act.RequestJobs(0, 1, ("n1",))]


def test_of_a_group_of_several_nodes_only_the_new_ones_are_checked() -> None:
    made = settings(groups={"count": 1, "nodes": 2, "min": 1})
    story = play((0, granted(3)), (1, LIGHTHOUSE_UP), (2, said.node_checked(A0, "n2", task=1)), config=made)
    story.turn(3, failed(A0, "n1"))
    assert checks(story) == {LIGHT0: (), A0: ("n1", "n2"), A1: ("n3",)}
    story.turn(4, [said.node_checked(A1, "n9", BAD)])  # not one of its nodes
    assert story.state.nodes.out(Out.UNFIT) == {"n1"}


RUNNING: tuple[Moment, ...] = (
    *STARTED[:2],
    (1.5, said.node_checked(A0, "n1"), said.node_checked(B0, "n2")),
    *STARTED[2:],
    (5, stepped(A0, 1), stepped(B0, 1)),
)


def test_a_node_is_checked_again_once_it_was_left_out() -> None:
    for ends in (
        node_lost(B0, "n2"),
        [ev.TaskFailed(B0, Evidence(0, "n2", signal=9, hardware="XID 79")), ev.Ended(B0, code=137)],
    ):
        story = play(*RUNNING, (20, ends), config=settings())
        assert (on(story, B1), checks(story)[B1]) == (("n3",), ("n3",))
        assert story.state.nodes.passed == {"n1"}
    back = play(*RUNNING, (20, node_lost(B0, "n2")), (22, ready(B1, "n3")), config=settings())
    back.turn(41, [ev.Looked("n2", True)])
    back.turn(42, failed(B1, "n3"))
    assert checks(back)[StepId(B1.unit, 2)] == ("n2",)


def test_groups_that_share_a_node_check_their_own_gpus_and_a_standby_none_beside_them() -> None:
    made = settings(groups={"per_node": 2}, standby={"count": 1})
    story = play((0, granted(1)), (1, LIGHTHOUSE_UP), config=made)
    assert checks(story) == {LIGHT0: (), A0: ("n1",), B0: ("n1",), S0: ()}
    spare = play((0, granted(3)), (1, LIGHTHOUSE_UP), config=settings(standby={"count": 1}))
    assert checks(spare)[S0] == ("n3",)
    spare.turn(2, failed(S0, "n3"))
    assert spare.state.nodes.out(Out.UNFIT) == {"n3"}


def test_on_one_machine_a_check_that_fails_everywhere_ends_the_run() -> None:
    made = settings(cluster={"kind": "local"})
    story = play((0, ev.Granted(Allocation("local", ("local0", "local1")))), config=made)
    story.turn(1, [*failed(A0, "local0", "no space"), *failed(B0, "local1", "no space")])
    assert (story.outcome(), "local0: no space" in story.reason()) == ("failed", True)


def test_in_array_mode_a_job_with_a_bad_node_is_replaced() -> None:
    made = array_config(health={"preflight": [["check"]]})
    jobs = pilot("90_0", "n1"), pilot("90_1", "n2")
    asked = (0.1, ev.JobsSeen((), asked=0.0)), (0.5, ev.Submitted(0, ("90_0", "90_1")))
    story = play((0, NO_NODES), *asked, (2.6, ev.JobsSeen(jobs, asked=2.5)), (3, failed(A0, "n1")), config=made)
    assert story.all(act.CancelJobs) == [act.CancelJobs(("90_0",))]
    assert story.all(act.RequestJobs)[-1].exclude == ("n1",)
    assert story.outcome() is None


def test_another_controller_knows_what_has_passed_and_failed() -> None:
    story = play((0, granted(3)), (1, said.lighthouse_up(LIGHT0, URL)), config=settings())
    nodes = Nodes({"n3": Node(Out.UNFIT, 1.0, "bad GPU")}, frozenset({"n1"}))
    story.state = replace(story.state, nodes=nodes)
    story.taken_over(2)
    assert story.state.nodes.out(Out.UNFIT) == {"n3"}
    assert story.state.nodes.passed == {"n1"}


def test_a_group_whose_nodes_are_checked_says_so() -> None:
    story = play((0, granted(3)), (1, LIGHTHOUSE_UP, said.hello(A0, 0, "n1")), (30,), config=settings())
    assert {r["stage"] for r in story.records("step_starting") if r["group"] == 0} == {"check"}
    story.turn(31, [said.node_checked(A0, "n1")])
    story.wait(60)
    assert [r["stage"] for r in story.records("step_starting") if r["group"] == 0] == ["check", "import"]
