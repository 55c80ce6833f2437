"""Drained nodes: nothing is placed there, and what runs there moves away while there is room."""

from __future__ import annotations

from typing import Any

import pytest
from histories import (
    RUNNING,
    Story,
    array_config,
    array_running,
    config,
    granted,
    killed,
    pilot,
    play,
    ready,
    stepped,
    stop,
    store,
)
from said import lighthouse_up
from steps import A0, A1, ANN, B0, B1, LIGHT0, LIGHT1, S0, S1

from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence, Phase
from ftslurm.protocol import messages as msg
from ftslurm.protocol import records
from ftslurm.protocol.causes import Cause

SLURM = config(cluster={"kind": "slurm", "requeue": False})
REPLACES = config(cluster={"kind": "slurm"})


def drain(node: str) -> ev.Event:
    return ev.Asked("drain", ANN, "c1", node=node)


def undrain(node: str) -> ev.Event:
    return ev.Asked("undrain", ANN, "c2", node=node)


def said(story: Story) -> list[str]:
    return [a.text if isinstance(a, records.CommandDone) else a.reason
            for a in story.all(object) if isinstance(a, (records.CommandDone, records.CommandRefused))]  # fmt: skip


def comes_back(story: Story, now: float, step: Any, node: str, number: int) -> None:
    story.turn(now, ready(step, node))
    story.turn(now + 1, [store(step)])
    story.turn(now + 2, [stepped(step, number)])


def test_a_group_moves_politely_to_the_spare_node_and_the_drained_one_stays_empty() -> None:
    story = play(*RUNNING, (21, drain("n2")), (22, ev.Ended(B0, code=0)), config=SLURM)
    assert said(story) == ["n2 gets nothing any more; group 1: moved as soon as there is another place"]
    assert story.ids(msg.Stop) == [B0]
    assert story.records("step_exited")[0]["cause"] == "requested"
    assert story.records("step_launched")[-1]["nodes"] == ["n3"]
    comes_back(story, 23, B1, "n3", 11)
    story.turn(30, killed(B1))
    assert story.records("step_launched")[-1]["nodes"] == ["n3"]


def test_a_group_without_another_place_stays_until_there_is_one_and_that_is_said() -> None:
    story = play((0, granted(2)), *RUNNING[1:], (21, drain("n2")), config=SLURM)
    assert said(story) == ["n2 gets nothing any more; group 1: moved as soon as there is another place"]
    assert story.all(msg.Stop) == []
    assert story.outcome() is None
    story.turn(30, killed(B0))
    story.turn(30.1, [ev.NodeFate("n2", False)])
    assert story.phases() == [Phase.RUNNING, Phase.PENDING]
    assert story.records("group_waits")[-1]["reason"] == "a free node: n2 drained"
    story.wait(2000)
    assert story.outcome() is None  # a person may take the drain back
    story.turn(2001, [undrain("n2")])
    assert said(story)[-1] == "n2 is used again"
    assert story.ids(act.Launch)[-1] == B1


def test_a_group_stays_while_the_only_other_one_is_restarted_at_the_same_moment() -> None:
    restart = ev.Asked("restart", ANN, "c2", 0)
    story = play(*RUNNING, (21, drain("n2"), restart), config=SLURM)
    assert said(story)[1] == "group 0 is asked to leave, and starts again as attempt 1"
    assert story.ids(msg.Stop) == [A0]
    story.turn(21.5, [drain("n1")])
    assert said(story)[-1] == "n1 gets nothing any more; lighthouse, group 0: moved as soon as there is another place"
    story.turn(21.6, [undrain("n1")])
    story.turn(21.7, [ev.Ended(LIGHT0, code=143)])
    story.turn(21.8, [lighthouse_up(LIGHT1, "http://n3:1")])
    story.turn(22, [ev.Ended(A0, code=143)])
    comes_back(story, 23, A1, "n1", 11)
    assert story.ids(msg.Stop) == [A0, B0]


