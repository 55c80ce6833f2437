"""The stop of a run: steps that are asked to end, steps that are killed, and the end of the run."""

from __future__ import annotations

from histories import (
    RUNNING,
    granted,
    killed,
    play,
    stepped,
    stop,
)
from steps import A0, B0, B1, LIGHT0

from ftslurm.core.rules import KILL_AGAIN_S
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import SLURM, Evidence, Phase
from ftslurm.protocol import messages as msg
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.records import Command, RunFinished
from ftslurm.protocol.stages import Stage


def test_a_run_that_is_stopped_before_it_has_nodes_ends_at_once() -> None:
    story = play((0,), (1, stop()))
    assert [type(a) for a in story.all(object)] == [Command, RunFinished, act.Finish]
    assert story.records("command") == [{"what": "stop", "by": "ann", "reason": "stopped by ann"}]
    assert story.records("run_finished")[0]["outcome"] == "stopped"
    assert {unit.phase for unit in story.state.units} == {Phase.FAILED}


def test_stop_kills_at_once_what_is_still_starting() -> None:
    story = play(
        (0, granted(3)), (1, stop()), (1.3, ev.Ended(A0, 137), ev.Ended(B0, 137)), (1.5, ev.Ended(LIGHT0, 137))
    )
    assert story.ids(msg.Stop) == []
    assert [story.times(act.Kill, step) for step in (A0, B0, LIGHT0)] == [[1], [1], [1.3]]
    assert story.all(act.Finish) == [act.Finish("stopped", "stopped by ann")]


def test_stop_asks_running_groups_first_and_kills_them_after_the_grace() -> None:
    story = play(*RUNNING, (30, stop()), (32, ev.Ended(A0, 0)), (39.9,))
    assert story.ids(msg.Stop) == [A0, B0]
    assert story.ids(act.Kill) == []
    story = play(*RUNNING, (30, stop()), (32, ev.Ended(A0, 0)), (40.3, ev.Ended(B0, 137)), (41, ev.Ended(LIGHT0, 0)))
    assert story.times(act.Kill, B0) == [40]
    assert [e["cause"] for e in story.records("step_exited")] == ["cancelled"] * 3
    assert [e["noticed"] for e in story.records("step_exited")] == [30, 30, 40.3]
    assert story.all(act.Finish) == [act.Finish("stopped", "stopped by ann")]


def test_the_run_has_the_steps_that_its_groups_have() -> None:
    beat = ev.Alive(B0, 0, 29.5, step=44, stage=Stage.COMPUTING, since_s=0.1)  # its progress comes once a second
    ends = (32, ev.Ended(A0, 0), ev.Ended(B0, 0)), (33, ev.Ended(LIGHT0, 0))
    story = play(*RUNNING, (29, stepped(A0, 40), stepped(B0, 40)), (29.5, beat), (30, stop()), *ends)
    assert [end["step"] for end in story.records("step_exited")] == [40, 44, None]
    assert story.records("run_finished")[0]["steps"] == 44


def test_stop_also_ends_groups_that_wait_for_their_restart() -> None:
    story = play(
        *RUNNING, (30, killed(B0)), (40, killed(B1)), (40.1, stop()), (41, ev.Ended(A0, 0)), (42, ev.Ended(LIGHT0, 0))
    )
    assert story.ids(act.Launch, since=40) == []
    assert story.state.finished
    assert {unit.phase for unit in story.state.units} == {Phase.FAILED}


def test_stop_while_a_step_is_being_brought_down_waits_for_its_end() -> None:
    story = play(*RUNNING, (30, ev.TaskFailed(B0, Evidence(0, None, signal=9))), (30.1, stop()), (31, ev.Ended(A0, 0)))
    assert not story.state.finished
    assert story.ids(act.Kill) == [B0]
    story = play(
        *RUNNING, (30, ev.TaskFailed(B0, Evidence(0, None, signal=9))), (30.1, stop()), (31, ev.Ended(B0, 137))
    )
    assert story.ids(act.Launch, since=30) == []


def test_a_second_stop_changes_nothing_and_hurries_nobody() -> None:
    once = play(*RUNNING, (30, stop()), (35,))
    twice = play(*RUNNING, (30, stop()), (35, stop("again")))
    assert once.state == twice.state
    assert [a for _, a in twice.done[len(once.done) :]] == [Command(what="stop", by="ann", reason="again")]


def test_a_user_who_asks_again_is_answered_each_time_and_slurm_is_not() -> None:
    for by, answers in ((1000, 2), (SLURM, 1)):
        again = ev.StopAsked("stopped by ann", by)
        story = play(*RUNNING, (30, again), (35, again))
        assert len(story.records("command")) == answers
        assert story.state == play(*RUNNING, (30, again), (35,)).state


def test_a_stop_at_the_time_limit_says_so() -> None:
    limit = ev.StopAsked("the time limit is near", SLURM, Cause.TIME_LIMIT)
    story = play(*RUNNING, (30, limit), (31, ev.Ended(A0, 0), ev.Ended(B0, 0)), (32, ev.Ended(LIGHT0, 0)))
    assert [e["cause"] for e in story.records("step_exited")] == ["time_limit"] * 3
    assert story.outcome() == "stopped"


def test_a_kill_is_repeated_until_the_step_is_gone() -> None:
    story = play(*RUNNING, (30, ev.TaskFailed(B0, Evidence(0, None, signal=9))), (47, ev.Ended(B0, 137)), (60,))
    assert story.times(act.Kill, B0) == [30, 30 + KILL_AGAIN_S, 30 + 2 * KILL_AGAIN_S, 30 + 3 * KILL_AGAIN_S]


def test_signs_that_follow_the_first_do_not_kill_again() -> None:
    story = play(*RUNNING, *((30 + n / 10, ev.TaskFailed(B0, Evidence(0, None, signal=9))) for n in range(5)))
    assert story.times(act.Kill, B0) == [30]
