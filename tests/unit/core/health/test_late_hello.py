"""Steps that do not answer in twice the usual time: their groups start elsewhere, once."""

from __future__ import annotations

from typing import Any

import pytest
from histories import Moment, Story, beats, config, granted, killed, merged, node_lost, play, ready, stepped, store
from steps import A0, B0, B1, B2, LIGHT0, URL

from ftslurm.core.groups.timings import LEAST_S, hello_limit
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev

INF = float("inf")


STAGED = {"internal": {"staged_python": "/runs/.python/k.tar:python"}}


def relaunched(
    *moments: Moment,
    nodes: int = 3,
    took_s: float = 0.5,
    until: float = 60.0,
    fails: list[ev.Event] | None = None,
    **sections: Any,
) -> Story:
    """Play a run whose first steps answer after took_s seconds; group B's next step, launched at 30, says nothing."""
    answers = 1 + took_s
    history = [
        (0, granted(nodes)),
        (1, ev.Hello(LIGHT0, 0, "n1"), ev.LighthouseUp(LIGHT0, URL)),
        (took_s, ready(A0), ready(B0)),
        (answers + 1, store(A0), store(B0)),
        (answers + 2, stepped(A0, 1), stepped(B0, 1)),
        (30, killed(B0) if fails is None else fails),
    ]
    made = config(health={"lost_after_s": 1000.0}, **sections)
    return play(*merged(history, moments, [(until,)]), config=made)


@pytest.mark.parametrize(
    ("took", "expected"),
    [((), INF), ((1.0,), INF), ((0.3, 0.4), LEAST_S), ((3.0, 4.0, 50.0), 8.0)],
    ids=["nothing known", "one", "never below the least", "twice the median"],
)
def test_the_limit_is_twice_the_usual_time(took: tuple[float, ...], expected: float) -> None:
    assert hello_limit(took) == expected


def test_a_late_step_is_ended_and_its_group_starts_on_the_spare_node_at_once() -> None:
    story = relaunched((33.1, ev.Ended(B1, None, signal=9)))
    first, second = story.all(act.Launch, since=29)
    assert (first.id, second.id) == (B1, B2)
    assert first.place.nodes == ("n2",)
    assert second.place.nodes == ("n3",)
    assert story.times(act.Kill, B1)[0] == 33.0
    assert story.times(act.Launch, B2) == [33.1]
    (exited,) = [record for record in story.records("step_exited") if record["attempt"] == 1]
    assert (exited["cause"], exited["node"]) == ("late_start", "n2")
    assert "has not answered 3.0 s after the launch" in exited["error"]
    assert [record["node"] for record in story.records("node_excluded")] == ["n2"]


def test_never_are_two_steps_of_a_group_there() -> None:
    story = relaunched()  # Slurm does not say that B1 has ended
    assert story.times(act.Launch, B2) == []
    assert len(story.times(act.Kill, B1)) > 1


def test_a_step_that_answers_in_time_is_left_alone() -> None:
    story = relaunched((32.9, ready(B1, "n2")))
    assert story.ids(act.Kill, since=30.5) == []


def test_slow_launches_make_the_limit_longer() -> None:
    assert relaunched(took_s=3.0).times(act.Kill, B1)[0] == 36.0


def test_without_another_place_the_step_is_waited_for() -> None:
    assert relaunched(nodes=2).ids(act.Kill, since=30.5) == []


@pytest.mark.parametrize(
    ("fails", "sections", "expected"),
    [
        (killed(B0), STAGED, [33.0]),
        (node_lost(B0, "n2"), STAGED, []),
        (node_lost(B0, "n2"), {"cluster": {"container_image": "/images/a.sqsh"}}, []),
        (node_lost(B0, "n2"), {}, [33.0]),
    ],
    ids=[
        "where it was",
        "on another node",
        "on another node, with a container",
        "on another node, with nothing to unpack",
    ],
)
def test_on_a_node_that_may_have_to_unpack_first_no_step_is_late(
    fails: list[ev.Event], sections: dict[str, Any], expected: list[float]
) -> None:
    assert relaunched(nodes=4, fails=fails, **sections).times(act.Kill, B1)[:1] == expected


def test_on_this_machine_there_is_no_other_place() -> None:
    assert relaunched(cluster={"kind": "local"}).ids(act.Kill, since=30.5) == []


def test_on_a_node_from_which_another_group_is_heard_it_is_waited_for() -> None:
    shared = {"nodes": 2, "groups": {"per_node": 2}}
    heard = relaunched(*beats({A0: 60.0}, since=20.0, every=1.0), **shared)
    assert {launch.place.nodes for launch in heard.all(act.Launch) if launch.id in (A0, B1)} == {("n1",)}
    assert heard.ids(act.Kill, since=30.5) == []
    assert relaunched(*beats({A0: 28.0}, since=20.0, every=1.0), **shared).times(act.Kill, B1)[0] == 33.0


def test_the_next_step_may_take_its_time() -> None:
    story = relaunched((33.1, ev.Ended(B1, None, signal=9)), nodes=4)
    assert story.times(act.Kill, B2) == []


def test_the_late_step_is_no_failure() -> None:
    ended = [(33.1, ev.Ended(B1, None, signal=9))]
    story = relaunched(*ended, restart={"max_per_group": 1})
    assert story.records("group_given_up") == []
    assert story.times(act.Launch, B2) == [33.1]
