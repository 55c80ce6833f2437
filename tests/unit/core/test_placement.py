"""Which nodes a group gets: tables, and two properties over many small allocations."""

from __future__ import annotations

import itertools
import random

import pytest

from ftslurm.config import Config, nodes_needed
from ftslurm.core.model import Allocation, Place
from ftslurm.core.placement import place


def nodes(count: int) -> Allocation:
    return Allocation("7", tuple(f"n{i + 1}" for i in range(count)))


def at(*names: str, slot: int = 0) -> Place:
    return Place(names, slot)


@pytest.mark.parametrize(
    ("size", "have", "taken", "avoid", "expected"),
    [
        pytest.param(1, 3, [], "", at("n1"), id="the first node of an empty allocation"),
        pytest.param(1, 3, [at("n1")], "", at("n2"), id="the next free one"),
        pytest.param(1, 3, [at("n1"), at("n3")], "", at("n2"), id="a gap is filled before later nodes"),
        pytest.param(2, 5, [at("n2")], "", at("n3", "n4"), id="neighbours rather than earlier nodes"),
        pytest.param(2, 5, [at("n2"), at("n4")], "", at("n1", "n3"), id="the nearest where there are no neighbours"),
        pytest.param(3, 7, [at("n2"), at("n6")], "", at("n3", "n4", "n5"), id="three in a row"),
        pytest.param(1, 3, [], "n1", at("n2"), id="a lost node is passed over"),
        pytest.param(2, 4, [], "n2", at("n3", "n4"), id="neighbours beyond a lost node"),
        pytest.param(1, 2, [at("n1"), at("n2")], "", None, id="full"),
        pytest.param(1, 2, [at("n1")], "n2", None, id="what is not taken is lost"),
        pytest.param(3, 2, [], "", None, id="larger than the allocation"),
        pytest.param(2, 3, [at("n2")], "n3", None, id="one node free, two needed"),
    ],
)
def test_a_group_gets(size: int, have: int, taken: list[Place], avoid: str, expected: Place | None) -> None:
    assert place(size, 1, nodes(have), taken, frozenset(avoid.split())) == expected


@pytest.mark.parametrize(
    ("size", "have", "taken", "expected"),
    [
        pytest.param(1, 2, [], at("n1"), id="the first slot first"),
        pytest.param(1, 2, [at("n1")], at("n1", slot=1), id="a node is filled up before the next is begun"),
        pytest.param(1, 2, [at("n1", slot=1)], at("n1"), id="a slot that became free"),
        pytest.param(1, 2, [at("n1"), at("n1", slot=1)], at("n2"), id="the next node once the first is full"),
        pytest.param(2, 4, [at("n1", "n2")], at("n1", "n2", slot=1), id="the same slot on both nodes"),
        pytest.param(2, 2, [at("n1"), at("n2", slot=1)], None, id="free slots of different numbers do not add up"),
    ],
)
def test_two_groups_that_share_nodes_have_slots_of_their_own(
    size: int, have: int, taken: list[Place], expected: Place | None
) -> None:
    assert place(size, 2, nodes(have), taken, frozenset()) == expected


@pytest.mark.parametrize(
    ("prefer", "taken", "avoid", "expected"),
    [
        pytest.param(at("n3", "n4"), [], "", at("n3", "n4"), id="again where it was, though earlier nodes are free"),
        pytest.param(at("n1", "n4"), [], "", at("n1", "n4"), id="also where it was far apart"),
        pytest.param(at("n3", "n4"), [], "n4", at("n1", "n2"), id="elsewhere if one of its nodes is lost"),
        pytest.param(at("n3", "n4"), [at("n4")], "", at("n1", "n2"), id="elsewhere if another group has come there"),
        pytest.param(at("n3", "n4"), [at("n1", "n2")], "n4", at("n3", "n5"), id="its sound node and a spare one"),
        pytest.param(at("m1", "m2"), [], "", at("n1", "n2"), id="its nodes belong to an allocation that is gone"),
        pytest.param(at("n3"), [], "", at("n1", "n2"), id="a place of another size is no place for it"),
    ],
)
def test_a_group_that_ran_before_is_placed(
    prefer: Place, taken: list[Place], avoid: str, expected: Place | None
) -> None:
    assert place(2, 1, nodes(5), taken, frozenset(avoid.split()), prefer) == expected


def test_whatever_is_taken_a_place_is_free_sound_and_of_the_right_size() -> None:
    dice = random.Random(1)
    for _ in range(300):
        allocation, per_node, size = nodes(dice.randint(1, 6)), dice.randint(1, 3), dice.randint(1, 3)
        spots = [Place((n,), s) for n in allocation.nodes for s in range(per_node)]
        taken = dice.sample(spots, dice.randint(0, len(spots)))
        avoid = frozenset(dice.sample(allocation.nodes, dice.randint(0, 1)))
        prefer = dice.choice([None, Place(tuple(dice.sample(allocation.nodes, 1)))])
        got = place(size, per_node, allocation, taken, avoid, prefer)
        free = {s: [n for n in allocation.nodes if n not in avoid and Place((n,), s) not in taken] for s in range(3)}
        if got is None:
            assert all(len(free[s]) < size for s in range(per_node))
        else:
            assert 0 <= got.slot < per_node
            assert len(set(got.nodes)) == len(got.nodes) == size
            assert set(got.nodes) <= set(free[got.slot])


def test_the_nodes_that_are_asked_for_hold_every_group() -> None:
    for count, size, per_node in itertools.product(range(1, 6), range(1, 4), range(1, 4)):
        config = Config()
        config.groups.count, config.groups.nodes, config.groups.per_node = count, size, min(per_node, count)
        allocation = nodes(nodes_needed(config))
        taken: list[Place] = []
        for group in range(count):
            spot = place(size, config.groups.per_node, allocation, taken, frozenset())
            assert spot is not None, (
                f"group {group} of {count} ({size} nodes, {per_node} to a node): {allocation.nodes}"
            )
            taken.append(spot)
