"""Groups leave jobs that are about to end: one at a time while there is time, all at once when there is none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import said
from histories import NO_NODES, Moment, Story, array_config, array_running, pilot, play, queued, ready, stepped, store
from steps import A0, A1, B0, B1

from ftslurm.core.jobs.supply import STARTS_S, handover_at
from ftslurm.core.leaving import SAVES_S, SPARE_S
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Allocation, Job, Phase
from ftslurm.protocol import messages as msg
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.records import CONTROLLER_POOL

ENDS = 3600.0  # of both pilots
ARRAY = array_config(cluster={"signal_s": 120})
OLD = (pilot("90_0", "n1", ends=ENDS), pilot("90_1", "n2", ends=ENDS))
AT_WORK = array_running(ENDS)
HANDOVER = ENDS - 900
LAST_CALL_S = ARRAY.stop.grace_s + SAVES_S + SPARE_S


def seen(now: float, *jobs: Job) -> Moment:
    return (now, ev.JobsSeen((*OLD, *jobs), now - 0.1))


def test_half_its_time_is_the_most_that_a_short_job_spends_on_handing_over() -> None:
    long, short = replace(OLD[0], began=0.0), replace(OLD[0], began=0.0, ends=600.0)
    assert handover_at(long, ARRAY) == 2700
    assert handover_at(short, ARRAY) == 300
    assert handover_at(replace(long, ends=None), ARRAY) is None


def test_successors_are_asked_for_before_the_time_limit_and_not_earlier() -> None:
    story = play(*AT_WORK, seen(20), config=ARRAY)
    story.wait(HANDOVER - 1)
    assert story.all(act.RequestJobs) == [act.RequestJobs(0, 2)]
    story.wait(HANDOVER + 1)
    assert story.all(act.RequestJobs, since=100) == [act.RequestJobs(0, 2)]
    assert story.all(msg.Stop) == []  # no group moves before there is a place


def moving() -> Story:
    """Play until the successors of both pilots run and group 0 has the order to move."""
    story = play(*AT_WORK, seen(20), config=ARRAY)
    story.wait(HANDOVER + 1)
    story.turn(HANDOVER + 5, [ev.JobsSeen((*OLD, pilot("91_0", "n3", ends=9e9), pilot("91_1", "n4", ends=9e9)), 2704)])
    return story


def test_a_group_that_is_about_to_finish_is_not_moved() -> None:
    story = play(*AT_WORK, seen(20), config=ARRAY)
    story.wait(HANDOVER + 1)
    successors = pilot("91_0", "n3", ends=9e9), pilot("91_1", "n4", ends=9e9)
    story.turn(HANDOVER + 5, [said.script_done(A0, 0), ev.JobsSeen((*OLD, *successors), 2704)])
    assert story.ids(msg.Stop) == [B0]


def test_groups_move_one_at_a_time_while_another_holds_the_state() -> None:
    story = moving()
    assert story.ids(msg.Stop) == [A0]
    (leaving,) = story.records("allocation_leaving")
    assert (leaving["allocation"], leaving["cause"]) == ("90_0", "time_limit")
    now = story.now
    story.turn(now + 1, [ev.Ended(A0, code=143)])
    assert story.records("step_exited")[-1]["cause"] == "time_limit"
    assert story.ids(act.Launch)[-1] == A1
    assert story.records("step_launched")[-1]["nodes"] == ["n3"]
    story.wait(now + 3)
    assert story.ids(msg.Stop) == [A0]  # A does not hold the state yet
    story.turn(now + 4, ready(A1, "n3"))
    story.turn(now + 5, [store(A1)])
    story.turn(now + 6, [stepped(A1, 500), stepped(B0, 500)])
    assert story.ids(msg.Stop) == [A0, B0]
    story.turn(now + 7, [ev.Ended(B0, code=143)])
    assert story.ids(act.Launch)[-1] == B1
    assert {names for action in story.all(act.CancelJobs) for names in action.names} == {"90_0", "90_1"}
    assert story.outcome() is None


def test_a_group_that_stops_is_given_its_grace_time_and_no_more() -> None:
    story = moving()
    now = story.now
    story.wait(now + 9)
    assert story.all(act.Kill) == []
    story.wait(now + 11)
    assert story.ids(act.Kill) == [A0]


def test_the_only_group_that_holds_the_state_does_not_move_before_it_must() -> None:
    story = play(*AT_WORK, seen(20), config=ARRAY)
    story.turn(HANDOVER - 10, [ev.Ended(B0, code=1)])  # it starts again once the state of its job is known
    story.wait(HANDOVER + 1)
    story.turn(HANDOVER + 5, [ev.JobsSeen((*OLD, pilot("91_0", "n3", ends=9e9)), HANDOVER + 4)])
    assert story.unit(B1).phase is Phase.STARTING
    assert story.records("step_launched")[-1]["nodes"] == ["n3"]  # and not for a short while where it was
    assert story.ids(msg.Stop) == []
    story.wait(ENDS - 121)
    assert story.ids(msg.Stop) == []
    story.wait(ENDS - 119)
    assert story.ids(msg.Stop) == []
    story.turn(ENDS - 118, [ev.JobLeaving("90_0", Cause.TIME_LIMIT, "Slurm sent SIGUSR2 to it")])  # which is known
    assert story.ids(msg.Stop) == []
    assert {record["allocation"] for record in story.records("allocation_leaving")} == {"90_1"}  # which is empty
    story.wait(ENDS - LAST_CALL_S + 1)  # it is the last: what it holds is saved first
    assert (story.ids(msg.Save), story.ids(msg.Stop)) == ([A0], [])
    story.turn(ENDS - LAST_CALL_S + 2, [said.checkpointed(A0, 20, "/ckpt/step-00000020", 0.5)])
    assert story.ids(msg.Stop) == [A0]


def test_the_last_holder_is_not_kept_by_a_checkpoint_that_does_not_come() -> None:
    story = play(*AT_WORK, seen(20), config=ARRAY)
    story.wait(ENDS - ARRAY.stop.grace_s - SPARE_S - 1)
    assert (story.ids(msg.Save), story.ids(msg.Stop)) == ([B0], [A0])
    story.wait(ENDS - ARRAY.stop.grace_s - SPARE_S + 1)
    assert story.ids(msg.Stop) == [A0, B0]


def test_halfway_to_its_end_a_job_is_left_for_a_successor_that_may_wait_for_its_node() -> None:
    halfway = (HANDOVER + ENDS) / 2
    story = play(*AT_WORK, seen(20), config=ARRAY)
    story.wait(HANDOVER + 1)
    story.turn(*_with(HANDOVER + 5, queued("91_0", "Resources"), queued("91_1", "Priority")))
    story.wait(halfway - 1)
    assert story.ids(msg.Stop) == []
    story.wait(halfway + 1)
    assert story.ids(msg.Stop) == [A0]
    story.turn(halfway + 2, [ev.Ended(A0, code=143)])
    assert story.ids(act.Launch)[-1] == B0  # it waits; not in a job that ends
    assert act.CancelJobs(("90_0",)) in story.all(act.CancelJobs)  # so that its node comes free
    story.turn(*_with(halfway + 10, pilot("91_0", "n1", ends=9e9), queued("91_1", "Resources")))
    assert story.ids(act.Launch)[-1] == A1


def test_halfway_nobody_moves_when_nothing_waits_for_the_node() -> None:
    story = play(*AT_WORK, seen(20), config=ARRAY)
    story.wait(ENDS - 130)  # sbatch has never answered
    assert story.ids(msg.Stop) == []
    story.wait(ENDS - 119)
    assert story.ids(msg.Stop) == [A0]  # the other one is the last that holds the state


def _with(now: float, *jobs: Job) -> tuple[float, list[ev.JobsSeen]]:
    return now, [ev.JobsSeen((*OLD, *jobs), now - 0.1)]


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.TIME_LIMIT])
def test_a_pilot_that_is_warned_is_left_at_once_and_only_by_its_group(cause: Cause) -> None:
    story = play(*AT_WORK, (12, ev.JobLeaving("90_1", cause, "Slurm sent SIGTERM to it")), config=ARRAY)
    assert story.ids(msg.Stop) == [B0]
    assert story.unit(A0).phase is Phase.RUNNING
    story.turn(12.5, [ev.JobLeaving("90_1", cause, "Slurm sent SIGTERM to it")])
    assert len(story.records("allocation_leaving")) == 1


def test_a_group_that_only_starts_has_nothing_to_be_asked_and_is_ended_at_once() -> None:
    starting = [moment for moment in AT_WORK if moment[0] <= 2.6]
    story = play(*starting, (3, ev.JobLeaving("90_1", Cause.PREEMPTED, "Slurm sent SIGTERM to it")), config=ARRAY)
    assert story.ids(msg.Stop) == []
    assert story.ids(act.Kill) == [B0]


def test_a_job_without_a_time_limit_is_never_left_for_it() -> None:
    story = play(*array_running(), (20, ev.JobsSeen((pilot("90_0", "n1"), pilot("90_1", "n2")), 19)), config=ARRAY)
    story.wait(1e5)
    assert story.ids(msg.Stop) == []
    assert len(story.all(act.RequestJobs)) == 1


# --- the controller's own job -----------------------------------------------------------------------------------------

IN_A_JOB = array_config(cluster={"signal_s": 120, "controller": "job"})


def controllers(name: str, node: str, ends: float = ENDS) -> Job:
    return replace(pilot(name, node, ends=ends), pool=CONTROLLER_POOL)


def led_from(own: Job) -> Story:
    """Return a history of two groups at work, whose controller runs in this job: one of its own, or that of a group."""

    def as_there(event: Any) -> Any:
        if event is NO_NODES:
            return replace(NO_NODES, allocation=Allocation(own.name, ()))
        return seen_beside(event.asked, own, event.jobs) if isinstance(event, ev.JobsSeen) else event

    moments = [(time, *map(as_there, events)) for time, *events in AT_WORK]
    return play(*moments, (20, seen_beside(19.9, own, OLD)), config=IN_A_JOB)


def seen_beside(asked: float, own: Job, jobs: Iterable[Job]) -> ev.JobsSeen:
    return ev.JobsSeen(tuple({job.name: job for job in (*jobs, own)}.values()), asked)


def test_the_controllers_job_is_replaced_and_hands_over_to_the_next_one_before_its_limit() -> None:
    own, lasting = controllers("7", "n8"), (pilot("91_0", "n3", ends=9e9), pilot("91_1", "n4", ends=9e9))
    story = led_from(own)
    assert {one.pool for one in story.all(act.RequestJobs)} == {0}
    story.wait(HANDOVER + 1)
    assert act.RequestJobs(CONTROLLER_POOL, 1) in story.all(act.RequestJobs)
    waits = replace(queued("92"), pool=CONTROLLER_POOL)
    story.turn(HANDOVER + 5, [seen_beside(HANDOVER + 4.9, own, (*OLD, *lasting, waits))])
    assert story.state.hands_over is None  # a group's job does not lead while the controller's does
    story = led_from(own)
    story.wait(HANDOVER + 1)
    story.turn(HANDOVER + 5, [seen_beside(HANDOVER + 4.9, own, (*OLD, controllers("92", "n9", 9e9)))])
    assert story.state.hands_over is None  # its process has just been started
    story.wait(HANDOVER + 5.1 + STARTS_S)
    assert story.state.hands_over == "its job is about to end"
    assert "7" not in {name for action in story.all(act.CancelJobs) for name in action.names}


@pytest.mark.parametrize(
    ("other", "at", "why"),
    [
        (controllers("92", "n9", 9e9), 24.0, "the controller's own job leads again"),
        (replace(queued("92"), pool=CONTROLLER_POOL), 24.0, None),
        (pilot("91_0", "n3", ends=9e9), 24.0, None),
        (pilot("91_0", "n3", ends=9e9), HANDOVER + 1, "its job is about to end"),
        (queued("91_0"), HANDOVER + 1, None),  # nobody else lasts longer
    ],
)
def test_a_groups_job_that_leads_hands_over_to_the_controllers_and_before_it_ends_to_any_other(
    other: Job, at: float, why: str | None
) -> None:
    own = OLD[0]
    story = led_from(own)
    story.wait(at - 1)
    story.turn(at, [seen_beside(at - 0.1, own, (*OLD, other))])
    story.wait(at + STARTS_S + 0.1)
    assert story.state.hands_over == why
    assert own.name not in {name for action in story.all(act.CancelJobs) for name in action.names}


def test_nobody_hands_over_while_a_step_begins_or_ends() -> None:
    story = led_from(OLD[0])
    story.turn(23, [ev.Ended(B0, code=1)])
    story.turn(30, [seen_beside(29.9, OLD[0], (*OLD, controllers("92", "n9", 9e9)))])
    story.wait(34)
    assert story.ids(act.Launch)[-1] == B1
    assert story.state.hands_over is None
    story.turn(35, ready(B1, "n2"))
    story.turn(36, [store(B1)])
    story.turn(37, [stepped(B1, 500)])
    assert story.state.hands_over == "the controller's own job leads again"
