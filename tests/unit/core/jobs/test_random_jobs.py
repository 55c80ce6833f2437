"""Array mode in a random world: jobs wait, end, come back and are refused; answers are late or lost.

After a time of random faults Slurm works again; then every group must train in its own job, and no job may be left
over.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import said
from fuzz import numbers
from histories import FOREIGN, NO_NODES, Story, array_config, flat
from replaced import Replaced
from steps import ANN

from ftslurm.core.jobs.supply import lasts, wanted
from ftslurm.core.rules import begin
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import LIVE, Evidence, Job, Phase, StepId
from ftslurm.core.state.turn import Turn
from ftslurm.protocol import messages as msg
from ftslurm.protocol.causes import Cause

HISTORIES = 3  # in each block
BLOCKS = numbers(2, 8)
TROUBLE_S, PEACE_S = 300.0, 700.0
ENDS = ("CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "COMPLETED")
SIGNS = [  # of a step that Slurm ends with its job
    Evidence(cause=Cause.CANCELLED, error="Slurm cancelled the step (scancel)"),
    Evidence(cause=Cause.PREEMPTED, error="Slurm cancelled the step due to preemption"),
    Evidence(0, code=143, cause=Cause.LEFT_ON_SIGTERM),
]


@dataclass
class Truth:
    """A job as slurmctld knows it."""

    name: str
    state: str = "PENDING"
    reason: str = ""
    node: str = ""
    until: float = 0.0  # when it starts, or leaves COMPLETING


class Slurm:
    """slurmctld, the nodes, and the groups' steps on them."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.config = array_config(groups={"count": self.dice.randint(2, 4), "max": 5})
        self.config.cluster.requeue = self.dice.random() < 0.7
        self.wishes = random.Random(seed)
        self.signs = random.Random(f"signs {seed}")
        self.jobs: dict[str, Truth] = {}
        self.live: dict[StepId, str] = {}  # in which job
        self.begun: set[StepId] = set()  # their scripts run
        self.coming: list[tuple[float, int, ev.Event]] = []
        self.numbers = itertools.count(90)
        self.step = 0
        self.trouble = sorted(self.dice.uniform(10, TROUBLE_S) for _ in range(self.dice.randint(2, 12)))
        self.later(0, NO_NODES)

    def later(self, time: float, event: ev.Event) -> None:
        heapq.heappush(self.coming, (time, next(self.numbers), event))

    def until(self, now: float) -> list[ev.Event]:
        for job in self.jobs.values():
            if job.state == "PENDING" and now >= job.until:
                job.state, job.reason, job.node = "RUNNING", "", f"n{next(self.numbers)}"
            elif job.state == "COMPLETING" and now >= job.until:
                job.state = "CANCELLED"
        while self.trouble and self.trouble[0] <= now:
            self.strike(self.trouble.pop(0))
        for step, name in list(self.live.items()):
            if step in self.begun and self.jobs[name].state == "RUNNING" and self.dice.random() < 0.2:
                self.step += 1
                self.later(now, said.progressed(step, self.step, 1, 1, 1, 0))
        events = []
        while self.coming and self.coming[0][0] <= now:
            events.append(heapq.heappop(self.coming)[2])
            if isinstance(events[-1], ev.Ended):
                self.live.pop(events[-1].id, None)
        return events

    def strike(self, now: float) -> None:
        lot, running = self.dice.random(), [job for job in self.jobs.values() if job.state == "RUNNING"]
        if lot < 0.15:
            self.later(now, ev.Asked("scale", ANN, "c1", groups=self.dice.randint(1, 5)))
        elif running:
            job = self.dice.choice(running)
            wish = self.wishes.choice([None, None, "drain", "drain", "undrain", "restart"])
            if wish == "restart":
                self.later(now, ev.Asked("restart", ANN, "c1", self.wishes.randint(0, 4), None))
            elif wish is not None:
                self.later(now, ev.Asked(wish, ANN, "c2", node=job.node))
            if lot < 0.4:
                cause = self.dice.choice([Cause.PREEMPTED, Cause.TIME_LIMIT])
                self.later(now, ev.JobLeaving(job.name, cause, "Slurm sent SIGTERM to it"))
            if 0.3 < lot < 0.6:
                self.requeue(job, now + self.dice.uniform(0, 5))
            elif 0.4 < lot < 0.9:
                job.state, job.until = self.dice.choice([*ENDS, "COMPLETING"]), now + self.dice.uniform(0, 20)
                self.steps_end(job, now)
            elif lot >= 0.9:
                for step in [step for step, name in self.live.items() if name == job.name]:
                    self.later(now, ev.TaskFailed(step, Evidence(None, job.node, node_lost=True)))

    def requeue(self, job: Truth, now: float) -> None:
        job.state, job.reason, job.until = "PENDING", "BeginTime", now + 121
        self.steps_end(job, now)

    def steps_end(self, job: Truth, now: float) -> None:
        for step in [step for step, name in self.live.items() if name == job.name]:
            for sign in self.signs.sample(SIGNS, self.signs.randint(0, 1)):
                self.later(now + self.signs.uniform(0, 0.5), ev.TaskFailed(step, sign))
            if self.dice.random() < 0.7:  # else its srun hangs
                self.later(now + self.dice.uniform(0.1, 2), ev.Ended(step, code=137, checkpoint=FOREIGN))

    def obey(self, now: float, action: act.Action) -> None:
        soon, dice = now + self.dice.uniform(0.05, 2), self.dice
        match action:
            case act.AskJobs() if dice.random() < 0.1 and now < TROUBLE_S:
                self.later(soon, ev.JobsSeen((), now, soon - now, whole=False))
            case act.AskJobs():
                shown = [
                    Job(j.name, 0, j.state, f"id-{j.name}", (j.node,) if j.state == "RUNNING" else (), j.reason)
                    for j in self.jobs.values()
                ]
                self.later(soon, ev.JobsSeen(tuple(shown), now, soon - now))
            case act.RequestJobs(pool, count):
                if dice.random() < 0.2 and now < TROUBLE_S:
                    self.later(soon, ev.Submitted(pool, (), "Invalid qos specification"))
                    return
                array = next(self.numbers)
                names = tuple(f"{array}_{task}" for task in range(count))
                self.jobs |= {name: Truth(name, until=now + dice.expovariate(0.05)) for name in names}
                self.later(soon, ev.Submitted(pool, names))
            case act.CancelJobs(names):
                for job in (self.jobs[name] for name in names):
                    job.state, job.until = "COMPLETING", soon
                    self.steps_end(job, now)
            case act.RequeueJob(name) if dice.random() < 0.3:
                self.later(soon, ev.RequeueRefused(name, "Requested operation is presently disabled"))
            case act.RequeueJob(name) if self.jobs[name].state == "RUNNING":
                self.requeue(self.jobs[name], now)
            case act.StartNow(name) if self.jobs[name].state == "PENDING":
                self.jobs[name].reason, self.jobs[name].until = "", now + dice.uniform(0, 30)
            case act.Launch(id=step, group=group, place=place) if group is not None:
                self.live[step] = str(place.allocation)
                if self.jobs[str(place.allocation)].node != place.nodes[0]:  # it has changed
                    self.later(soon, ev.Ended(step, code=1, launcher_failed=True, checkpoint=FOREIGN))
                    return
                self.later(now + 0.1, said.hello(step, 0, place.nodes[0]))
                self.later(now + 2.2, said.ready(step, 0))
            case act.Launch(id=step):
                self.later(now + 0.5, said.hello(step, 0, "n0"))
                self.later(now + 1, said.lighthouse_up(step, f"http://n0:{step.attempt + 1}"))
            case act.Assign(id=step):
                self.later(soon, said.store_up(step, "n1", 29500))
            case act.Send(step, msg.Begin()):
                self.begun.add(step)
                self.step += 1
                self.later(soon, said.progressed(step, self.step, 1, 1, 1, 0))
            case act.Kill(id=step) | act.Send(step, msg.Stop()) if step in self.live:
                self.later(soon, ev.Ended(step, code=143, checkpoint=FOREIGN))