def test_a_job_is_asked_for_when_no_node_is_free_and_the_group_moves_into_it() -> None:
    story = play((0, granted(2)), *RUNNING[1:], config=REPLACES)
    story.turn(20.5, [ev.JobsSeen((), asked=20.0)])
    story.turn(21, [drain("n2")])
    assert said(story) == ["n2 gets nothing any more; group 1: moved as soon as there is another place"]
    assert story.all(act.RequestJobs) == [act.RequestJobs(0, 1, ("n2",))]
    story.turn(22, [ev.Submitted(0, ("90",))])
    story.turn(25, [ev.JobsSeen((pilot("90", "n7"),), asked=24.9)])
    assert story.ids(msg.Stop) == [B0]
    story.turn(26, [ev.Ended(B0, code=143)])
    assert story.records("step_launched")[-1]["nodes"] == ["n7"]
    comes_back(story, 27, B1, "n7", 12)
    story.wait(100)
    assert story.all(act.CancelJobs) == []


def test_groups_move_one_at_a_time() -> None:
    story = play((0, granted(4)), *RUNNING[1:], (21, drain("n2"), drain("n1")), config=SLURM)
    assert (story.ids(act.Kill), story.ids(msg.Stop)) == ([LIGHT0], [A0])
    story.turn(21.5, [ev.Ended(LIGHT0, code=143)])
    story.turn(21.6, [lighthouse_up(LIGHT1, "http://n3:1")])
    story.turn(22, [ev.Ended(A0, code=143)])
    comes_back(story, 23, A1, "n3", 11)
    assert story.ids(msg.Stop) == [A0, B0]


def test_the_lighthouse_leaves_the_drained_node_and_is_not_told_as_failed() -> None:
    story = play(*RUNNING, (21, drain("n1")), (21.5, ev.Ended(LIGHT0, code=143)), config=SLURM)
    moved = "moved as soon as there is another place"
    assert said(story) == [f"n1 gets nothing any more; lighthouse, group 0: {moved}"]
    (exited,) = story.records("step_exited")
    assert (exited["unit"], exited["cause"]) == ("lighthouse", "requested")
    launched = [r for r in story.records("step_launched") if r["unit"] == "lighthouse"]
    assert launched[-1]["nodes"] == ["n2"]
    assert story.times(act.Launch, LIGHT1) == [21.5]


def lost(node: str) -> ev.Event:
    return ev.NodeFate(node, True, False, "Slurm says down")


@pytest.mark.parametrize(
    ("nodes", "gone", "drained", "then"),
    [
        pytest.param(4, ["n2"], [], "n3", id="the next sound one"),
        pytest.param(2, ["n2"], [], "n1", id="rather a drained one than a lost one"),
        pytest.param(4, ["n2"], ["n3", "n4"], "n1", id="the controller's, if all others are drained or lost"),
    ],
)
def test_a_lighthouse_that_has_moved_does_not_come_back_on_a_lost_node(
    nodes: int, gone: list[str], drained: list[str], then: str
) -> None:
    moved = ((21, drain("n1")), (21.5, ev.Ended(LIGHT0, code=143)), (22, lighthouse_up(LIGHT1, "http://n2:1")))
    story = play((0, granted(nodes)), *RUNNING[1:], *moved, config=SLURM)
    story.turn(23, [*map(drain, drained), *map(lost, gone)])
    story.turn(24, [ev.Ended(LIGHT1, code=None)])
    story.wait(30)
    launched = [r for r in story.records("step_launched") if r["unit"] == "lighthouse"]
    assert [r["nodes"] for r in launched] == [["n1"], ["n2"], [then]]


def test_a_warm_standby_on_the_node_is_launched_elsewhere() -> None:
    standby = config(cluster={"kind": "slurm", "requeue": False}, standby={"count": 1})
    story = play((0, granted(4)), *RUNNING[1:], (20.5, ready(S0, "n3")), (21, drain("n3")), config=standby)
    assert said(story) == ["n3 gets nothing any more; standby-000: moved as soon as there is another place"]
    assert story.ids(act.Kill) == [S0]
    story.turn(22, [ev.Ended(S0, code=137)])
    story.wait(24)
    assert story.ids(act.Launch)[-1] == S1
    assert story.records("step_launched")[-1]["nodes"] == ["n4"]


