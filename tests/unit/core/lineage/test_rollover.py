"""A checkpoint is requested and the run goes on in another job; or it is stopped, naming the setting to change."""

from __future__ import annotations

from dataclasses import replace

import pytest
import said
from histories import (
    CHECKPOINT,
    RUNNING,
    STARTED,
    Story,
    config,
    finished,
    granted,
    killed,
    play,
    ready,
    stepped,
    stop,
    store,
)
from steps import A0, A1, ANN, B0, B1, LIGHT0

from ftslurm.core.lineage import rollover
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import SIGTERM, SLURM, SRUN, Allocation, Evidence, RunOutcome, Saved, StepId
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.turn import Turn
from ftslurm.protocol import messages as msg
from ftslurm.protocol.causes import Cause

ENDS = ev.JobEnds("the time limit is near", SLURM, Cause.TIME_LIMIT, 95.0)
NODES = Allocation("1", ("n1", "n2", "n3"))


def saved(step: int, by: StepId = A0, error: str | None = None) -> ev.Event:
    return said.checkpointed(by, step, f"/ckpt/step-{step:08d}", 0.5, error)


def down(step: int | None, *groups: StepId) -> list[ev.Event]:
    """Return the ends of the groups and of the Lighthouse; the newest checkpoint is of this step."""
    newest = None if step is None else Saved(f"/ckpt/step-{step:08d}", step)
    return [*(ev.Ended(group, 143, checkpoint=newest) for group in groups or (A0, B0)), ev.Ended(LIGHT0, 0)]


def end(story: Story) -> tuple[str, str]:
    """Return the outcome of the run in this job, and the reason."""
    (record,) = [fields for name in ("run_requeued", "run_finished") for fields in story.records(name)]
    assert story.state.finished
    return str(record["outcome"]), str(record["reason"])


def test_at_the_warning_all_groups_are_asked_to_save_and_go_down_when_one_has() -> None:
    story = play(*RUNNING, (30, ENDS), (31, stepped(A0, 20), stepped(B0, 20)))
    assert story.all(msg.Save) == [act.Send(A0, msg.Save(10)), act.Send(B0, msg.Save(10))]
    assert story.all(msg.Stop) == []  # the training goes on meanwhile
    story.turn(32, [saved(22)])
    assert story.ids(msg.Stop) == [A0, B0]
    story.turn(33, down(22))
    assert end(story) == ("requeued", "the time limit is near; the run goes on from the checkpoint of step 22")
    assert {unit.exits[-1].cause for unit in story.state.groups} == {Cause.TIME_LIMIT}


def test_if_the_present_step_is_saved_already_nobody_is_asked() -> None:
    story = play(*RUNNING, (29, saved(10)), (30, ENDS))
    assert story.all(msg.Save) == []
    assert story.times(msg.Stop, A0) == [30]


@pytest.mark.parametrize(
    ("answer", "at", "word"),
    [
        ((), 125, "not in time, see cluster.signal_s"),
        (saved(12, error="OSError: disk full"), 33, "disk full"),
        (saved(8), 125, "not in time"),  # one that was under way
    ],
)
def test_a_checkpoint_that_does_not_come_is_not_waited_for_longer_than_said(
    answer: ev.Event, at: float, word: str
) -> None:
    story = play(*RUNNING, (25, saved(5)), (30, ENDS), (33, *([answer] if answer else [])), (200, down(5)))
    assert story.times(msg.Stop, A0) == [at]
    outcome, reason = end(story)
    assert outcome == "requeued"
    assert word in reason


@pytest.mark.parametrize(
    ("origin", "newest", "words"),
    [
        (None, None, "there is no checkpoint"),
        (4, 4, "no checkpoint was saved in this job, the newest is that of step 4"),
    ],
)
def test_it_does_not_go_on_when_the_next_job_would_come_no_further(
    origin: int | None, newest: int | None, words: str
) -> None:
    there = None if origin is None else Saved("/ckpt/step-00000004", origin)
    steps = (5, stepped(A0, 5), stepped(B0, 5))
    story = play((0, ev.Granted(NODES, there)), *STARTED[1:], steps, (30, ENDS), (200, down(newest)))
    outcome, reason = end(story)
    assert outcome == "stopped"
    assert words in reason


def test_a_job_without_a_step_is_not_repeated() -> None:
    story = play(*STARTED, (30, ENDS), (200, down(None)))
    assert end(story)[0] == "stopped"
    assert "no step was committed in this job" in end(story)[1]


def test_a_script_that_saves_in_its_own_way_goes_on_by_its_word() -> None:
    own = [ev.Ended(step, 143, checkpoint=Saved("/ckpt", None)) for step in (A0, B0)]
    word = config(restart={"on_state_loss": "checkpoint"})
    for settings, outcome in ((config(), "stopped"), (word, "requeued")):
        story = play(*RUNNING, (30, ENDS), (200, *own, ev.Ended(LIGHT0, 0)), config=settings)
        assert end(story)[0] == outcome


def test_groups_without_a_quorum_are_asked_nothing_and_go_on_by_their_users_word() -> None:
    alone = ((0, granted(3)), (2, ready(A0), ready(B0)), (3, store(A0), store(B0)))
    for word, outcome in (("fail", "stopped"), ("checkpoint", "requeued")):
        settings = config(lighthouse={"kind": "none"}, restart={"on_state_loss": word})
        story = play(*alone, (30, ENDS), (31, *(ev.Ended(step, 143) for step in (A0, B0))), config=settings)
        assert story.times(msg.Stop, A0) == [30]
        assert end(story)[0] == outcome


