"""Groups that make the others wait."""

from __future__ import annotations

import random

import pytest
import said
from histories import LIGHTHOUSE_UP, RUNNING, Moment, Story, config, granted, killed, play, ready, store
from steps import A0, B0, B1, C0

from ftslurm.config.schema import Config
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Place, StepId

EVEN = {A0: 0.2, B0: 0.2, C0: 0.2}
THREE: tuple[Moment, ...] = (
    (0, granted(4)),
    (1, said.lighthouse_up(StepId("lighthouse", 0), "http://n1:1")),
    (2, ready(A0), ready(B0), ready(C0)),
    (3, store(A0), store(B0), store(C0)),
)
DRAIN = config(groups={"count": 3}, health={"on_slow": "drain"}, cluster={"kind": "slurm"})


def paced(step: StepId, number: int, own_s: float | None, step_s: float = 0.5) -> ev.Event:
    return said.progressed(
        step, number, quorum_id=3, participants=3, committed=number, aborted=0, own_s=own_s, step_s=step_s
    )


def steps(own: dict[StepId, float], since: int, until: int, step_s: float = 0.5) -> list[Moment]:
    """Return a report of each group every second, in which they take two steps."""
    return [(10 + n / 2, [paced(id_, n, own_s, step_s) for id_, own_s in own.items()]) for n in range(since, until, 2)]


def told(story: Story) -> list[tuple[int, bool]]:
    return [(record["group"], record["slow"]) for record in story.records("group_slow")]


def three(*moments: Moment, settings: Config | None = None) -> Story:
    return play(*THREE, *moments, config=settings or config(groups={"count": 3}))


def test_a_group_that_needs_longer_for_its_part_for_half_a_minute_is_told_once_and_when_it_is_over() -> None:
    slow = EVEN | {B0: 0.28}
    story = three(*steps(slow, 60, 118))
    assert told(story) == []  # it may pass
    story = three(*steps(slow, 60, 300), *steps(EVEN, 300, 400))
    assert told(story) == [(1, True), (1, False)]
    first, last = story.records("group_slow")
    assert 60 + 60 <= first["step"] <= 60 + 66
    assert 300 + 60 <= last["step"] <= 300 + 66
    assert (first["own_s"], first["others_s"], first["step_s"], first["nodes"]) == (0.28, 0.2, 0.5, ["n2"])


@pytest.mark.parametrize(
    ("own", "step_s"),
    [
        (EVEN | {B0: 0.25}, 0.5),  # a quarter
        ({A0: 0.01, B0: 0.02, C0: 0.01}, 0.5),  # twice, of nearly nothing
        ({A0: 0.3, B0: 0.2, C0: 0.3}, 0.5),  # a fast one
    ],
)
def test_what_costs_the_others_little_is_not_told(own: dict[StepId, float], step_s: float) -> None:
    assert told(three(*steps(own, 60, 600, step_s))) == []


def test_one_that_becomes_much_slower_is_told_again() -> None:
    story = three(*steps(EVEN | {B0: 0.28}, 60, 200), *steps(EVEN | {B0: 0.44}, 200, 300))
    assert [record["own_s"] for record in story.records("group_slow")] == [0.28, 0.44]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("step_s", [0.005, 0.5, 5.0])
def test_a_group_that_is_slow_now_and_then_is_told_seldom(seed: int, step_s: float) -> None:
    """Whatever the length of a step, and of the phases in which a group is slow."""
    dice, moments, number, slow, until = random.Random(seed), list[Moment](), 60, False, 0.0
    for second in range(300):
        if second >= until:
            slow, until = not slow, second + dice.choice([1, 5, 10, 20, 25])
        number += max(1, round(1 / step_s)) if second % max(1, step_s) < 1 else 0
        own = {id_: 0.4 * step_s * dice.uniform(0.9, 1.1) for id_ in EVEN} | ({B0: 0.9 * step_s} if slow else {})
        moments.append((10 + second, [paced(id_, number, own_s, step_s) for id_, own_s in own.items()]))
    assert len(told(three(*moments))) <= 2


def test_of_two_groups_the_slow_one_is_told() -> None:
    story = play(*RUNNING, *steps({A0: 0.3, B0: 0.2}, 60, 200))
    assert told(story) == [(0, True)]


def test_noise_around_the_limit_is_told_at_most_once_and_even_groups_never() -> None:
    dice = random.Random(7)
    even, edge = list[Moment](), list[Moment]()
    for n in range(60, 1500, 2):
        even += steps({id_: 0.2 * dice.uniform(0.88, 1.12) for id_ in EVEN}, n, n + 2)
        edge += steps(EVEN | {B0: 0.2 * dice.uniform(1.2, 1.42)}, n, n + 2)
    assert told(three(*even)) == []
    assert told(three(*edge)) in ([], [(1, True)])


def test_groups_of_other_hardware_and_other_roles_are_not_compared() -> None:
    settings = config(groups={"count": 3, "roles": {"actor": 1, "learner": 2}})
    assert told(three(*steps({A0: 0.9, B0: 0.2, C0: 0.2}, 60, 200), settings=settings)) == []


def test_a_slow_group_moves_to_a_free_node_and_its_own_gets_nothing_any_more() -> None:
    slow = EVEN | {B0: 0.28}
    story = three(*steps(slow, 60, 140), (81, ev.Ended(B0, code=0)), (82,), settings=DRAIN)
    assert story.records("node_drained") == [{"node": "n2", "by": "ftslurm: group 1 is slow there"}]
    (launch,) = [launch for launch in story.all(act.Launch) if launch.id == B1]
    assert launch.place == Place(("n4",))
    assert [record["cause"] for record in story.records("step_exited")] == ["requested"]


def test_without_a_free_node_it_stays_and_one_moves_at_a_time() -> None:
    slow = {A0: 0.2, B0: 0.28, C0: 0.2}
    full = play((0, granted(3)), *THREE[1:], *steps(slow, 60, 200), config=DRAIN)
    assert (told(full), full.records("node_drained")) == ([(1, True)], [])
    wide = config(groups={"count": 3}, health={"on_slow": "drain"}, cluster={"kind": "slurm"})
    two = play((0, granted(5)), *THREE[1:], *steps({A0: 0.3, B0: 0.3, C0: 0.2}, 60, 200), config=wide)
    assert told(two) == []  # two of three are no slow group: the third is a fast one


def test_a_new_attempt_is_measured_anew() -> None:
    slow = EVEN | {B0: 0.28}
    story = three(*steps(slow, 60, 84), (55, killed(B0)), (56, ready(B1)), (57, store(B1)))
    story.turn(70, [paced(B1, 90, None)])
    assert story.unit(B1).current.pace is None
    assert told(story) == []


def test_of_two_groups_the_slow_one_is_told_and_not_the_fast_one() -> None:
    pair = (0, granted(2)), (1, LIGHTHOUSE_UP), (2, ready(A0), ready(B0)), (3, store(A0), store(B0))
    story = play(*pair, *steps({A0: 0.2, B0: 0.28}, 60, 200))
    assert told(story) == [(1, True)]
