"""The restart decision as a table: exit times in; the time of the restart, or giving up, out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from histories import RUNNING, config, granted, play, raised, ready, stepped, store
from steps import B0, B1

from ftslurm.config.schema import RestartConfig
from ftslurm.core.groups import restart
from ftslurm.core.groups.restart import LAUNCH_MAX_S, GiveUp, RestartAt, judge, wait
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Exit
from ftslurm.protocol.causes import Cause, Says
from ftslurm.run import log_signs

PATIENCE_S = 60.0
CONFIG = RestartConfig(max_per_group=3, backoff_s=2.0)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "WINDOW_S", 100.0)
    monkeypatch.setattr(restart, "BACKOFF_MAX_S", 5.0)


def exits(*times: float, cause: Cause = Cause.KILLED) -> list[Exit]:
    return [Exit(n, time, cause, ("n1",)) for n, time in enumerate(times)]


@pytest.mark.parametrize(
    ("times", "restart_at"),
    [
        ([10], 10),  # the first failure is answered at once
        ([10, 20], 22),  # the second after backoff_s
        ([10, 20, 30], 34),  # each later one after twice the wait before it
        ([10, 109.9], 111.9),  # still within WINDOW_S
        ([10, 110], 110),  # the one of 100 s ago is forgotten
        ([10, 20, 30, 40, 400], 400),
    ],
)
def test_the_next_attempt_comes_at(times: list[float], restart_at: float) -> None:
    assert judge(exits(*times), CONFIG, PATIENCE_S) == RestartAt(restart_at)


def test_more_failures_than_the_budget_within_the_window_and_the_group_is_given_up() -> None:
    answer = judge(exits(10, 20, 30, 40), CONFIG, PATIENCE_S)
    assert answer == GiveUp("4 failures within 100 s are more than restart.max_per_group=3 allows")


def test_no_budget_means_that_the_first_failure_is_the_last_and_the_reason_names_it() -> None:
    assert judge(exits(10), RestartConfig(max_per_group=0), PATIENCE_S) == GiveUp("restart.max_per_group=0")


@pytest.mark.parametrize("cause", [Cause.CANCELLED, Cause.TIME_LIMIT, Cause.OK])
def test_exits_that_were_asked_for_cost_no_budget(cause: Cause) -> None:
    assert judge([*exits(10, 11, 12, cause=cause), *exits(20)], CONFIG, PATIENCE_S) == RestartAt(20)


@pytest.mark.parametrize(
    "cause",
    [Cause.USER_ERROR, Cause.OUT_OF_MEMORY, Cause.START_FAILED, Cause.START_TIMEOUT, Cause.UNKNOWN],
)
def test_every_other_exit_is_a_failure(cause: Cause) -> None:
    assert judge(exits(10, 20, cause=cause), CONFIG, PATIENCE_S) == RestartAt(22)


def test_a_lost_node_counts_but_is_not_waited_for() -> None:
    lost = exits(10, 20, 30, cause=Cause.NODE_LOST)
    assert judge(lost, CONFIG, PATIENCE_S) == RestartAt(30)
    assert isinstance(judge(lost, RestartConfig(max_per_group=2), PATIENCE_S), GiveUp)


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
    assert judge([*exits(5), *away[:20]], CONFIG, PATIENCE_S) == RestartAt(48 + LAUNCH_MAX_S)
    assert isinstance(judge([*exits(5), *away], CONFIG, PATIENCE_S), GiveUp)  # slurmctld has been away for a minute
    assert judge([*exits(5), *away, *exits(100)], CONFIG, PATIENCE_S) == RestartAt(102)  # the second failure of its own


@pytest.mark.parametrize(("refused", "seconds"), [(1, 2), (5, 2), (6, 4), (8, 16), (10, 60), (10_000, 60)])
def test_a_launch_that_is_refused_again_and_again_is_tried_less_often(refused: int, seconds: float) -> None:
    away = [Exit(n, 100.0 + n / 1000, Cause.START_FAILED, ("n1",), launched=False) for n in range(refused)]
    assert judge([*exits(5), *away], CONFIG, PATIENCE_S) == RestartAt(away[-1].time + seconds)


# --- attempts that were healthy for a while --------------------------------------------------------------------------

BACKOFF = RestartConfig(max_per_group=10, backoff_s=2.0)


@pytest.fixture
def _long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "WINDOW_S", 1000.0)
    monkeypatch.setattr(restart, "BACKOFF_MAX_S", 60.0)


@pytest.mark.parametrize(
    ("healthy", "seconds"),
    [
        ([0, 0, 0], 4),  # the third in a row
        ([0, 0, 60], 0),  # healthy for BACKOFF_MAX_S: as if it were the first
        ([0, 0, 59], 4),
        ([0, 60, 0], 2),  # the second after a healthy one
        ([60, 0, 0], 4),  # the healthy one is the first of three
        ([60, 60, 60], 0),
    ],
)
@pytest.mark.usefixtures("_long")
def test_after_a_healthy_stretch_the_backoff_begins_anew(healthy: list[float], seconds: float) -> None:
    history = [Exit(n, 100.0 * n, Cause.KILLED, ("n1",), healthy_s=h) for n, h in enumerate(healthy)]
    assert judge(history, BACKOFF, PATIENCE_S) == RestartAt(200 + seconds)


@pytest.mark.usefixtures("_long")
def test_a_healthy_attempt_that_was_asked_to_end_also_ends_the_chain() -> None:
    fell = [Exit(n, 10.0 * n, Cause.KILLED, ("n1",)) for n in range(3)]
    asked = Exit(3, 300.0, Cause.CANCELLED, ("n1",), healthy_s=250.0)
    assert judge([*fell, asked], BACKOFF, PATIENCE_S) == RestartAt(300)


# --- an error that follows the script ---------------------------------------------------------------------------------


def error(node: str, words: str = "ValueError: x", step: int | None = 7, cause: Cause = Cause.USER_ERROR) -> Exit:
    echo = Says.ECHO in log_signs.says(words)
    return Exit(0, 10.0, cause, tuple(node.split()), error=words, step=step, echo=echo)


@pytest.mark.parametrize(
    ("first", "second", "hopeless"),
    [
        pytest.param(error("n1"), error("n2"), True, id="the same, at the same step, elsewhere"),
        pytest.param(error("n1", "at 0x7f01"), error("n2", "at 0x7f02"), True, id="addresses in memory do not matter"),
        pytest.param(error("n1", step=None), error("n2", step=None), True, id="before the first step"),
        pytest.param(error("n1"), error("n1"), False, id="on the same node"),
        pytest.param(error("n1 n2"), error("n2 n3"), False, id="on one node that is the same"),
        pytest.param(error("n1"), error("n2", step=8), False, id="at another step"),
        pytest.param(error("n1"), error("n2", "ValueError: y"), False, id="another error"),
        pytest.param(error("n1", cause=Cause.KILLED), error("n2", cause=Cause.KILLED), False, id="no error at all"),
        pytest.param(error("n1", ""), error("n2", ""), True, id="the same silence"),
    ],
)
def test_the_same_error_on_different_nodes_is_the_scripts(first: Exit, second: Exit, hopeless: bool) -> None:
    answer = judge([first, second], BACKOFF, PATIENCE_S)
    assert isinstance(answer, GiveUp) == hopeless
    if isinstance(answer, GiveUp):
        assert "on n1 and on n2: it is the script, not the node" in answer.reason


@pytest.mark.parametrize(
    ("changes", "hopeless"),
    [
        pytest.param({}, True, id="the same error at the same step"),
        pytest.param({"restored": None}, False, id="not from a checkpoint"),
        pytest.param({"restored": 7}, False, id="no step since the checkpoint: a file system may be away"),
        pytest.param({"step": None}, False, id="before its first step"),
        pytest.param({"step": 8}, False, id="at another step"),
        pytest.param({"error": "ValueError: y"}, False, id="another error"),
        pytest.param({"cause": Cause.KILLED}, False, id="killed"),
    ],
)
@pytest.mark.parametrize("began", [None, 5])
def test_the_same_error_after_a_restart_from_a_checkpoint_is_the_scripts(
    changes: dict[str, Any], hopeless: bool, began: int | None
) -> None:
    first = replace(error("n1"), restored=began)
    answer = judge([first, replace(first, **({"restored": 5} | changes))], BACKOFF, PATIENCE_S)
    assert isinstance(answer, GiveUp) == hopeless
    if isinstance(answer, GiveUp):
        assert answer.reason.startswith("the same error at the same step (7), again after the checkpoint of step 5: it")


@pytest.mark.parametrize(
    ("step", "restored", "hopeless"),
    [
        pytest.param(7, None, True, id="the training went back, and came no further"),
        pytest.param(7, 7, True, id="no step since the checkpoint"),
        pytest.param(None, 7, True, id="no first step since the checkpoint"),
        pytest.param(None, None, False, id="before any step: something may be away for a while"),
    ],
)
def test_the_third_same_error_in_a_row_is_the_scripts(step: int | None, restored: int | None, hopeless: bool) -> None:
    one = replace(error("n1", step=step), restored=restored)
    assert not isinstance(judge([one, one], BACKOFF, PATIENCE_S), GiveUp)
    answer = judge([one, one, one], BACKOFF, PATIENCE_S)
    assert isinstance(answer, GiveUp) == hopeless
    if isinstance(answer, GiveUp):
        assert (
            answer.reason == "the same error at the same step (7), for the third time: it is the script, not the node"
        )
    between = [one, replace(one, error="ValueError: y"), one]
    assert not isinstance(judge(between, BACKOFF, PATIENCE_S), GiveUp)


@pytest.mark.parametrize(
    "words", ["RuntimeError: Connection closed by peer", "DistStoreError: socket", "NCCL: ncclRemoteError"]
)
def test_a_group_that_only_lost_its_connection_twice_is_not_blamed(words: str) -> None:
    assert not isinstance(judge([error("n1", words), error("n2", words)], BACKOFF, PATIENCE_S), GiveUp)
    again = [error("n1", words), replace(error("n1", words), restored=5)]
    assert not isinstance(judge(again, BACKOFF, PATIENCE_S), GiveUp)


def test_an_error_that_follows_the_script_to_another_node_gives_the_group_up() -> None:
    back = (31, ready(B1)), (32, store(B1)), (33, stepped(B1, 10))
    lost = ev.NodesLeft(("n1", "n3"))
    story = play(*RUNNING, (29, lost), (30, raised(B0)), *back, (40, raised(B1)), (60,))
    (given_up,) = story.records("group_given_up")
    assert "it is the script, not the node" in given_up["reason"]


# --- no group ever starts ---------------------------------------------------------------------------------------------


def test_groups_that_fail_to_start_in_different_ways_end_the_run_by_their_budgets() -> None:
    starts = [
        (at + g / 2, raised(ev.StepId(f"group-{g:04d}", n), f"OSError: {'abcdef'[n + 3 * g]}", started=False))
        for n, at in enumerate((4, 9, 14))
        for g in (0, 1)
    ]
    story = play((0, granted(3)), *starts, config=config(restart={"max_per_group": 2, "backoff_s": 1}))
    assert story.outcome() == "failed"
    assert "more than restart.max_per_group=2 allows" in story.reason()


def test_broken_hardware_costs_budget_but_no_wait_unless_there_is_no_other_node() -> None:
    def broke(number: int, time: float, node: str) -> Exit:
        return Exit(number, time, Cause.HARDWARE, (node,), node=node)

    assert judge([broke(0, 10, "n1"), broke(1, 20, "n2")], CONFIG, PATIENCE_S) == RestartAt(20)
    assert judge([broke(0, 10, "n1"), broke(1, 20, "n1")], CONFIG, PATIENCE_S) == RestartAt(20)
    assert judge([broke(0, 10, "n1"), *exits(12), broke(2, 20, "n1")], CONFIG, PATIENCE_S) == RestartAt(22)
    four = [broke(n, 10.0 * n, f"n{n}") for n in range(4)]
    assert isinstance(judge(four, CONFIG, PATIENCE_S), GiveUp)
