"""The budget of a run's RPCs to its scheduler."""

from __future__ import annotations

import random
from math import inf

import pytest
from fuzz import numbers

from ftslurm.core.state.budget import LIMITS, Calls


def test_there_is_room_again_when_the_oldest_calls_are_a_minute_ago() -> None:
    calls = Calls()
    assert calls.fit_at(2, 1.0) == -inf
    for now in range(15):
        calls = calls.plus(now, 2)
    assert calls.since(13.5) == 2
    assert calls.fit_at(2, inf) == -inf
    assert calls.fit_at(2, 1.0) == 60
    assert calls.fit_at(4, 1.0) == 61
    assert calls.fit_at(2, 0.8) == 63


@pytest.mark.parametrize("seed", numbers(5, 50))
def test_calls_that_wait_for_room_never_exceed_a_limit(seed: int) -> None:
    dice, calls, now, made = random.Random(seed), Calls(), 1000.0, []
    while now < 2500:
        now += dice.expovariate(dice.choice([0.05, 5]))
        rpcs = dice.randint(1, 3)
        if calls.fit_at(rpcs, 1.0) <= now:
            calls = calls.plus(now, rpcs)
            made.append((now, rpcs))
    for seconds, most in LIMITS:
        assert max(sum(n for at, n in made if end - seconds < at <= end) for end, _ in made) <= most
        assert sum(n for _, n in made) > 0.5 * most * 1500 / max(s for s, _ in LIMITS)
    assert all(at > now - 2 * max(s for s, _ in LIMITS) for at, _ in calls.made)
