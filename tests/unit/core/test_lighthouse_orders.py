"""Orders to the Lighthouse about groups, and messages to groups about it, as histories. Only ours takes orders."""

from __future__ import annotations

from typing import Any

import pytest
import said
from histories import (
    CHECKPOINT,
    RUNNING,
    STARTED,
    array_config,
    array_running,
    config,
    finished,
    granted,
    is_a,
    killed,
    play,
    ready,
    stepped,
    stop,
    store,
)
from steps import A0, A1, B0, B1, C0, LIGHT0, LIGHT1, LIGHT2, URL

from ftslurm.config.schema import Config
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence, StepId
from ftslurm.protocol import messages as msg
from ftslurm.protocol.causes import Cause


def ours(**sections: dict[str, Any]) -> Config:
    return config(**sections, lighthouse={"kind": "ftslurm"})


STOCK = config(lighthouse={"kind": "torchft"})


def told(*moments: Any, since: float = 0.0, config: Config | None = None) -> list[act.Action]:
    story = play(*moments, config=config or ours())
    return [
        action for time, action in story.done if time >= since and is_a(action, msg.Member, msg.Evict, msg.NewHistory)
    ]


def announce(step: StepId, to: StepId = LIGHT0) -> act.Send:
    group = int(step.unit[-4:])
    return act.Send(to, msg.Member(group, step.attempt, f"n{group + 1}:29500/store"))


def evict(step: StepId, to: StepId = LIGHT0, known: bool = True, finished: bool = False) -> act.Send:
    group = int(step.unit[-4:])
    return act.Send(to, msg.Evict(group, step.attempt, f"n{group + 1}:29500/store" if known else None, finished))


def test_it_knows_every_store_before_the_script_starts() -> None:
    story = play(*STARTED, config=ours())
    kinds = [type(a.message) for _, a in story.done if isinstance(a, act.Send)]
    assert kinds == [msg.Member, msg.Member, msg.Begin, msg.Begin]
    assert told(*RUNNING) == [announce(A0), announce(B0)]


def test_the_stock_one_is_told_nothing() -> None:
    assert told(*RUNNING, (30, killed(B0)), (31, ready(B1)), (32, store(B1)), config=STOCK) == []


def test_a_group_is_evicted_at_the_first_sign_of_its_failure() -> None:
    sign = ev.TaskFailed(B0, Evidence(0, None, signal=9))
    moments = (*RUNNING, (30, sign), (30.3, ev.Ended(B0, code=137)), (31, ready(B1)), (32, store(B1)))
    assert told(*moments, since=30) == [evict(B0), announce(B1)]
    story = play(*moments, config=ours())
    assert [time for time, action in story.done if is_a(action, msg.Evict)] == [30]
    (evicted,) = [n for n, (_, action) in enumerate(story.done) if is_a(action, msg.Evict)]
    (dead,) = [n for n, (_, action) in enumerate(story.done) if is_a(action, act.Kill)]
    assert evicted < dead


def test_the_next_attempt_begins_without_waiting() -> None:
    story = play(*RUNNING, (30, killed(B0)), (30.1, ready(B1)), (30.2, store(B1)), (35,), config=ours())
    assert story.times(msg.Begin, B1) == [30.2]


def test_a_group_whose_step_ends_without_a_sign_is_evicted_before_its_relaunch() -> None:
    assert told(*RUNNING, (30, ev.Ended(B0, None, signal=9)), since=30) == [evict(B0)]


def test_a_group_that_has_finished_is_evicted_so_that_nobody_waits_for_it() -> None:
    assert told(*RUNNING, (30, finished(B0)), since=30) == [evict(B0, finished=True)]


def test_a_group_that_fails_before_it_has_a_store_is_evicted_by_its_number() -> None:
    moments = ((0, granted(3)), (1, said.lighthouse_up(LIGHT0, URL)), (2, ready(A0)), (3, store(A0)), (4, killed(B0)))
    assert told(*moments) == [announce(A0), evict(B0, known=False)]


def test_who_is_asked_to_stop_may_finish_with_the_others() -> None:
    assert told(*RUNNING, (30, stop()), since=30) == []
    assert told(*RUNNING, (30, stop()), (31, ev.Ended(B0, code=143)), since=30) == [evict(B0)]


def test_a_relaunched_lighthouse_is_told_everything_again() -> None:
    back = (31, said.lighthouse_up(LIGHT1, URL))
    assert told(*RUNNING, (30, killed(LIGHT0)), back, since=30) == [announce(A0, LIGHT1), announce(B0, LIGHT1)]


@pytest.mark.parametrize(
    ("meanwhile", "expected"),
    [
        ([], [announce(A0, LIGHT1), evict(B0, LIGHT1, known=True)]),
        ([(30.6, ready(B1))], [announce(A0, LIGHT1), evict(B0, LIGHT1, known=True)]),
        ([(30.6, ready(B1)), (30.7, store(B1))], [announce(A0, LIGHT1), announce(B1, LIGHT1)]),
    ],
)
def test_what_happened_while_it_was_away_it_is_told_as_well(meanwhile: list[Any], expected: list[act.Action]) -> None:
    moments = (*RUNNING, (30, killed(LIGHT0)), (30.5, killed(B0)), *meanwhile, (31, said.lighthouse_up(LIGHT1, URL)))
    got = told(*moments, since=30)
    assert [(type(a), a.id, getattr(a, "group", None), getattr(a, "attempt", None)) for a in got] == [
        (type(a), a.id, getattr(a, "group", None), getattr(a, "attempt", None)) for a in expected
    ]