@pytest.mark.parametrize(
    ("before", "event", "why"),
    [
        (RUNNING, drain("n9"), "the run has no node n9; it has n1, n2, n3"),
        ((*RUNNING, (20.5, drain("n2"))), drain("n2"), "n2 is drained already"),
        ((*RUNNING, (20.5, drain("n2"), drain("n3"))), drain("n1"), "n1 is the last node that the run may use"),
        ((*RUNNING, (20.5, stop())), drain("n2"), "the run is ending"),
        (RUNNING, undrain("n2"), "n2 is not drained; drained: none is"),
        ((*RUNNING, (20.5, drain("n2"))), undrain("n1"), "n1 is not drained; drained: n2"),
    ],
)
def test_what_cannot_be_drained_is_refused_with_the_reason(before: Any, event: ev.Event, why: str) -> None:
    story = play(*before, (20.6, event), config=SLURM)
    refused = story.all(records.CommandRefused)[-1]
    assert refused.reason.startswith(why)
    assert refused.wrong is ("has no node" in why)


def test_the_nodes_of_a_local_run_are_one_machine() -> None:
    story = play(*RUNNING, (21, drain("n2")), config=config(cluster={"kind": "local"}))
    assert said(story) == ["the nodes of a local run are all this machine"]


def test_in_array_mode_the_group_moves_into_a_new_job_and_its_old_one_is_cancelled() -> None:
    story = play(*array_running(), config=array_config())
    story.turn(21, [drain("n2")])
    assert story.all(act.RequestJobs, since=20) == [act.RequestJobs(0, 1, ("n2",))]
    assert story.all(msg.Stop) == []
    story.turn(22, [ev.Submitted(0, ("91",))])
    jobs = (pilot("90_0", "n1"), pilot("90_1", "n2"), pilot("91", "n3"))
    story.turn(25, [ev.JobsSeen(jobs, asked=24.9)])
    assert story.ids(msg.Stop) == [B0]
    story.turn(26, [ev.Ended(B0, code=143)])
    assert story.records("step_launched")[-1]["nodes"] == ["n3"]
    assert story.all(act.CancelJobs) == [act.CancelJobs(("90_1",))]
    assert story.records("allocation_lost")[-1]["reason"] == "n2 is drained"


def test_a_drain_that_is_taken_back_before_the_new_job_starts_cancels_that_job() -> None:
    story = play(*array_running(), (21, drain("n2")), (22, ev.Submitted(0, ("91",))), config=array_config())
    story.turn(23, [undrain("n2")])
    assert story.all(act.CancelJobs) == [act.CancelJobs(("91",))]
    assert story.all(msg.Stop) == []


def test_a_controller_that_takes_over_keeps_the_node_drained() -> None:
    story = play((0, granted(3)), (0.5, drain("n2")), config=SLURM).taken_over(1, home="requeued")
    story.wait(5)
    nodes = [r["nodes"] for r in story.records("step_launched", since=1) if r["group"] is not None]
    assert nodes == [["n1"], ["n3"]]


@pytest.mark.parametrize(
    "fails",
    [
        (
            ev.TaskFailed(
                B0, Evidence(0, None, code=1, error="CUDA error: uncorrectable ECC error", cause=Cause.HARDWARE)
            ),
        ),
        (ev.TaskFailed(B0, Evidence(0, "n2", error="weights differ", cause=Cause.DIVERGED)),),
    ],
)
def test_a_node_that_was_left_out_for_good_is_used_again_if_a_user_says_so(fails: tuple[ev.Event, ...]) -> None:
    story = play((0, granted(4)), *RUNNING[1:], (30, *fails, ev.Ended(B0, 1)), (31,), config=SLURM)
    assert story.state.nodes.of("n2").out is not None
    story.turn(40, [undrain("n2")])
    assert story.state.nodes.of("n2").usable
    assert [act.NoteBroken("n2")] == story.all(act.NoteBroken, since=40)