def test_who_comes_while_a_checkpoint_is_waited_for_is_asked_too() -> None:
    back = ((31, killed(A0)), (32, ready(A1)), (33, store(A1)))
    story = play(*RUNNING, (30, ENDS), *back)
    assert story.all(msg.Save) == [act.Send(A0, msg.Save(10)), act.Send(B0, msg.Save(10)), act.Send(A1, msg.Save(10))]


def test_a_run_that_finishes_meanwhile_has_succeeded() -> None:
    story = play(*RUNNING, (30, ENDS), (31, finished(A0), finished(B0)), (32, ev.Ended(LIGHT0, 0)))
    assert end(story)[0] == "succeeded"


def test_while_all_groups_start_over_nobody_holds_more_than_the_checkpoint() -> None:
    lost = (25, killed(A0, checkpoint=Saved("/c", 5)), killed(B0, checkpoint=Saved("/c", 5)))
    story = play(*RUNNING, (20, saved(5)), lost, (26, ENDS))
    assert story.all(msg.Save) == []
    story.turn(27, down(5, A1, B1))
    assert end(story)[0] == "requeued"


def test_a_stop_command_is_stronger_than_the_roll_over() -> None:
    waits = play(*RUNNING, (30, ENDS), (31, stop()), (32, down(5)))
    leaves = play(*RUNNING, (30, ENDS), (31, saved(12)), (31.5, stop()), (32, down(12)))
    assert end(waits) == end(leaves) == ("stopped", "stopped by ann")


def test_a_signal_while_a_run_ends_stops_it_unless_slurm_starts_the_job_again() -> None:
    told = (*RUNNING, (30, ENDS), (31, saved(12)), (31.1, ev.StopAsked("SIGTERM", SIGTERM, wait_s=5.0)))
    cancelled = play(*told, (31.3, down(12)), (32, ev.Explained(True)))
    assert end(cancelled)[0] == "stopped"
    again = ev.StopAsked("Slurm has requeued the job", SLURM, Cause.PREEMPTED, RunOutcome.REQUEUED)
    assert end(play(*told, (31.3, down(12)), (32, again, ev.Explained(True))))[0] == "requeued"


def test_an_answer_of_before_the_signal_is_not_the_answer_to_it() -> None:
    term = ev.StopAsked("SIGTERM", SIGTERM, wait_s=5.0)
    again = ev.StopAsked("Slurm has requeued the job", SLURM, Cause.PREEMPTED, RunOutcome.REQUEUED)
    told = (*RUNNING, (25, saved(10)), (30, term), (30.1, *down(10), ev.Explained(False)))
    assert end(play(*told, (31, again, ev.Explained(True))))[0] == "requeued"
    assert end(play(*told, (31, ev.Explained(True))))[0] == "stopped"


def test_without_a_warning_the_end_of_the_time_limit_itself_is_enough() -> None:
    told = ev.StopAsked("the time limit is over", SLURM, Cause.TIME_LIMIT, RunOutcome.GOES_ON)
    term = ev.StopAsked("SIGTERM", SIGTERM, wait_s=5.0)
    story = play(*RUNNING, (25, saved(10)), (30, term), (30.2, told, ev.Explained(True)), (31, down(10)))
    assert end(story) == ("requeued", "the time limit is over; the run goes on from the checkpoint of step 10")


def test_sruns_reason_comes_first_and_no_group_is_started_in_a_job_that_is_over() -> None:
    told = ev.StopAsked("the time limit is over", SRUN, Cause.TIME_LIMIT, RunOutcome.GOES_ON)
    over = ev.TaskFailed(A0, Evidence(None, "n1", cause=Cause.TIME_LIMIT, error="Slurm cancelled the step"))
    term = ev.StopAsked("SIGTERM", SIGTERM, wait_s=5.0)
    story = play(
        *RUNNING, (25, saved(10)), (30, told, over, told), (30.1, *down(10), term), (31, told, ev.Explained(True))
    )
    assert end(story)[0] == "requeued"
    assert len(story.ids(act.Launch)) == 3
    assert [record["by"] for record in story.records("command")] == ["srun", "SIGTERM"]


def test_moves_to_another_job_are_no_restarts() -> None:
    story = play(*RUNNING, (30, killed(A0)), (35,)).taken_over(1000, home="requeued", checkpoint=CHECKPOINT)
    story.turn(1001, [])
    story.turn(1002, [stop()])
    story.turn(1003, [ev.Ended(step, 143) for step in story.ids(act.Launch, since=1000)])
    assert [record["restarts"] for record in story.records("run_finished")] == [2]  # the second with its node


def test_other_rules_may_ask_too_and_the_answer_is_about_what_was_asked() -> None:
    story = play(*RUNNING)
    state, turn = story.state, Turn(story.state, 30.0, story.config)
    rollover.ask(turn, 10.0)
    asked = turn.state

    def answered(state: RunState, now: float) -> bool:
        return rollover.answered(Turn(state, now, story.config))

    assert not answered(asked, 30.0)
    assert answered(asked, 40.0)
    assert answered(replace(asked, lineage=replace(asked.lineage, newest=10)), 30.0)
    assert not answered(replace(asked, lineage=replace(asked.lineage, newest=9)), 30.0)
    assert answered(state, 30.0)  # no user has asked


def test_a_run_that_scale_has_made_larger_is_as_large_in_its_next_job() -> None:
    grown = (30, ev.Asked("scale", ANN, "c1", groups=3))
    story = play(*RUNNING, grown, config=config(groups={"max": 4}))
    story.taken_over(1000, home="requeued", checkpoint=CHECKPOINT)
    story.wait(1001)
    assert [(u.name, u.attempt) for u in story.state.groups] == [(f"group-000{n}", 1) for n in range(3)]
