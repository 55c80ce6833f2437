"""Groups whose guards are silent: when the Lighthouse is told, and when silence is no evidence."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from histories import Moment, Story, beats, config, granted, merged, play, ready, stepped, store
from steps import A0, B0, C0, LIGHT0, LIGHT1, URL

from ftslurm.config.schema import Config
from ftslurm.core.health import set_aside
from ftslurm.core.health.hang_limit import LOOK_S_PER_GROUP
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence, Phase, SilentGroup, StepId
from ftslurm.core.state.transitions import run
from ftslurm.core.state.unit_table import UnitTable
from ftslurm.core.state.values import replace

B_SILENT = (SilentGroup(1, 0, sure=False),)


def settings(**sections: dict[str, Any]) -> Config:
    groups = {"count": 3, **sections.pop("groups", {})}
    return config({"heartbeat_s": 1.0}, groups=groups, **{"health": {"lost_after_s": 1e9}, **sections})


def started(groups: int = 3) -> list[Moment]:
    steps = [A0, B0, C0][:groups]
    return [
        (0, granted(groups)),
        (1, ev.Hello(LIGHT0, 0, "n1"), ev.LighthouseUp(LIGHT0, URL)),
        (2, *(event for step in steps for event in ready(step))),
        (3, *(store(step) for step in steps)),
        (5, *(stepped(step, 1) for step in steps)),
    ]


def heard(until: dict[StepId, float], *moments: Moment, groups: int = 3, end: float = 30.0, **sections: Any) -> Story:
    """Play groups with a heartbeat a second, each until its time."""
    history = merged(started(groups), beats({LIGHT0: end} | until, every=1.0), moments, [(end,)])
    return play(*history, config=settings(groups={"count": groups}, **sections))


def told(story: Story) -> list[tuple[float, tuple[SilentGroup, ...]]]:
    return [(time, action.groups) for time, action in story.done if isinstance(action, act.SetAside)]


def test_nothing_is_sent_while_all_are_heard() -> None:
    assert told(heard({A0: 30, B0: 30, C0: 30})) == []


def test_two_missing_heartbeats_are_told_and_the_group_is_not_ended() -> None:
    story = heard({A0: 30, B0: 20, C0: 30})
    assert told(story) == [(22.0, B_SILENT)]
    assert story.ids(act.Kill) == []
    assert story.phases() == [Phase.RUNNING] * 3


def test_a_group_that_is_heard_again_leaves_the_list() -> None:
    story = heard({A0: 30, B0: 20, C0: 30}, *[(t, ev.Alive(B0, 0, t)) for t in (26.1, 27.1, 28.1, 29.1)])
    (_, silent), (time, nobody) = told(story)
    assert (silent, nobody) == (B_SILENT, ())
    assert 26.1 <= time <= 26.1 + set_aside.AGAIN_S + 0.01


def test_one_of_two_groups_may_be_set_aside() -> None:
    assert told(heard({A0: 30, B0: 20}, groups=2)) == [(22.0, B_SILENT)]


@pytest.mark.parametrize(
    ("until", "least"),
    [({A0: 30, B0: 20, C0: 20}, 1), ({A0: 20, B0: 20, C0: 20}, 1), ({A0: 30, B0: 20, C0: 30}, 3)],
    ids=["two of three", "all", "fewer than groups.min would be left"],
)
def test_more_silent_groups_than_heard_ones_are_no_failure_of_nodes(until: dict[StepId, float], least: int) -> None:
    made = settings(groups={"count": 3, "min": least})
    assert told(play(*merged(started(), beats({LIGHT0: 30} | until, every=1.0), [(30,)]), config=made)) == []


def test_groups_that_have_finished_count_for_groups_min() -> None:
    over = (18, ev.TaskDone(C0, 0), ev.Ended(C0, code=0))
    made = settings(groups={"min": 2})
    story = play(*merged(started(), beats({LIGHT0: 30, A0: 30, B0: 20, C0: 17}, every=1.0), [over, (30,)]), config=made)
    assert told(story) == [(22.0, B_SILENT)]


def test_a_second_silent_group_does_not_bring_the_first_back() -> None:
    assert told(heard({A0: 30, B0: 18, C0: 24})) == [(20.0, B_SILENT)]


@pytest.mark.parametrize("settings", [{"lighthouse": {"kind": "torchft"}}, {"health": {"lost_after_s": inf}}])
def test_a_lighthouse_that_takes_no_list_or_needs_none_is_sent_none(settings: dict[str, Any]) -> None:
    assert told(heard({A0: 30, B0: 20, C0: 30}, **settings)) == []


def test_a_controller_that_did_not_run_sets_nobody_aside() -> None:
    story = heard({A0: 20, B0: 20, C0: 20}, end=20.5)
    story.turn(32.0, [ev.Alive(A0, 0, 32.0), ev.Alive(LIGHT0, 0, 32.0)])  # the words of the others are read later
    story.turn(32.3, [ev.Alive(B0, 0, 32.3), ev.Alive(C0, 0, 32.3)])
    assert told(story) == []


def test_a_silent_group_stays_in_the_list_when_the_controller_did_not_run() -> None:
    story = heard({A0: 22, B0: 20, C0: 22}, end=22.5)
    story.turn(26.0, [ev.Alive(A0, 0, 26.0), ev.Alive(C0, 0, 26.0), ev.Alive(LIGHT0, 0, 26.0)])
    assert told(story) == [(22.0, B_SILENT)]


@pytest.mark.parametrize(("store_of_b", "expected"), [((), []), ((store(B0),), [(22.0, B_SILENT)])])
def test_a_group_that_may_heal_is_in_the_list_and_one_that_has_not_begun_is_not(
    store_of_b: tuple[ev.Event, ...], expected: list[Any]
) -> None:
    moments = [moment for moment in started() if moment[0] < 3]
    moments += [(3, store(A0), store(C0), *store_of_b), (5, stepped(A0, 1), stepped(C0, 1))]
    story = play(*merged(moments, beats({LIGHT0: 30, A0: 30, B0: 20, C0: 30}, every=1.0), [(30,)]), config=settings())
    assert told(story) == expected


def test_another_lighthouse_gets_the_list_too() -> None:
    down = (24, ev.TaskFailed(LIGHT0, Evidence(0, None, signal=9)), ev.Ended(LIGHT0, code=137))
    up = (25, ev.Hello(LIGHT1, 0, "n1"), ev.LighthouseUp(LIGHT1, URL))
    story = heard({LIGHT0: 23, A0: 30, B0: 20, C0: 30}, down, up)
    assert [(a.id, a.groups) for a in story.all(act.SetAside)] == [(LIGHT0, B_SILENT), (LIGHT1, B_SILENT)]


@pytest.mark.parametrize(("silent_task", "expected"), [(0, (22.0, False)), (1, (22.5, True))])
def test_of_two_nodes_the_one_without_the_manager_must_be_silent_for_longer(
    silent_task: int, expected: tuple[float, bool]
) -> None:
    made = settings(groups={"count": 2, "nodes": 2})
    moments: list[Moment] = [
        (0, granted(4)),
        (1, ev.Hello(LIGHT0, 0, "n1"), ev.LighthouseUp(LIGHT0, URL)),
        (2, ready(A0, "n1", "n2"), ready(B0, "n3", "n4")),
        (3, store(A0), store(B0)),
        (5, stepped(A0, 1), stepped(B0, 1)),
    ]
    ends = {task: 20 if task == silent_task else 30 for task in (0, 1)}
    lives = [beats({A0: 30, LIGHT0: 30}, every=1.0), beats({A0: 30}, every=1.0, task=1)]
    lives += [beats({B0: end}, every=1.0, task=task) for task, end in ends.items()]
    story = play(*merged(moments, *lives, [(30,)]), config=made)
    ((time, (silent,)), *_) = told(story)
    assert time == pytest.approx(expected[0], abs=set_aside.AGAIN_S)
    assert (silent.group, silent.sure) == (1, expected[1])


def test_what_the_lighthouse_does_is_in_the_journal() -> None:
    aside = (22.1, ev.GroupAside(LIGHT0, 1, 0, True, 2.0))
    again = (26.2, ev.GroupAside(LIGHT0, 1, 0, False, 4.1))
    late = (26.3, ev.GroupAside(LIGHT0, 1, 5, True, 4.1), ev.GroupAside(LIGHT0, 9, 0, True, 4.1))
    story = heard({A0: 30, B0: 20, C0: 30}, aside, again, late)
    assert story.records("group_set_aside") == [{"group": 1, "attempt": 0, "node": "n2", "seconds": 2.0}]
    assert story.records("group_heard_again") == [{"group": 1, "attempt": 0, "seconds": 4.1}]


def test_10_000_groups_are_looked_at_seldom_and_one_silent_one_is_found() -> None:
    story = heard({A0: 20, B0: 20, C0: 20}, end=20.5)
    first, many = story.state.table.group(0), 10_000
    units = [story.state.lighthouse]
    for number in range(many):
        heard_at = 17.0 if number == 77 else 20.5
        pulses = tuple(pulse and pulse._replace(time=heard_at) for pulse in first.pulses)
        units.append(run(replace(first, name=f"group-{number:04d}", group=number, pulses=pulses)))
    state = replace(story.state, table=UnitTable.of(units), silent=replace(story.state.silent, next_look=20.5, awake=0))
    state, (order,) = set_aside.watch(state, 20.5, story.config)
    assert isinstance(order, act.SetAside)
    assert order.groups == (SilentGroup(77, 0, sure=False),)
    assert state.silent.next_look >= 20.5 + LOOK_S_PER_GROUP * many
    assert set_aside.watch(state, 20.9, story.config) == (state, [])
