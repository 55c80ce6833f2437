"""What the Lighthouse is told, and when, as histories. Only our own takes orders."""

from __future__ import annotations

from typing import Any

import pytest
from history import (
    A0,
    A1,
    B0,
    B1,
    LIGHT0,
    LIGHT1,
    RUNNING,
    STARTED,
    URL,
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

from ftslurm.config import Config
from ftslurm.core.model import (
    Action,
    Announce,
    Begin,
    Ended,
    Evict,
    Evidence,
    Kill,
    LighthouseUp,
    NewHistory,
    StepId,
    TaskFailed,
)


def ours(**sections: dict[str, Any]) -> Config:
    return config(**sections, lighthouse={"kind": "ftslurm"})


def told(*moments: Any, since: float = 0.0, config: Config | None = None) -> list[Action]:
    story = play(*moments, config=config or ours())
    return [
        action for time, action in story.done if time >= since and isinstance(action, Announce | Evict | NewHistory)
    ]


def announce(step: StepId, to: StepId = LIGHT0) -> Announce:
    group = int(step.unit[-4:])
    return Announce(to, group, step.attempt, f"n{group + 1}:29500")


def evict(step: StepId, to: StepId = LIGHT0, known: bool = True) -> Evict:
    group = int(step.unit[-4:])
    return Evict(to, group, step.attempt, f"n{group + 1}:29500" if known else None)


def test_it_knows_every_store_before_the_script_starts() -> None:
    story = play(*STARTED, config=ours())
    kinds = [type(a) for _, a in story.done if isinstance(a, Announce | Begin)]
    assert kinds == [Announce, Announce, Begin, Begin]
    assert told(*RUNNING) == [announce(A0), announce(B0)]


def test_the_stock_one_is_told_nothing() -> None:
    assert told(*RUNNING, (30, killed(B0)), (31, ready(B1)), (32, store(B1)), config=config()) == []


def test_a_group_is_evicted_at_the_first_sign_of_its_failure() -> None:
    sign = TaskFailed(B0, Evidence(0, None, signal=9))
    moments = (*RUNNING, (30, sign), (30.3, Ended(B0, code=137)), (31, ready(B1)), (32, store(B1)))
    assert told(*moments, since=30) == [evict(B0), announce(B1)]
    story = play(*moments, config=ours())
    assert [time for time, action in story.done if isinstance(action, Evict)] == [30]
    (evicted,) = [n for n, (_, action) in enumerate(story.done) if isinstance(action, Evict)]
    (dead,) = [n for n, (_, action) in enumerate(story.done) if isinstance(action, Kill)]
    assert evicted < dead


def test_the_next_attempt_begins_without_waiting() -> None:
    story = play(*RUNNING, (30, killed(B0)), (30.1, ready(B1)), (30.2, store(B1)), (35,), config=ours())
    assert story.times(Begin, B1) == [30.2]


def test_a_group_whose_step_ends_without_a_sign_is_evicted_before_it_is_launched_again() -> None:
    assert told(*RUNNING, (30, Ended(B0, None, signal=9)), since=30) == [evict(B0)]


def test_a_group_that_has_finished_is_evicted_so_that_nobody_waits_for_it() -> None:
    assert told(*RUNNING, (30, finished(B0)), since=30) == [evict(B0)]


def test_a_group_that_fails_before_it_has_a_store_is_evicted_by_its_number() -> None:
    moments = ((0, granted(3)), (1, LighthouseUp(LIGHT0, URL)), (2, ready(A0)), (3, store(A0)), (4, killed(B0)))
    assert told(*moments) == [announce(A0), evict(B0, known=False)]


def test_who_is_asked_to_stop_may_finish_with_the_others() -> None:
    assert told(*RUNNING, (30, stop()), since=30) == []
    assert told(*RUNNING, (30, stop()), (31, Ended(B0, code=143)), since=30) == [evict(B0)]


def test_a_relaunched_lighthouse_is_told_everything_again() -> None:
    back = (31, LighthouseUp(LIGHT1, URL))
    assert told(*RUNNING, (30, killed(LIGHT0)), back, since=30) == [announce(A0, LIGHT1), announce(B0, LIGHT1)]


@pytest.mark.parametrize(
    ("meanwhile", "expected"),
    [
        ([], [announce(A0, LIGHT1), evict(B0, LIGHT1, known=True)]),
        ([(30.6, ready(B1))], [announce(A0, LIGHT1), evict(B0, LIGHT1, known=True)]),
        ([(30.6, ready(B1)), (30.7, store(B1))], [announce(A0, LIGHT1), announce(B1, LIGHT1)]),
    ],
)
def test_what_happened_while_it_was_away_it_is_told_as_well(meanwhile: list[Any], expected: list[Action]) -> None:
    moments = (*RUNNING, (30, killed(LIGHT0)), (30.5, killed(B0)), *meanwhile, (31, LighthouseUp(LIGHT1, URL)))
    got = told(*moments, since=30)
    assert [(type(a), a.id, getattr(a, "group", None), getattr(a, "attempt", None)) for a in got] == [
        (type(a), a.id, getattr(a, "group", None), getattr(a, "attempt", None)) for a in expected
    ]


def test_a_full_restart_from_a_checkpoint_is_allowed_to_start_a_new_history() -> None:
    resume = ours(restart={"on_state_loss": "checkpoint"})
    lost = (30, killed(A0, checkpoint=True), killed(B0, checkpoint=True))
    assert told(*RUNNING, lost, since=30, config=resume)[-1:] == [NewHistory(LIGHT0, 0)]
    again = (*RUNNING, lost, (31, killed(LIGHT0)), (32, LighthouseUp(LIGHT1, URL)))
    assert NewHistory(LIGHT1, 0) in told(*again, since=32, config=resume)
    done = (
        *RUNNING,
        lost,
        (31, ready(A1), ready(B1)),
        (32, store(A1), store(B1)),
        (33, stepped(A1, 9), stepped(B1, 9)),
    )
    after = told(*done, (34, killed(LIGHT0)), (35, LighthouseUp(LIGHT1, URL)), since=34, config=resume)
    assert after == [announce(A1, LIGHT1), announce(B1, LIGHT1)]
