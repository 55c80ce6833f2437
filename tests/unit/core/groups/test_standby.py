"""Warm standbys: their nodes, and the choice of the one that takes over, as tables (see test_standby_takeover.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from histories import config, with_units

from ftslurm.config.schema import Config
from ftslurm.core.groups.standby import home, pick
from ftslurm.core.rules import begin
from ftslurm.core.state.model import Allocation, Look, Node, Out, Phase, Place, Pulse
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.turn import Turn


def warm(count: int = 1, **sections: dict[str, Any]) -> Config:
    return config(standby={"count": count, **sections.pop("standby", {})}, **sections)


def state_of(
    settings: Config, nodes: int, groups: dict[str, tuple[Place, Phase]], standbys: list[Place], avoid: str = ""
) -> RunState:
    """Return a state with groups, by letter, and ready standbys at these places."""
    state = begin(settings)
    units = list(state.groups)
    for letter, (place, phase) in groups.items():
        units["ABCD".index(letter)] = replace(units["ABCD".index(letter)], place=place, phase=phase, attempt=0)
    waiting = [
        replace(unit, place=place, phase=Phase.RUNNING, attempt=0, current=replace(unit.current, hosts=place.nodes))
        for unit, place in zip(state.standbys, standbys, strict=False)
    ]
    allocation = Allocation("7", tuple(f"n{i + 1}" for i in range(nodes)))
    nodes_left_out = state.nodes.put({name: Node(Out.LOST) for name in avoid.split()})
    return replace(with_units(state, *units, *waiting), allocation=allocation, nodes=nodes_left_out)


def at(*nodes: str, slot: int = 0) -> Place:
    return Place(nodes, slot)


def runs(*nodes: str, slot: int = 0) -> tuple[Place, Phase]:
    return Place(nodes, slot), Phase.RUNNING


def waits(*nodes: str, slot: int = 0) -> tuple[Place, Phase]:
    return Place(nodes, slot), Phase.PENDING


@pytest.mark.parametrize(
    ("groups", "size", "per_node", "nodes", "others", "avoid", "expected"),
    [
        pytest.param({"A": runs("n1")}, 1, 1, 2, [], "", at("n2"), id="on a spare node"),
        pytest.param({"A": runs("n1")}, 1, 1, 3, [at("n2")], "", at("n3"), id="each on one of its own"),
        pytest.param({"A": runs("n1")}, 1, 1, 3, [], "n2", at("n3"), id="not on a node that is avoided"),
        pytest.param({"A": waits("n1")}, 1, 1, 2, [], "", at("n2"), id="not where a group wants to come back"),
        pytest.param(
            {"A": runs("n1"), "B": runs("n2")},
            1,
            1,
            2,
            [],
            "",
            at("n2"),
            id="else beside a group",
        ),
        pytest.param(
            {"A": runs("n1"), "B": runs("n2")}, 1, 1, 2, [at("n2")], "", at("n1"), id="beside the one that has none"
        ),
        pytest.param({"A": runs("n1"), "B": runs("n2")}, 1, 1, 2, [], "n1", at("n2"), id="beside one on a sound node"),
        pytest.param({"A": runs("n1")}, 1, 2, 1, [], "", at("n1", slot=1), id="on a free share of a node"),
        pytest.param({"A": runs("n1", "n2")}, 2, 1, 4, [], "", at("n3", "n4"), id="on two spare nodes"),
        pytest.param({"A": runs("n1", "n2")}, 2, 1, 3, [], "", at("n1", "n2"), id="one spare node is not enough"),
        pytest.param({"A": runs("n1")}, 1, 1, 1, [], "n1", None, id="nowhere"),
    ],
)
def test_a_standby_waits(
    groups: dict[str, Any],
    size: int,
    per_node: int,
    nodes: int,
    others: list[Place],
    avoid: str,
    expected: Place | None,
) -> None:
    settings = warm(len(others) + 1, groups={"count": len(groups), "nodes": size, "per_node": per_node})
    state = state_of(settings, nodes, groups, others, avoid)
    assert home(Turn(state, 0.0, settings), state.standbys[-1]) == expected


@pytest.mark.parametrize(
    ("groups", "per_node", "standbys", "avoid", "expected"),
    [
        pytest.param({"A": waits("n1"), "B": runs("n2")}, 1, [at("n3")], "", (0, at("n3")), id="the one there is"),
        pytest.param({"A": waits("n1"), "B": runs("n2")}, 1, [], "", None, id="there is none"),
        pytest.param(
            {"A": waits("n1"), "B": runs("n2")}, 1, [at("n3"), at("n1")], "", (1, at("n1")), id="where the group was"
        ),
        pytest.param({"A": waits("n1"), "B": runs("n2")}, 1, [at("n2")], "", None, id="not on a living group's share"),
        pytest.param({"A": waits("n1"), "B": waits("n2")}, 1, [at("n2")], "", (0, at("n2")), id="but on a dead one's"),
        pytest.param({"A": waits("n1")}, 1, [at("n2"), at("n3")], "n2", (1, at("n3")), id="on a sound node"),
        pytest.param({"A": waits("n1")}, 1, [at("n2")], "n2", None, id="not on an avoided one"),
        pytest.param(
            {"A": waits("n1"), "B": runs("n2", slot=1)}, 2, [at("n2"), at("n3")], "", (1, at("n3")), id="less crowded"
        ),
        pytest.param(
            {"A": waits("n1"), "B": runs("n2")}, 2, [at("n2")], "", (0, at("n2", slot=1)), id="the free share of a node"
        ),
        pytest.param(
            {"A": waits("n1", slot=1), "B": runs("n2")}, 2, [at("n1")], "", (0, at("n1", slot=1)), id="its own share"
        ),
        pytest.param({"A": waits("n1", "n2")}, 1, [at("n3", "n4")], "n4", None, id="both nodes have to be sound"),
        pytest.param({"A": waits("n1", "n2")}, 1, [at("n3", "n4")], "", (0, at("n3", "n4")), id="two nodes for two"),
    ],
)
def test_the_next_attempt_of_group_a_is(
    groups: dict[str, Any], per_node: int, standbys: list[Place], avoid: str, expected: tuple[int, Place] | None
) -> None:
    size = len(groups["A"][0].nodes)
    settings = warm(2, groups={"count": len(groups), "nodes": size, "per_node": per_node})
    state = state_of(settings, 4, groups, standbys, avoid)
    picked = pick(Turn(state, 0.0, settings), state.groups[0])
    if expected is None:
        assert picked is None
    else:
        assert picked == (state.standbys[expected[0]], expected[1])


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.STARTING, Phase.STOPPING, Phase.FAILED])
def test_one_that_is_not_ready_is_not_picked(phase: Phase) -> None:
    state = state_of(warm(), 3, {"A": waits("n1")}, [at("n3")])
    state = with_units(state, replace(state.standbys[0], phase=phase))
    assert pick(Turn(state, 0.0, warm()), state.groups[0]) is None


def test_one_on_a_node_that_has_just_fallen_silent_is_not_picked() -> None:
    base = state_of(warm(), 3, {"A": waits("n1")}, [at("n3")])
    state = replace(base, nodes=replace(base.nodes, by_name={"n3": Node(look=Look(20.0, 25.0))}))
    assert pick(Turn(state, 0.0, warm()), state.groups[0]) is None


def test_one_that_is_stopped_is_not_picked_until_it_goes_on() -> None:
    base = state_of(warm(), 3, {"A": waits("n1")}, [at("n3")])
    stopped = with_units(base, replace(base.standbys[0], pulses=(Pulse(20.0, "T"),)))
    goes_on = with_units(base, replace(base.standbys[0], pulses=(Pulse(22.0, "S"),)))
    assert pick(Turn(stopped, 0.0, warm()), stopped.groups[0]) is None
    assert pick(Turn(goes_on, 0.0, warm()), goes_on.groups[0]) is not None
