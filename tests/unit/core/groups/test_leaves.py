"""A group stays within one leaf switch or block where it can: tables, a property, a history, and 10,000 groups."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import replace

import pytest
from histories import config, granted, node_lost, play, ready, store
from immutables import Map
from steps import A0, B0, B1, LIGHT0, URL

from ftslurm.core.groups.placement import FreePlaces, place
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Allocation, Place


def leaves(text: str) -> tuple[Allocation, dict[str, str]]:
    """Return the allocation and the leaves of "ab a": n1 and n3 in leaf a, n2 in b; a blank is nothing."""
    of = {f"n{i + 1}": leaf for i, leaf in enumerate(text.replace(" ", ""))}
    return Allocation("7", tuple(of)), {node: leaf for node, leaf in of.items() if leaf != "-"}


@pytest.mark.parametrize(
    ("size", "network", "taken", "last", "expected"),
    [
        pytest.param(2, "abab", "", "", "n1 n3", id="one leaf rather than neighbours in Slurm's order"),
        pytest.param(2, "aaabb", "", "", "n4 n5", id="the leaf with the least room that suffices"),
        pytest.param(2, "aaabb", "n4", "", "n1 n2", id="another one if that has too little"),
        pytest.param(2, "aabb", "", "n3 nX", "n3 n4", id="the leaf of its last nodes"),
        pytest.param(3, "aaaabbb", "n1", "n1 n5 n6", "n5 n6 n7", id="that of the most of them"),
        pytest.param(3, "aaaabbbb", "n6", "n4 n1 nX", "n1 n2 n4", id="with those of them that are free"),
        pytest.param(2, "aabb", "n4", "n3 nX", "n1 n2", id="another leaf if that has no room"),
        pytest.param(3, "aabbccc", "n7", "", "n1 n2 n3", id="over as few leaves as possible"),
        pytest.param(4, "abcabcaa", "", "", "n1 n4 n7 n8", id="a large leaf"),
        pytest.param(5, "aaabbcd", "", "", "n1 n2 n3 n4 n5", id="the largest leaves first if none suffices"),
        pytest.param(2, "a--a", "", "", "n1 n4", id="a node without a leaf is one by itself"),
        pytest.param(2, "abcd", "", "", "n1 n2", id="no leaf has two nodes: neighbours"),
        pytest.param(2, "aaaa", "n2", "", "n3 n4", id="all in one leaf: neighbours"),
        pytest.param(3, "aabb", "n1 n3", "", None, id="full"),
    ],
)
def test_a_group_gets_nodes_of_one_leaf(size: int, network: str, taken: str, last: str, expected: str | None) -> None:
    allocation, of = leaves(network)
    used = [Place((node,)) for node in taken.split()]
    got = place(size, 1, [allocation], used, frozenset(), Place(tuple(last.split())) if last else None, of)
    assert (None if got is None else " ".join(got.nodes)) == expected


def test_a_leaf_is_filled_up_slot_by_slot_so_that_spare_nodes_stay_free() -> None:
    allocation, of = leaves("aaaabb")
    free = FreePlaces(2, 2, [allocation], [], frozenset(), of)
    got = []
    while (spot := free.find()) is not None:
        free.remove(spot)
        got.append((" ".join(spot.nodes), spot.slot))
    pairs = ("n5 n6", "n1 n2", "n3 n4")
    assert got == [(pair, slot) for pair in pairs for slot in (0, 1)]


def test_whatever_is_taken_no_group_is_spread_over_more_leaves_than_it_must() -> None:
    dice = random.Random(3)
    for _ in range(400):
        size, per_node, count = dice.randint(2, 4), dice.randint(1, 2), dice.randint(1, 9)
        allocation, of = leaves("".join(dice.choice("aab-c") for _ in range(count)))
        free = FreePlaces(size, per_node, [allocation], [], frozenset(), of)
        open_ = {slot: set(allocation.nodes) for slot in range(per_node)}
        last: Place | None = None
        while True:
            spot = free.find(dice.choice([None, last]))
            if spot is None:
                assert all(len(nodes) < size for nodes in open_.values())
                break
            assert set(spot.nodes) <= open_[spot.slot]
            assert len(set(spot.nodes)) == size
            if len({of.get(n, n) for n in allocation.nodes}) not in (1, count):
                least = min(
                    len({of.get(n, n) for n in nodes})
                    for there in open_.values()
                    for nodes in itertools.combinations(sorted(there), size)
                )
                assert len({of.get(n, n) for n in spot.nodes}) == least, (of, open_, spot)
            free.remove(spot)
            open_[spot.slot] -= set(spot.nodes)
            last = Place(tuple({spot.nodes[0], *dice.sample(allocation.nodes, 1)}), spot.slot)


def test_a_group_that_loses_a_node_moves_to_the_spare_of_its_leaf_and_the_journal_names_it() -> None:
    made = config(groups={"nodes": 2}, cluster={"spare_nodes": 2})
    first = granted(6)  # n1 n3 n5: a, n2 n4 n6: b
    of = Map({f"n{i}": "ab"[(i + 1) % 2] for i in range(1, 7)})
    story = play(
        (0.0, [replace(first, leaf_of=of)]),
        (1.0, [ev.Hello(LIGHT0, 0, "n1"), ev.LighthouseUp(LIGHT0, URL)]),
        (2.0, [*ready(A0, "n1", "n3"), *ready(B0, "n2", "n4"), store(A0), store(B0)]),
        (10.0, node_lost(B0, "n2")),
        (40.0, []),
        config=made,
    )
    launched = {str(launch.id): launch.place.nodes for launch in story.all(act.Launch)}
    assert (launched["group-0000/0"], launched["group-0001/0"]) == (("n1", "n3"), ("n2", "n4"))
    assert launched[str(B1)] == ("n4", "n6")
    told = [(record["unit"], tuple(record.get("leaves", ()))) for record in story.records("step_launched")]
    assert told == [("lighthouse", ()), ("group-0000", ("a",)), ("group-0001", ("b",)), ("group-0001", ("b",))]


@pytest.mark.parametrize("leaf", [2, 3, 32, pytest.param(400, marks=pytest.mark.nightly)])
def test_ten_thousand_groups_are_placed_at_once(leaf: int) -> None:
    names = tuple(f"n{i}" for i in range(20_000))
    of = {name: f"s{i % (20_000 // leaf)}" for i, name in enumerate(names)}
    began = time.monotonic()
    free = FreePlaces(2, 1, [Allocation("7", names)], [], frozenset(), of)
    for _ in range(10_000):
        spot = free.find()
        assert spot is not None
        free.remove(spot)
    assert free.find() is None
    assert time.monotonic() - began < 20  # 0.3 s on an idle machine


def test_a_group_that_could_have_been_together_is_told_of_once() -> None:
    made = config(groups={"nodes": 2, "count": 3})
    of = Map({"n1": "a", "n2": "a", "n3": "a", "n4": "b", "n5": "c", "n6": "d"})
    story = play((0.0, [replace(granted(6), leaf_of=of)]), config=made)
    told = [record["text"] for record in story.records("warning")]
    assert told == [
        "groups are spread over leaf switches or blocks, the first is group 1 (a, b): none has 2 free nodes left; "
        "cluster.sbatch.switches or cluster.sbatch.segment ask Slurm for nodes that lie together"
    ]
    made = config(groups={"nodes": 3, "count": 2})
    story = play((0.0, [replace(granted(6), leaf_of=Map({"n1": "a", "n2": "a"}))]), config=made)
    assert story.records("warning") == []  # no leaf has room for a group
