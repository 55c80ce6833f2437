"""Does a unit run again, and when? A table: exit times in, the answer out."""

from __future__ import annotations

import pytest

from ftslurm.config import RestartConfig
from ftslurm.core.model import Cause, Exit
from ftslurm.core.restart import LAUNCH_AGAIN_S, GiveUp, RestartAt, judge, wait

PATIENCE_S = 60.0
CONFIG = RestartConfig(max_per_group=3, window_s=100.0, backoff_s=2.0, backoff_max_s=5.0)


def exits(*times: float, cause: Cause = Cause.KILLED) -> list[Exit]:
    return [Exit(n, time, cause, ("n1",)) for n, time in enumerate(times)]


@pytest.mark.parametrize(
    ("times", "restart_at"),
    [
        ([10], 10),  # the first failure is answered at once
        ([10, 20], 22),  # the second after backoff_s
        ([10, 20, 30], 34),  # each later one after twice the wait before it
        ([10, 109.9], 111.9),  # still within window_s
        ([10, 110], 110),  # the one of 100 s ago is forgotten
        ([10, 20, 30, 40, 400], 400),
    ],
)
def test_the_next_attempt_comes_at(times: list[float], restart_at: float) -> None:
    assert judge(exits(*times), CONFIG, PATIENCE_S) == RestartAt(restart_at)


def test_more_failures_than_the_budget_within_the_window_and_the_group_is_given_up() -> None:
    answer = judge(exits(10, 20, 30, 40), CONFIG, PATIENCE_S)
    assert answer == GiveUp("4 failures within 100 s are more than restart.max_per_group=3 allows")


def test_no_budget_means_that_the_first_failure_is_the_last() -> None:
    assert isinstance(judge(exits(10), RestartConfig(max_per_group=0), PATIENCE_S), GiveUp)


def test_the_policy_never_gives_up_at_the_first_failure_and_names_itself() -> None:
    assert judge(exits(10), RestartConfig(policy="never"), PATIENCE_S) == GiveUp("restart.policy=never")


@pytest.mark.parametrize("cause", [Cause.CANCELLED, Cause.TIME_LIMIT, Cause.OK])
def test_exits_that_were_asked_for_cost_no_budget(cause: Cause) -> None:
    assert judge([*exits(10, 11, 12, cause=cause), *exits(20)], CONFIG, PATIENCE_S) == RestartAt(20)


@pytest.mark.parametrize(
    "cause",
    [Cause.USER_ERROR, Cause.OUT_OF_MEMORY, Cause.NODE_LOST, Cause.START_FAILED, Cause.START_TIMEOUT, Cause.UNKNOWN],
)
def test_every_other_exit_is_a_failure(cause: Cause) -> None:
    assert judge(exits(10, 20, cause=cause), CONFIG, PATIENCE_S) == RestartAt(22)


def test_asking_twice_gives_the_same_answer() -> None:
    history = exits(10, 20, 30)
    assert judge(history, CONFIG, PATIENCE_S) == judge(history, CONFIG, PATIENCE_S)


@pytest.mark.parametrize(("failures", "seconds"), [(0, 0), (1, 0), (2, 2), (3, 4), (4, 5), (5, 5), (10_000, 5)])
def test_the_wait_after_the_nth_failure_doubles_up_to_the_longest(failures: int, seconds: float) -> None:
    assert wait(failures, CONFIG) == seconds


def test_no_backoff_means_no_wait_ever() -> None:
    assert [wait(n, RestartConfig(backoff_s=0)) for n in (1, 2, 50)] == [0, 0, 0]


def test_launches_that_reach_no_node_cost_no_budget_and_are_tried_again_for_a_while() -> None:
    away = [Exit(n, 10.0 + 2 * n, Cause.START_FAILED, ("n1",), launched=False) for n in range(40)]
    assert judge([*exits(5), *away[:20]], CONFIG, PATIENCE_S) == RestartAt(48 + LAUNCH_AGAIN_S)
    assert isinstance(judge([*exits(5), *away], CONFIG, PATIENCE_S), GiveUp)  # slurmctld has been away for a minute
    assert judge([*exits(5), *away, *exits(100)], CONFIG, PATIENCE_S) == RestartAt(102)  # the second failure of its own
