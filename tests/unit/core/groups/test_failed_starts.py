"""Failed starts: errors of the script, which end the run, and errors that are retried."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import said
from histories import (
    LIGHTHOUSE_UP,
    RUNNING,
    STARTED,
    Moment,
    config,
    granted,
    killed,
    play,
    raised,
    ready,
    stepped,
    store,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import A0, A1, A2, B0, B1

from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence, StepId


@pytest.mark.parametrize("started", [True, False])
def test_the_same_error_in_every_group_before_the_first_step_fails_the_run(started) -> None:
    error = "ModuleNotFoundError: No module named 'models'"
    story = play(*STARTED, (4, raised(A0, error, started)), (4.5, raised(B0, error, started)))
    assert story.outcome() == "failed"
    assert error in story.failure()
    assert story.ids(act.Launch, since=4) == [A1]


def test_different_errors_are_tried_again() -> None:
    story = play(*STARTED, (4, raised(A0, "ValueError: x")), (4.5, raised(B0, "ValueError: y")), (9,))
    assert story.outcome() is None
    assert story.ids(act.Launch, since=4) == [A1, B1]


def test_the_same_error_after_the_first_step_is_tried_again() -> None:
    back = ((31, ready(B1)), (32, store(B1)), (33, stepped(B1, 40)))
    story = play(*RUNNING, (30, raised(B0)), *back, (50, raised(A0)), (51,))
    assert story.outcome() is None
    assert story.ids(act.Launch, since=50) == [A1]


@pytest.mark.parametrize(
    "evidence",
    [
        pytest.param(Evidence(0, None, signal=11), id="a signal says little"),
        pytest.param(Evidence(0, None, out_of_memory=True, error="Out Of Memory"), id="another node may have more"),
    ],
)
def test_ends_that_are_alike_but_no_errors_of_the_script_are_tried_again(evidence: Evidence) -> None:
    ends = [event for step in (A0, B0) for event in (ev.TaskFailed(step, evidence), ev.Ended(step, code=137))]
    story = play(*STARTED, (4, ends), (9,))
    assert story.ids(act.Launch, since=4) == [A1, B1]


WORDS = ("cannot", "open", "the", "shard", "of", "group", "loading", "its", "log", "says:", "Error")
VARYING: list[Callable[[int], str]] = [  # what differs between the groups in what they print
    str,
    hex,
    "rank={}".format,
    "[rank{}]:".format,
    "/scratch/{}/shard.bin".format,
    "'/data/a-{}'".format,
    "2026-11-30T01:42:{:02d}.123Z".format,
    "n{}:".format,
    "slurmstepd-n{}:".format,
    "(pid={})".format,
    lambda n: "/tmp/" + "xyz"[n % 3] * 6,
]
TEXTS = st.lists(st.sampled_from([*WORDS, *VARYING]), max_size=8)


def failed(step: StepId, evidence: Evidence, trace: str = "") -> list[ev.Event]:
    told = [said.traced(step, 0, trace)] if trace else []
    return [*told, ev.TaskFailed(step, evidence), ev.Ended(step, code=137)]


def said_by(text: list[str | Callable[[int], str]], number: int) -> str:
    return " ".join(word if isinstance(word, str) else word(number) for word in text)


@settings(max_examples=60, deadline=None)
@given(text=TEXTS, numbers=st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), code=st.integers(1, 255))
def test_groups_fail_alike_whatever_numbers_paths_and_times_they_print(
    text: list[str | Callable[[int], str]], numbers: tuple[int, int], code: int
) -> None:
    a, b = (Evidence(0, f"n{n}", code=code, error=said_by(text, number) or None) for n, number in enumerate(numbers))
    assert play(*STARTED, (4, failed(A0, a)), (5, failed(B0, b))).outcome() == "failed"
    other = Evidence(0, "n2", code=code % 255 + 1, error=b.error)
    assert play(*STARTED, (4, failed(A0, a)), (5, failed(B0, other))).outcome() is None


@settings(max_examples=60, deadline=None)
@given(messages=st.tuples(st.text(max_size=30), st.text(max_size=30)), kinds=st.tuples(*[st.sampled_from("AB")] * 2),
       lines=st.tuples(*[st.integers(7, 8)] * 2))  # fmt: skip
def test_exceptions_are_alike_if_their_type_and_place_are(
    messages: tuple[str, str], kinds: tuple[str, str], lines: tuple[int, int]
) -> None:
    ends = []
    for step, message, name, line in zip((A0, B0), messages, kinds, lines, strict=True):
        trace = f'Traceback (most recent call last):\n  File "/x/train.py", line {line}, in main\n    f()\n{name}Error'
        ends.append(failed(step, Evidence(0, None, code=1, error=f"{name}Error: {message}"), trace))
    story = play(*STARTED, (4, ends[0]), (5, ends[1]))
    assert (story.outcome() == "failed") == (len({*kinds}) == len({*lines}) == 1)


def test_a_silent_exit_with_the_same_code_is_alike() -> None:
    a, b = (failed(step, Evidence(0, None, code=3)) for step in (A0, B0))
    story = play(*STARTED, (4, a), (5, b))
    assert "all in the same way" in story.reason()


@pytest.mark.parametrize("first", [True, False])
def test_sruns_line_about_an_exit_code_hides_no_better_word(first: bool) -> None:
    why = "slurmstepd-n1: error: execve(): nosuch: No such file or directory"
    signs = [Evidence(0, "n2", code=2), Evidence(0, "n2", error=why, started=False)]
    told = [ev.TaskFailed(B0, sign) for sign in (signs if first else signs[::-1])]
    story = play((0, granted(3)), (1, LIGHTHOUSE_UP), (4, [*told, ev.Ended(B0, code=2)]))
    assert story.records("step_exited")[0]["error"] == why


ONE = config(groups={"count": 1})


ALONE: tuple[Moment, ...] = ((0, granted(1)), (1, LIGHTHOUSE_UP), (2, ready(A0)), (3, store(A0)))


def test_a_lone_group_may_fail_once_by_chance_but_not_twice_in_the_same_words() -> None:
    once = play(*ALONE, (4, raised(A0)), config=ONE)
    assert once.ids(act.Launch, since=4) == [A1]
    twice = play(*ALONE, (4, raised(A0)), (5, ready(A1)), (5.5, store(A1)), (6, raised(A1)), config=ONE)
    assert twice.outcome() == "failed"
    assert "ValueError: x" in twice.failure()


@pytest.mark.parametrize("first", [killed(A0), raised(A0, "OSError: port taken")])
def test_a_lone_group_that_fails_in_two_different_ways_is_tried_again(first: list[ev.Event]) -> None:
    history = (*ALONE, (4, first), (6, raised(A1)), (60,))
    story = play(*history, config=ONE)
    assert story.outcome() is None
    assert story.ids(act.Launch, since=4) == [A1, A2]
    assert play(*history, (61, raised(A2)), config=ONE).outcome() == "failed"


def test_a_step_that_takes_too_long_to_start_is_killed_and_the_restart_policy_asked() -> None:
    story = play(
        (0, granted(3)), (1, LIGHTHOUSE_UP), (2, ready(A0), ready(B0)), (3, store(A0)), (602.3, ev.Ended(B0, 137))
    )
    assert story.times(act.Kill, B0) == [602]
    (exited,) = story.records("step_exited")
    assert (exited["cause"], exited["noticed"]) == ("start_timeout", 602)
    assert story.times(act.Launch, B1) == [602.3]


def test_a_step_that_runs_has_started_in_time() -> None:
    assert play(*RUNNING, (5000,)).ids(act.Kill) == []


def test_a_step_that_cannot_even_be_launched_is_a_failed_start() -> None:
    error = "cannot start srun: No such file"
    events = [ev.TaskFailed(B0, Evidence(None, None, error=error, started=False)), ev.Ended(B0, None)]
    story = play((0, granted(3)), (0.1, events))
    assert story.records("step_exited")[0]["cause"] == "start_failed"
    assert story.ids(act.Launch, since=0.1) == [B1]
