"""Pilots that have ended while their jobs run: another is started there, and again if that has not helped."""

from __future__ import annotations

from dataclasses import replace

import said
from histories import Moment, config, pilot, play, ready, stepped, store
from steps import A0, B0, LIGHT0

from ftslurm.config.schema import Config
from ftslurm.core.jobs.queue import MISSING_S, PILOT_AGAIN_S
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Allocation, Job, StepId


def array() -> Config:
    made = config(groups={"nodes": 2, "count": 2})
    made.cluster.kind = "array"
    return made


def seen(*jobs: Job, at: float) -> ev.Event:
    return ev.JobsSeen(jobs, asked=at)


JOBS = (pilot("81_0", "n1", "n2"), pilot("81_1", "n3", "n4"))
AT_WORK: tuple[Moment, ...] = (
    (0, ev.Granted(Allocation("90", ()))),
    (1, seen(*JOBS, at=0.5), said.lighthouse_up(LIGHT0, "http://n9:1")),
    (2, ready(A0, "n1", "n2"), ready(B0, "n3", "n4")),
    (3, store(A0), store(B0)),
    (5, stepped(A0, 1), stepped(B0, 1)),
)


def at_work(step: StepId, task: int, time: float, pilot: bool | None) -> ev.Event:
    return ev.Alive(step, task, time, pilot=pilot)


def test_a_pilot_that_stays_away_is_started_again_in_its_job() -> None:
    story = play(*AT_WORK, (10, at_work(A0, 0, 10, False), at_work(B0, 0, 10, True)), config=array())
    assert story.all(act.StartPilot) == []  # it may only be slow to begin
    story.turn(10 + MISSING_S, [])
    assert story.all(act.StartPilot) == [act.StartPilot("81_0", "id-81_0", "n1")]
    (record,) = story.records("pilot_restarted")
    assert (record["allocation"], record["node"]) == ("81_0", "n1")
    story.turn(20, [at_work(A0, 0, 20, False)])
    assert len(story.all(act.StartPilot)) == 1
    story.turn(11 + MISSING_S + PILOT_AGAIN_S, [])
    assert len(story.all(act.StartPilot)) == 2
    story.turn(60, [at_work(A0, 0, 60, True)])
    story.turn(200, [at_work(A0, 0, 200, True)])
    assert len(story.all(act.StartPilot)) == 2


def test_only_guards_on_the_first_node_of_a_job_can_tell_whether_its_pilot_is_gone() -> None:
    story = play(*AT_WORK, (10, at_work(A0, 1, 10, False), at_work(B0, 0, 10, None)), (20, []), config=array())
    assert story.all(act.StartPilot) == []


def test_a_job_that_was_requeued_has_a_new_pilot() -> None:
    story = play(*AT_WORK, (10, at_work(A0, 0, 10, False)), config=array())
    again = replace(JOBS[0], began=11.0)
    story.turn(11, [seen(replace(JOBS[0], state="PENDING", nodes=()), JOBS[1], at=10.5)])
    story.turn(12, [seen(again, JOBS[1], at=11.5)])
    story.turn(20, [])
    assert story.all(act.StartPilot) == []
