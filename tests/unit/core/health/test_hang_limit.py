"""The limit that is learnt from a run's own steps: how it grows, what does not teach it, and whom it never blames."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from math import inf

import pytest
import said
from fuzz import numbers
from histories import Moment, Story, config, granted, killed, play, ready, store
from steps import A0, B0, C0, LIGHT0, URL

from ftslurm.config.schema import Config
from ftslurm.core.health.hangs import ENOUGH, Limits, limits
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Standstill, StepId
from ftslurm.protocol import messages as msg
from ftslurm.protocol.stages import Stage

LEAST = 300.0
JOIN = 900.0
BEAT = 20.0
COMPUTES, ASKS, HAS_QUORUM, COLLECTIVE, VOTES, _ = Stage


def settings(**health: object) -> Config:
    timed = {"heartbeat_s": BEAT, "join_timeout_s": JOIN}
    made = config(timed, groups={"count": 3}, health={"hang_after_s": "auto"})
    for key, value in health.items():
        setattr(made if hasattr(made, key) else made.health, key, value)
    return made


def learnt(*seconds: float, **health: object) -> Limits:
    return limits(Standstill(longest_s=max(seconds), seen=len(seconds)), settings(**health))


# --- how the limit follows from the times -----------------------------------------------------------------------------


def test_a_number_is_the_limit_at_every_stage_and_zero_is_none() -> None:
    assert learnt(1.0, hang_after_s=7.0) == (7.0, 7.0)
    assert learnt(1.0, hang_after_s=0) == (inf, inf)


def test_before_enough_steps_are_known_the_limit_is_that_of_the_first_step() -> None:
    few = [1.0] * (ENOUGH - 1)
    assert learnt(*few) == (JOIN, JOIN)
    assert learnt(*few, 1.0) == (LEAST, 2 * LEAST)


def test_without_a_quorum_nothing_is_learnt() -> None:
    alone = config(lighthouse={"kind": "none"}, health={"hang_after_s": "auto"})
    assert limits(Standstill(longest_s=1.0, seen=99), alone) == (inf, inf)


def test_the_longest_pause_widens_both_limits_for_good() -> None:
    assert learnt(*[1.0] * 400, 500.0, *[1.0] * 400) == (1500.0, 3000.0)


# --- in the life of a run ---------------------------------------------------------------------------------------------

STARTED: tuple[Moment, ...] = (
    (0, granted(4)),
    (1, said.lighthouse_up(LIGHT0, URL)),
    (2, ready(A0), ready(B0), ready(C0)),
    (3, store(A0), store(B0), store(C0)),
)
STEPS = (A0, B0, C0)


def progress(step: StepId, number: int, gap_s: float | None) -> ev.Event:
    return said.progressed(step, number, 3, 3, number, 0, gap_s)


def trained(until: float, gap_s: float = 1.0, since: float = 20.0) -> list[Moment]:
    """Return a training in which every group reports each 20 s."""
    count = int((until - since) / BEAT) + 1
    return [(since + n * BEAT, [progress(step, 10 + n, gap_s if n else None) for step in STEPS]) for n in range(count)]


def test_the_journal_has_the_limit_once_it_is_known_and_again_when_it_has_changed_much() -> None:
    end = 20 + BEAT * 200
    paused = (end, progress(A0, 200, 400.0), progress(B0, 200, 400.0))
    story = play(*STARTED, *trained(end - BEAT), paused, (end + 1,), config=settings())
    first, second = story.records("hang_limit")
    assert (first["in_step_s"], first["between_s"], first["longest_s"]) == (LEAST, 2 * LEAST, 1.0)
    assert ENOUGH <= first["steps"] <= ENOUGH + 3
    assert (second["in_step_s"], second["between_s"], second["longest_s"]) == (1200.0, 2400.0, 400.0)


def test_a_time_in_which_a_group_failed_or_joined_teaches_nothing() -> None:
    quiet = trained(1000.0)
    failed = [(1300.0, killed(C0)), (1301.0, progress(A0, 300, 290.0), progress(B0, 300, 290.0))]
    story = play(*STARTED, *quiet, *failed, config=settings())
    assert story.state.standstill.longest_s == 1.0
    later = [(1700.0, progress(A0, 301, 290.0), progress(B0, 301, 290.0))]  # while C is launched again
    story = play(*STARTED, *quiet, *failed, *later, config=settings())
    assert story.state.standstill.longest_s == 290.0


class Training:
    """Three groups that train in step: each computes, asks for the quorum and waits there for the slowest."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now, self.number = 20.0, 10
        self.base_s = 10 ** self.dice.uniform(-0.5, 1.5)
        self.longest_s = 0.0
        self.moments: list[Moment] = []

    def pause_s(self) -> float:
        """Return how long one group is away: a step, or now and then an evaluation, longer and longer."""
        if self.dice.random() < 0.97:
            return self.base_s * self.dice.lognormvariate(0, 0.3)
        return self.dice.uniform(1, max(0.9 * 2 * LEAST, 2.5 * self.longest_s))

    def step(self) -> None:
        """Take some steps of which the last may be long for one group, for some or for all."""
        began, ready_at = self.now, dict.fromkeys(STEPS, 0.0)
        alone = self.dice.random() < 0.5
        pause = self.pause_s()
        for step in STEPS:
            ready_at[step] = began + (self.base_s if alone and step != B0 else pause * self.dice.uniform(0.9, 1.0))
        end = max(ready_at.values())
        self.longest_s = max(self.longest_s, end - began)
        while self.now < end:
            self.beat(began, ready_at)
        self.number += 1
        self.moments.append((self.now, [progress(step, self.number, end - began) for step in STEPS]))

    def beat(self, began: float, ready_at: dict[StepId, float]) -> None:
        self.now += BEAT
        beats = []
        for step, at in ready_at.items():
            stage, moved = (ASKS, at) if at <= self.now else (COMPUTES, began)
            beats.append(ev.Alive(step, 0, self.now, step=self.number, stage=stage, since_s=self.now - moved))
        self.moments.append((self.now, beats))