def check_causes(story: Story) -> None:
    """Check that who reads the journal sees for each end the one cause with which the restart policy counts it."""
    told = {(line["group"], line["attempt"]): line for line in story.records("step_exited") if line["launched"]}
    for line in story.records("cause_corrected"):
        end = told[line["group"], line["attempt"]]
        assert end["cause"] == line["was"] != line["cause"], line
        told[line["group"], line["attempt"]] = {**end, "cause": line["cause"]}
    for unit in story.state.groups:
        counted = {(unit.group, end.attempt): end.cause.value for end in unit.exits if end.launched}
        assert counted == {key: told[key]["cause"] for key in counted}


def live_through(seed: int, kind: type[Story] = Story, **more: Any) -> Story:
    slurm = Slurm(seed)
    config = slurm.config
    config.restart.max_per_group, config.restart.on_state_loss = 1000, "checkpoint"
    story = kind(config, begin(config), **more)
    now = 0.0
    while now < TROUBLE_S + PEACE_S and story.outcome() is None:
        times = [now + 2.0, story.state.wakes, *(event[0] for event in slurm.coming[:1])]
        now = max(now, min(times)) + slurm.dice.choice([0.0, 0.0, 0.3])
        for action in story.turn(now, flat(slurm.until(now))):
            slurm.obey(now, action)
            if isinstance(action, act.RequestJobs):
                turn = Turn(story.state, now, config)
                there = sum(lasts(turn, job) for job in turn.jobs)
                asked = sum(asking.count for asking in story.state.job_pool.asking.values())
                assert there + asked <= wanted(turn, 0), f"at {now}: two jobs for one group"
        check_causes(story)
        places = [u.place for u in story.state.groups if u.phase in LIVE]
        assert len({(place.allocation, place.nodes) for place in places}) == len(places)
    if story.outcome() is not None:  # no group held the state any more, sbatch refused too often, or all were cancelled
        known = ("checkpoint", "no node to run on", "lost", "cancelled all jobs")
        assert any(words in story.reason() for words in known), story.reason()
        return story
    phases = {u.name: (u.phase, u.waits_for, u.place) for u in story.state.groups}
    assert all(u.phase is Phase.RUNNING and u.current.step is not None for u in story.state.groups), phases
    there = sorted(job.name for job in slurm.jobs.values() if job.state in ("RUNNING", "PENDING"))
    used = sorted(str(u.place.allocation) for u in story.state.groups if u.place.nodes)
    assert there == used, f"jobs for nobody: {there}, {used}"
    return story


@pytest.mark.parametrize("block", BLOCKS)
def test_whatever_slurm_does_each_group_comes_back_in_a_job_of_its_own(block: int) -> None:
    ends = 0
    for seed in range(block * HISTORIES, (block + 1) * HISTORIES):
        try:
            ends += live_through(seed).outcome() is None
        except Exception as error:
            raise AssertionError(f"live_through({seed}): {error!r}") from error
    assert ends > 0


@pytest.mark.parametrize("block", BLOCKS)
def test_whoever_leads_each_group_comes_back(block: int) -> None:
    replaced = 0
    for seed in range(block * HISTORIES, (block + 1) * HISTORIES):
        try:
            story = live_through(seed, Replaced, dice=Random(f"replaced {seed}"))
        except Exception as error:
            raise AssertionError(f"live_through({seed}, Replaced): {error!r}") from error
        assert isinstance(story, Replaced)
        replaced += story.replaced
    assert replaced > HISTORIES
