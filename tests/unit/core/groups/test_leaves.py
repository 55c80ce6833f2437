"""A group stays within one leaf switch or block where it can: tables, a property, a history, and 1,000 groups."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace

import pytest
import said
from histories import config, granted, node_lost, play, ready, store
from immutables import Map
from steps import A0, B0, B1, LIGHT0, URL

from ftslurm.core.groups.placement import FreePlaces
from ftslurm.core.state import actions as act
from ftslurm.core.state.model import NOWHERE, Allocation, Place


def leaves(text: str) -> tuple[Allocation, dict[str, str]]:
    """Return the allocation and the leaves of "ab a": n1 and n3 in leaf a, n2 in b; a blank is nothing."""
    of = {f"n{i + 1}": leaf for i, leaf in enumerate(text.replace(" ", ""))}
    return Allocation("7", tuple(of)), {node: leaf for node, leaf in of.items() if leaf != "-"}


@pytest.mark.parametrize(
    ("size", "network", "taken", "last", "expected"),
    [
        pytest.param(2, "abab", "", "", "n1 n3", id="one leaf rather than neighbours in Slurm's order"),
        pytest.param(2, "abb", "", "", "n2 n3", id="a leaf that has room"),
        pytest.param(2, "aabb", "n1", "", "n3 n4", id="another one if that has too little"),
        pytest.param(2, "aabb", "", "n3 nX", "n3 n4", id="the leaf of its last nodes"),
        pytest.param(2, "aabb", "n4", "n3 nX", "n1 n2", id="another leaf if that has no room"),
        pytest.param(4, "abcabcaa", "", "", "n1 n4 n7 n8", id="a large leaf"),
        pytest.param(5, "abaab", "", "", "n1 n3 n4 n2 n5", id="both leaves if none suffices"),
        pytest.param(2, "a--a", "", "", "n1 n4", id="nodes that Slurm has in no leaf"),
        pytest.param(2, "abcd", "", "", "n1 n2", id="no leaf has two nodes: neighbours"),
        pytest.param(2, "aaaa", "n2", "", "n3 n4", id="all in one leaf: neighbours"),
        pytest.param(3, "aabb", "n1 n3", "", None, id="full"),
    ],
)
def test_a_group_gets_nodes_of_one_leaf(size: int, network: str, taken: str, last: str, expected: str | None) -> None:
    allocation, of = leaves(network)
    used = [Place((node,)) for node in taken.split()]
    got = FreePlaces(size, 1, [allocation], used, frozenset(), of).find(Place(tuple(last.split())))
    assert (None if got is None else " ".join(got.nodes)) == expected


def test_whatever_is_taken_a_group_is_in_one_leaf_if_one_has_room() -> None:
    dice = random.Random(3)
    for _ in range(400):
        size, per_node, count = dice.randint(2, 4), dice.randint(1, 2), dice.randint(1, 9)
        allocation, of = leaves("".join(dice.choice("aab-c") for _ in range(count)))
        free = FreePlaces(size, per_node, [allocation], [], frozenset(), of)
        open_ = {slot: set(allocation.nodes) for slot in range(per_node)}
        last = NOWHERE
        while True:
            spot = free.find(dice.choice([NOWHERE, last]))
            if spot is None:
                assert all(len(nodes) < size for nodes in open_.values())
                break
            assert set(spot.nodes) <= open_[spot.slot]
            assert len(set(spot.nodes)) == size
            room = [Counter(of.get(node) for node in nodes).most_common(1) for nodes in open_.values() if nodes]
            if max((most[0][1] for most in room), default=0) >= size:
                assert len({of.get(node) for node in spot.nodes}) == 1, (of, open_, spot)
            free.remove(spot)
            open_[spot.slot] -= set(spot.nodes)
            last = Place(tuple({spot.nodes[0], *dice.sample(allocation.nodes, 1)}), spot.slot)


def test_a_group_that_loses_a_node_moves_to_the_spare_of_its_leaf() -> None:
    made = config(groups={"nodes": 2}, cluster={"spare_nodes": 2})
    first = granted(6)  # n1 n3 n5: a, n2 n4 n6: b
    of = Map({f"n{i}": "ab"[(i + 1) % 2] for i in range(1, 7)})
    story = play(
        (0.0, [replace(first, leaf_of=of)]),
        (1.0, [said.hello(LIGHT0, 0, "n1"), said.lighthouse_up(LIGHT0, URL)]),
        (2.0, [*ready(A0, "n1", "n3"), *ready(B0, "n2", "n4"), store(A0), store(B0)]),
        (10.0, node_lost(B0, "n2")),
        (40.0, []),
        config=made,
    )
    launched = {str(launch.id): launch.place.nodes for launch in story.all(act.Launch)}
    assert (launched["group-0000/0"], launched["group-0001/0"]) == (("n1", "n3"), ("n2", "n4"))
    assert launched[str(B1)] == ("n4", "n6")


@pytest.mark.parametrize("leaf", [2, 3, 32, 400])
def test_a_thousand_groups_are_placed_at_once(leaf: int) -> None:
    names = tuple(f"n{i}" for i in range(2_000))
    of = {name: f"s{i % (2_000 // leaf)}" for i, name in enumerate(names)}
    began = time.process_time()
    free = FreePlaces(2, 1, [Allocation("7", names)], [], frozenset(), of)
    for _ in range(1_000):
        spot = free.find()
        assert spot is not None
        free.remove(spot)
    assert free.find() is None
    assert time.process_time() - began < 10  # 0.4 s on an idle machine