def test_a_group_whose_scripts_have_ended_is_evicted_before_slurm_says_that_its_step_has_ended() -> None:
    moments = (*RUNNING, (30, said.task_done(B0, 0)), (33, ev.Ended(B0, code=0)))
    assert told(*moments, since=30) == [evict(B0), evict(B0, finished=True)]
    wide = ours(groups={"workers": 2})
    started = (
        granted(2),
        said.lighthouse_up(LIGHT0, URL),
        ready(A0, "n1", "n1"),
        ready(B0, "n2", "n2"),
        store(A0),
        store(B0),
    )
    assert told((0, *started), (30, said.task_done(B0, 1)), since=30, config=wide) == []


def test_a_script_that_ends_with_0_when_it_is_told_to_leave_has_not_finished() -> None:
    cancelled = ev.JobLeaving("90_1", Cause.CANCELLED, "Slurm sent SIGTERM to it")
    left = (30, said.task_done(B0, 0)), (30.1, cancelled), (31, ev.Ended(B0, code=0))
    array = array_config(lighthouse={"kind": "ftslurm"})
    assert told(*array_running(), *left, since=30, config=array) == [evict(B0)]


def test_of_two_that_finish_with_a_third_nobody_waits_for_the_other() -> None:
    three = ours(groups={"count": 3})
    story = play((0, granted(3)), (1, said.lighthouse_up(LIGHT0, URL)), config=three)
    for now, step in enumerate((A0, B0, C0), 2):
        story.turn(now, [*ready(step), store(step)])
    story.turn(10, [stepped(step, 9) for step in (A0, B0, C0)])
    story.turn(11, [*finished(A0)])
    story.turn(11.1, [*finished(B0)])
    evicted = [(time, action.message.group) for time, action in story.done if is_a(action, msg.Evict)]
    assert evicted == [(11, 0), (11.1, 1)]


MOVED = "http://n1:40000"


@pytest.mark.parametrize("kind", ["ftslurm", "torchft"])
@pytest.mark.parametrize(
    ("meanwhile", "expected"),
    [
        ([(31, said.lighthouse_up(LIGHT1, URL))], []),
        ([(31, said.lighthouse_up(LIGHT1, MOVED))], [(31, A0, MOVED), (31, B0, MOVED)]),
        ([(31, said.lighthouse_up(LIGHT1, MOVED)), (32, killed(LIGHT1)), (33, said.lighthouse_up(LIGHT2, URL))],
         [(31, A0, MOVED), (31, B0, MOVED), (33, A0, URL), (33, B0, URL)]),
        # a group that is down: its next attempt is assigned to the new address
        ([(30.5, killed(B0)), (31, said.lighthouse_up(LIGHT1, MOVED)), (32, ready(B1))], [(31, A0, MOVED)]),
        # one that was assigned to the old address and has not begun yet
        ([(30.5, killed(B0)), (30.8, ready(B1)), (31, said.lighthouse_up(LIGHT1, MOVED))],
         [(31, A0, MOVED), (31, B1, MOVED)]),
        # when the run is being stopped, groups may still take their last steps together
        ([(30.5, stop()), (31, said.lighthouse_up(LIGHT1, MOVED))], [(31, A0, MOVED), (31, B0, MOVED)]),
        # the moved Lighthouse dies again: the groups have its old address and get the new one
        ([(31, said.lighthouse_up(LIGHT1, MOVED)), (32, killed(LIGHT1)), (33, said.lighthouse_up(LIGHT2, MOVED))],
         [(31, A0, MOVED), (31, B0, MOVED)]),
        ([(31, said.lighthouse_up(LIGHT1, MOVED)), (32, finished(A0))], [(31, A0, MOVED), (31, B0, MOVED)]),
    ],
)  # fmt: skip
def test_groups_are_told_where_the_lighthouse_has_moved_to(
    kind: str, meanwhile: list[Any], expected: list[Any]
) -> None:
    story = play(*RUNNING, (30, killed(LIGHT0)), *meanwhile, config=config(lighthouse={"kind": kind}))
    assert [(time, a.id, a.message.url) for time, a in story.done if is_a(a, msg.LighthouseMoved)] == expected
    where = {a.id: a.lighthouse for _, a in story.done if is_a(a, act.Assign)}
    assert where.get(B1, MOVED) in (URL, MOVED)
    if B1 in where and (31, B1, MOVED) not in expected:
        assert where[B1] == MOVED


def test_a_full_restart_from_a_checkpoint_is_allowed_to_start_a_new_history() -> None:
    resume = ours(restart={"on_state_loss": "checkpoint"})
    lost = (30, killed(A0, checkpoint=CHECKPOINT), killed(B0, checkpoint=CHECKPOINT))
    assert told(*RUNNING, lost, since=30, config=resume)[-1:] == [act.Send(LIGHT0, msg.NewHistory(5))]
    again = (*RUNNING, lost, (31, killed(LIGHT0)), (32, said.lighthouse_up(LIGHT1, URL)))
    assert act.Send(LIGHT1, msg.NewHistory(5)) in told(*again, since=32, config=resume)
    done = (
        *RUNNING,
        lost,
        (31, ready(A1), ready(B1)),
        (32, store(A1), store(B1)),
        (33, stepped(A1, 9), stepped(B1, 9)),
    )
    after = told(*done, (34, killed(LIGHT0)), (35, said.lighthouse_up(LIGHT1, URL)), since=34, config=resume)
    assert after == [announce(A1, LIGHT1), announce(B1, LIGHT1)]