def lived(seed: int, steps: int) -> tuple[Training, list[Moment]]:
    training = Training(seed)
    training.moments = [(20.0, [progress(step, 10, None) for step in STEPS])]
    for _ in range(steps):
        training.step()
    return training, training.moments


@pytest.mark.parametrize("seed", numbers(3, 12))
def test_healthy_groups_are_never_blamed_and_one_that_hangs_is(seed: int) -> None:
    training, moments = lived(seed, steps=120)
    healthy = settings(join_timeout_s=3600.0)
    story = play(*STARTED, *moments, config=healthy)
    assert story.all(msg.Dump) == []
    assert story.state.standstill.seen >= ENOUGH
    stage = random.Random(seed).choice([COMPUTES, COLLECTIVE])
    limit = limits(story.state.standstill, healthy).at(stage)
    began = training.now
    assert found_at(story, began, stage, list(STEPS), until=began + limit + 4 * BEAT) == [1]


def found_at(story: Story, began: float, stage: Stage, steps: list[StepId], until: float) -> list[int]:
    """Let group 1 stand still while the others wait for it; return who is found to hang."""

    def beats() -> Iterator[Moment]:
        for n in range(1, int((until - began) / BEAT) + 1):
            now = began + n * BEAT
            at = {step: (stage, began) if step == B0 else (max(stage, ASKS), began + 1) for step in steps}
            if stage is COLLECTIVE:
                at = {step: (HAS_QUORUM if step == B0 else COLLECTIVE, began) for step in steps}
            yield now, [ev.Alive(s, 0, now, step=900, stage=where, since_s=now - t) for s, (where, t) in at.items()]

    for now, events in beats():
        story.turn(now, events)
    return [story.unit(step).group_id for step in story.ids(msg.Dump)]


@pytest.mark.parametrize(("stage", "allowed"), [(COMPUTES, 600), (COLLECTIVE, 300)])
def test_the_reason_names_the_limit_and_its_setting(stage: Stage, allowed: int) -> None:
    story = play(*STARTED, *trained(1000.0), config=settings())
    assert found_at(story, 1000.0, stage, list(STEPS), until=1000.0 + 2 * LEAST + 3 * BEAT) == [1]
    (sign,) = story.unit(B0).current.evidence
    assert str(sign).endswith(f"; health.hang_after_s=auto allows {allowed} s there")


def test_the_work_for_a_report_is_small_in_a_large_run() -> None:
    """Only a new longest time, or one report in a second of a run of 10,000 groups, is looked at closely."""
    story = play(*STARTED, *trained(1000.0), config=settings())
    before = story.state.standstill
    story.turn(1000.0 + 1e-5, [progress(A0, 300, 0.5)])
    assert story.state.standstill == replace(before, looked=story.state.standstill.looked)
