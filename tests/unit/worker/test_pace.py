"""What a worker measures of its own part of a step."""

from __future__ import annotations

import random

import torch

from ftslurm.worker.pace import STEPS, Pace

CPU = torch.zeros(1)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def passes(self, seconds: float) -> float:
        self.now += seconds
        return self.now


def step(
    pace: Pace,
    clock: Clock,
    own_s: float,
    others_s: float,
    quorum_s: float = 0.0,
    committed: bool = True,
    buckets: int = 1,
    tensor: torch.Tensor = CPU,
) -> None:
    """Take a step: compute, wait for the quorum, compute, reduce with the others, vote."""
    clock.passes(own_s / 2 + quorum_s)
    pace.waited(quorum_s)
    pace.reduces(clock.passes(own_s / 2), tensor)
    for _ in range(buckets - 1):
        pace.reduces(clock.passes(others_s), tensor)
    clock.passes(others_s)
    pace.waited(others_s)  # an allreduce waits for the quorum, too
    pace.ends(clock.passes(0.001), committed)


def test_waits_for_others_are_no_part_of_the_own_time() -> None:
    for seed in range(20):
        dice, pace, clock = random.Random(seed), Pace(), Clock()
        for _ in range(STEPS + 1):
            step(pace, clock, 0.2, dice.uniform(0, 3), dice.uniform(0, 3), buckets=dice.randrange(1, 4))
        own_s, step_s = pace.medians()
        assert own_s == 0.2
        assert step_s is not None
        assert step_s > 0.2


def test_evaluations_heals_and_slow_first_steps_do_not_count() -> None:
    pace, clock = Pace(), Clock()
    for number in range(400):
        slow = number <= 10 or number % 10 == 0
        step(pace, clock, 30.0 if slow else 0.2, 0.1)
        if number >= STEPS:
            assert pace.medians()[0] == 0.2


def test_nothing_is_said_of_too_few_steps_and_of_aborted_ones() -> None:
    pace, clock = Pace(), Clock()
    for _ in range(STEPS):  # the first has no begin
        step(pace, clock, 0.2, 0.1)
        step(pace, clock, 7.0, 0.1, committed=False)
        assert pace.medians() == (None, None)
    step(pace, clock, 0.2, 0.1)
    assert pace.medians()[0] == 0.2


def test_a_script_that_only_votes_has_no_pace() -> None:
    pace, clock = Pace(), Clock()
    for _ in range(200):
        pace.ends(clock.passes(1), True)
    assert pace.medians() == (None, None)
