"""One standby beside each group (standby.count=each and auto): when it is there, for whom, and what it costs."""

from __future__ import annotations

import time
from typing import Any

import pytest
import said
from histories import Moment, Story, config, finished, granted, killed, node_lost, play, ready, stepped, stop, store
from steps import A0, ANN, B0, B1, LIGHT0, URL

from ftslurm.config.schema import Config
from ftslurm.core.groups.standby import REFILL_S
from ftslurm.core.rules import begin, decide
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Phase, Place, StepId

SA0, SA1, SB0, SB1 = (StepId(f"standby-{group:03d}", n) for group in (0, 1) for n in (0, 1))
STARTED: tuple[Moment, ...] = (
    (0, granted(3)),
    (1, said.lighthouse_up(LIGHT0, URL)),
    (2, ready(A0), ready(B0)),
    (3, store(A0), store(B0)),
)
TRAINING: tuple[Moment, ...] = (*STARTED, (5, stepped(A0, 1), stepped(B0, 1)), (6.1,))
WARM: tuple[Moment, ...] = (*TRAINING, (9, ready(SA0, "n1"), ready(SB0, "n2")), (20, stepped(A0, 10), stepped(B0, 10)))


def each(count: Any = "each", **sections: dict[str, Any]) -> Config:
    return config(standby={"count": count}, **sections)


def launched(story: Story) -> list[tuple[str, tuple[str, ...]]]:
    """Return the standbys that were launched, and where."""
    found = [launch for launch in story.all(act.Launch) if launch.group is None and launch.id.unit != "lighthouse"]
    return [(str(launch.id), launch.place.nodes) for launch in found]


def test_one_comes_beside_each_group_after_its_first_step_and_not_before() -> None:
    assert launched(play(*STARTED, (4.9,), config=each())) == []
    story = play(*TRAINING, config=each())
    assert launched(story) == [("standby-000/0", ("n1",)), ("standby-001/0", ("n2",))]
    assert story.times(act.Launch, SA0) == [5 + REFILL_S]


def test_it_becomes_its_groups_next_attempt_and_the_next_follows_when_that_is_back() -> None:
    story = play(*WARM, (21, killed(B0)), config=each())
    assert story.records("step_launched")[-1]["standby"] == "standby-001/0"
    assert story.unit(B1).place == Place(("n2",))
    assert len(launched(story)) == 2
    back = (said.store_up(SB0, "n2", 29500), said.first_quorum(SB0))
    story = play(*WARM, (21, killed(B0)), (21.2, *back), (21.5, stepped(SB0, 11)), (23,), config=each())
    assert launched(story)[2:] == [("standby-001/1", ("n2",))]


def test_all_groups_but_one_come_back_warm_at_once() -> None:
    four = each(groups={"count": 4})
    names = [StepId(f"group-{g:04d}", 0) for g in range(4)]
    warm = [ready(StepId(f"standby-{g:03d}", 0), f"n{g + 1}") for g in range(4)]
    story = play(
        (0, granted(4)),
        (1, said.lighthouse_up(LIGHT0, URL)),
        (2, *(ready(name) for name in names)),
        (3, [store(name) for name in names]),
        (5, [stepped(name, 1) for name in names]),
        (9, *warm),
        (20, *(killed(name) for name in names[1:])),
        config=four,
    )
    assert [r["standby"] for r in story.records("step_launched", since=20)] == [f"standby-{g:03d}/0" for g in (1, 2, 3)]


def test_one_group_never_takes_anothers() -> None:
    story = play(*TRAINING, (9, ready(SA0, "n1")), (20, killed(B0)), config=each())
    assert story.records("step_launched")[-1]["standby"] is None


def test_it_goes_with_its_lost_node_and_the_group_begins_elsewhere() -> None:
    lost = [*node_lost(B0, "n2"), *node_lost(SB0, "n2")]
    story = play(*WARM, (21, lost), (23, ready(B1, "n3")), (24, store(B1)), (25, stepped(B1, 12)), (30,), config=each())
    assert story.unit(B1).place == Place(("n3",))
    assert launched(story)[2:] == [("standby-001/1", ("n3",))]


def test_it_ends_with_its_group() -> None:
    story = play(*WARM, (21, finished(B0)), config=each())
    assert story.ids(act.Kill) == [SB0]
    story.turn(21.5, [ev.Ended(SB0, code=137)])
    assert story.unit(SB0).phase is Phase.PENDING
    story.wait(30.0)
    assert len(launched(story)) == 2
    wide = each(groups={"min": 1})
    assert play(*WARM, (21, ev.Asked("scale", ANN, "c1", groups=1)), config=wide).ids(act.Kill) == [SB0]


def test_the_end_of_the_run_ends_it() -> None:
    assert set(play(*WARM, (21, stop()), config=each()).ids(act.Kill)) == {SA0, SB0}


@pytest.mark.parametrize(
    ("available_mb", "expected"), [(600, 2), (598, 0)], ids=["room for twice as much", "one MiB less than that"]
)
def test_auto_needs_twice_the_memory_that_a_warm_process_takes(available_mb: int, expected: int) -> None:
    rooms = (said.room(A0, 0, available_mb, 200), said.room(B0, 0, available_mb, 200))
    story = play(*TRAINING, (7, *rooms), (9,), config=each("auto"))
    assert len(launched(story)) == expected
    told = [record["reason"] for record in story.records("standby_given_up")]
    assert len(told) == (0 if expected else 1)  # once for the run
    assert all("standby.count=each starts them all the same" in reason for reason in told)


def test_auto_waits_for_the_memory_of_every_node_of_a_group() -> None:
    settings = each("auto", groups={"nodes": 2, "count": 2})
    hosts = {A0: ("n1", "n2"), B0: ("n3", "n4")}
    story = play(
        (0, granted(4)),
        (1, said.lighthouse_up(LIGHT0, URL)),
        (2, *(ready(step, *nodes) for step, nodes in hosts.items())),
        (3, store(A0), store(B0)),
        (5, stepped(A0, 1), stepped(B0, 1)),
        (6, said.room(A0, 0, 9000, 200), said.room(A0, 1, 9000, 200), said.room(B0, 0, 9000, 200)),
        (8,),
        config=settings,
    )
    assert launched(story) == [("standby-000/0", ("n1", "n2"))]


@pytest.mark.parametrize("off", [{"restart": {"max_per_group": 0}}, {"standby": {"count": 0}}])
def test_auto_is_off_where_none_could_take_over(off: dict[str, Any]) -> None:
    rooms = (said.room(A0, 0, 9000, 200), said.room(B0, 0, 9000, 200))
    settings = config(**off)
    assert launched(play(*TRAINING, (7, *rooms), (9,), config=settings)) == []


@pytest.mark.nightly
def test_one_failure_costs_little_with_4_000_groups_and_as_many_standbys() -> None:
    settings = each(groups={"count": 4_000})
    state, _ = decide(begin(settings), [granted(4_000), said.lighthouse_up(LIGHT0, URL)], 0.0, settings)
    groups = [StepId(f"group-{g:04d}", 0) for g in range(4_000)]
    for now, events in (
        (2.0, [event for g in groups for event in ready(g)]),
        (3.0, [store(g) for g in groups]),
        (5.0, [stepped(g, 1) for g in groups]),
        (6.1, []),
        (9.0, [e for g in range(4_000) for e in ready(StepId(f"standby-{g:03d}", 0), f"n{g + 1}")]),
        (9.1, []),
    ):
        state, actions = decide(state, events, now, settings)
    assert sum(unit.phase is Phase.RUNNING for unit in state.standbys) == 4_000
    took = []
    for number in (2000, 2001, 2002):
        begun = time.process_time()
        state, actions = decide(state, killed(groups[number]), 20.0 + number, settings)
        took.append(time.process_time() - begun)
        assert [a.standby for a in actions if getattr(a, "event", "") == "step_launched"] == [  # type: ignore[union-attr]
            f"standby-{number:03d}/0"
        ]
    assert min(took) < 0.02, took  # on a busy machine; a look at each of the 8,000 units takes longer
