"""The choice of nodes for a group: tables, and two properties over many small allocations."""

from __future__ import annotations

import itertools
import random

import pytest
import said
from histories import RUNNING, STARTED, config, granted, killed, node_lost, play, raised, ready, stepped, store
from steps import A0, A1, B0, B1, B2, C0, LIGHT0, URL

from ftslurm.config.schema import Config, nodes_needed
from ftslurm.core.groups.placement import TWICE, FreePlaces, suspect
from ftslurm.core.groups.verdict import kind
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import NOWHERE, Allocation, Evidence, Exit, Place, StepId, Unit
from ftslurm.protocol.causes import Cause
from ftslurm.slurm.evidence import node_fate


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
    assert FreePlaces(size, 1, [nodes(have)], taken, frozenset(avoid.split())).find() == expected


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
    assert FreePlaces(size, 2, [nodes(have)], taken, frozenset()).find() == expected


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
    assert FreePlaces(2, 1, [nodes(5)], taken, frozenset(avoid.split())).find(prefer) == expected


def test_whatever_is_taken_a_place_is_free_sound_and_of_the_right_size() -> None:
    dice = random.Random(1)
    for _ in range(300):
        allocation, per_node, size = nodes(dice.randint(1, 6)), dice.randint(1, 3), dice.randint(1, 3)
        spots = [Place((n,), s) for n in allocation.nodes for s in range(per_node)]
        taken = dice.sample(spots, dice.randint(0, len(spots)))
        avoid = frozenset(dice.sample(allocation.nodes, dice.randint(0, 1)))
        prefer = dice.choice([NOWHERE, Place(tuple(dice.sample(allocation.nodes, 1)))])
        got = FreePlaces(size, per_node, [allocation], taken, avoid).find(prefer)
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
            spot = FreePlaces(size, config.groups.per_node, [allocation], taken, frozenset()).find()
            assert spot is not None, (
                f"group {group} of {count} ({size} nodes, {per_node} to a node): {allocation.nodes}"
            )
            taken.append(spot)


# --- nodes under suspicion -------------------------------------------------------------------------------------------


def on(node: str, time: float = 10.0, cause: Cause = Cause.KILLED, named: bool = True, launched: bool = True) -> Exit:
    return Exit(0, time, cause, tuple(node.split()), node=node if named else None, launched=launched)


@pytest.mark.parametrize(
    ("exits", "suspected"),
    [
        pytest.param([on("n1")], None, id="one failure is chance"),
        pytest.param([on("n1"), on("n1")], "n1", id="two on one node"),
        pytest.param([on("n1"), on("n1"), on("n1")], "n1", id="three"),
        pytest.param([on("n1"), on("n2")], None, id="two on different nodes"),
        pytest.param([on("n1"), on("n1"), on("n2")], None, id="two on one node, then elsewhere too"),
        pytest.param([on("n2", 10), on("n1", 200), on("n1", 210)], "n1", id="what is long ago is forgotten"),
        pytest.param([on("n1", 10), on("n1", 200)], None, id="also the first of two"),
        pytest.param([on("n1"), on("n1", cause=Cause.NODE_LOST)], None, id="a lost node is dealt with already"),
        pytest.param(
            [on("n1"), on("n1", cause=Cause.LIGHTHOUSE_LOST)], None, id="nor is the Lighthouse's end its fault"
        ),
        pytest.param([on("n1"), on("n1", cause=Cause.CANCELLED)], None, id="nor what was asked for"),
        pytest.param([on("n1"), on("n1", cause=Cause.PREEMPTED)], None, id="nor a preemption"),
        pytest.param([on("n1"), on("n1", launched=False)], None, id="nor a launch that never reached it"),
        pytest.param([on("n1", cause=Cause.HANG), on("n1", cause=Cause.START_TIMEOUT)], "n1", id="hangs, slow starts"),
        pytest.param([on("n1 n2", named=False), on("n2 n3", named=False)], "n2", id="the one that both had"),
        pytest.param([on("n1 n2", named=False), on("n1 n2", named=False)], None, id="either of two"),
        pytest.param([on("n1 n2", named=False), on("n2")], "n2", id="once it is named"),
    ],
)
def test_of_the_nodes_of_a_group_that_keeps_failing_the_suspect_is(exits: list[Exit], suspected: str | None) -> None:
    assert suspect(unit(1, exits), (), 100.0) == suspected


def unit(number: int, exits: list[Exit]) -> Unit:
    return Unit(f"group-{number:04d}", number, exits=tuple(exits))


@pytest.mark.parametrize("seed", range(100))
def test_what_fails_on_two_nodes_makes_neither_suspect(seed: int) -> None:
    dice, causes = random.Random(seed), [Cause.KILLED, Cause.USER_ERROR, Cause.HANG, Cause.NETWORK]
    ends = [
        [on(dice.choice(["n1", "n2"]), cause=dice.choice(causes)) for _ in range(dice.randint(0, 4))] for _ in "abc"
    ]
    units = [unit(number, exits) for number, exits in enumerate(ends)]
    seen = {(kind(end), end.node) for exits in ends for end in exits}
    for one, exits in zip(units, ends, strict=True):
        places = {end.node for end in exits}
        alone = [end for end in exits if {node for what, node in seen if what == kind(end)} == places]
        assert suspect(one, units, 100.0) == (exits[0].node if len(places) == 1 and len(alone) >= TWICE else None)


def test_what_another_group_saw_long_ago_counts_no_more() -> None:
    units = [unit(0, [on("n2", 10)]), unit(1, [on("n1", 200), on("n1", 210)])]
    assert suspect(units[1], units, 100.0) == "n1"
    assert suspect(units[1], units, 1000.0) is None


@pytest.mark.parametrize("seed", range(50))
def test_before_the_script_has_worked_no_failure_is_a_nodes(seed: int) -> None:
    """The groups take turns to fail before the first step, each attempt in a way of its own."""
    dice, time, history = random.Random(seed), 4.0, [(0.0, granted(5)), *STARTED[1:]]
    for attempt in range(4):
        for name in dice.sample(["group-0000", "group-0001"], 2):
            step, again = StepId(name, attempt), StepId(name, attempt + 1)
            error, started = dice.choice(["KeyError: a", "OSError: b", "ValueError: c"]), dice.random() < 0.5
            end = dice.choice([killed(step), raised(step, error, started)])
            history += [(time, end), (time + 65, ready(again)), (time + 66, store(again))]
            time += 1.0
        time += 70.0
    story = play(*history)
    assert story.ids(act.Launch, since=150) or story.outcome() == "failed"
    assert (story.records("node_excluded"), story.all(act.NoteBroken)) == ([], [])


def test_a_node_on_which_a_script_fails_that_runs_elsewhere_is_suspect_before_the_first_step() -> None:
    back = (5, ready(B1)), (6, store(B1))
    story = play(
        (0, granted(3)),
        *STARTED[1:],
        (4.5, raised(B0, "OSError: /local/disk")),
        *back,
        (9, raised(B1, "OSError: /local/disk")),
    )
    assert [record["node"] for record in story.records("node_excluded")] == ["n2"]


def test_another_group_that_fails_in_the_same_way_elsewhere_clears_the_node() -> None:
    story = play((0, granted(4)), *RUNNING[1:], (30, raised(B0)), (40, raised(B1)), (50, raised(A0)), (70,))
    assert [record["node"] for record in story.records("node_excluded")] == ["n2"]
    assert story.records("node_restored") == [{"node": "n2", "reason": "group 0 fails elsewhere too"}]
    assert [(note.node, note.reason == "") for note in story.all(act.NoteBroken)] == [("n2", False), ("n2", True)]


def test_the_node_on_which_a_group_keeps_failing_is_excluded_and_the_group_moves() -> None:
    story = play(*RUNNING, (30, killed(B0)), (40, killed(B1)), (60,))
    (excluded,) = story.records("node_excluded")
    assert excluded == {"node": "n2", "group": 1, "reason": "group 1 failed there 2 times, and nowhere else"}
    assert [launch.place for launch in story.all(act.Launch, since=30)] == [at("n2"), at("n3")]
    assert story.all(act.Probe) == []  # it is not lost: its return need not be checked


def test_it_is_not_excluded_if_there_is_no_other_place() -> None:
    story = play((0, granted(2)), *RUNNING[1:], (30, killed(B0)), (40, killed(B1)), (60,))
    assert story.records("node_excluded") == []
    assert [launch.place for launch in story.all(act.Launch, since=30)] == [at("n2"), at("n2")]


def test_nor_on_this_machine_where_nodes_are_only_names() -> None:
    local = config(cluster={"kind": "local"})
    story = play(*RUNNING, (30, killed(B0)), (40, killed(B1)), (60,), config=local)
    assert story.state.nodes.out() == frozenset()


def test_a_group_that_fails_elsewhere_too_clears_the_node() -> None:
    story = play(*RUNNING, (30, killed(B0)), (40, killed(B1)), (50, killed(B2)), (70,))
    (restored,) = story.records("node_restored")
    assert restored == {"node": "n2", "reason": "group 1 fails elsewhere too"}
    assert story.state.nodes.out() == frozenset()


ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def broken(step: StepId, error: str = ECC) -> tuple[ev.Event, ...]:
    return ev.TaskFailed(step, Evidence(0, None, code=1, error=error)), ev.Ended(step, 1)


def test_a_node_with_broken_hardware_is_left_out_at_the_first_failure_and_for_good() -> None:
    story = play((0, granted(4)), *RUNNING[1:], (30, *broken(B0)), (40, killed(B1)), (50, killed(B2)), (70,))
    first, second = story.records("node_excluded")
    assert first == {"node": "n2", "group": 1, "reason": f"broken hardware: local rank 0: {ECC}"}
    assert second["node"] == "n3"  # where the group failed twice, for another reason
    assert [launch.place for launch in story.all(act.Launch, since=30)] == [at("n3"), at("n3"), at("n4")]
    assert [time for time, action in story.done if isinstance(action, act.Launch) and action.id == B1] == [30]
    assert story.records("node_restored") == []


def test_without_another_node_broken_hardware_is_told_and_used_again() -> None:
    story = play((0, granted(2)), *RUNNING[1:], (30, *broken(B0)), (60,))
    assert [record["node"] for record in story.records("node_excluded")] == ["n2"]
    assert story.records("node_restored") == [{"node": "n2", "reason": "no other node is free"}]
    assert story.unit(B0).place == Place(("n2",))


def test_if_every_group_finds_its_hardware_broken_at_the_start_it_is_not_the_hardware() -> None:
    none = "RuntimeError: No CUDA GPUs are available"
    up = ((0, granted(4)), (1, said.lighthouse_up(LIGHT0, URL)), (2, ready(A0), ready(B0)), (3, store(A0), store(B0)))
    story = play(*up, (4, *broken(A0, none)), (5, *broken(B0, none)))
    assert "all in the same way" in story.reason()
    assert none in story.failure()


def test_a_mistake_of_the_script_leaves_no_node_excluded_for_other_runs() -> None:
    """In the first two failures it looks like n1's."""
    error = "RuntimeError: No CUDA GPUs are available"
    up = ((0, granted(4)), (1, said.lighthouse_up(LIGHT0, URL)), (2, ready(A0), ready(B0)), (3, store(A0), store(B0)))
    again = ((4, *broken(A0, error)), (20, ready(A1)), (21, store(A1)), (22, *broken(A1, error)))
    story = play(*up, *again, (23, *broken(B0, error)))
    assert "all in the same way" in story.reason()
    assert [record["node"] for record in story.records("node_excluded")] == ["n1"]
    assert [(note.node, note.reason == "") for note in story.all(act.NoteBroken)] == [("n1", False), ("n1", True)]


def test_a_place_that_another_group_will_come_back_to_is_no_better_place() -> None:
    up = (
        (0, granted(3)),
        (1, said.lighthouse_up(LIGHT0, URL)),
        (2, ready(A0), ready(B0), ready(C0)),
        (3, store(A0), store(B0), store(C0)),
        (5, stepped(A0, 1), stepped(B0, 1), stepped(C0, 1)),
    )
    fails = ((30, killed(B0)), (31, killed(A0)), (40, killed(A1)), (40.5, killed(B1)), (70,))
    assert play(*up, *fails, config=config(groups={"count": 3})).records("node_excluded") == []


def test_a_suspected_node_is_better_than_none() -> None:
    story = play(*RUNNING, (30, killed(B0)), (40, killed(B1)), (42, node_lost(B2, "n3")), (70,))
    assert [record["node"] for record in story.records("node_excluded")] == ["n2", "n3"]
    assert story.unit(B0).place == Place(("n2",))
    assert story.records("node_restored") == [{"node": "n2", "reason": "no other node is free"}]


def test_a_lost_node_elsewhere_does_not_clear_it() -> None:
    story = play((0, granted(4)), *RUNNING[1:], (30, killed(B0)), (40, killed(B1)), (50, node_lost(B2, "n3")), (70,))
    assert story.state.nodes.out() == {"n2", "n3"}


def test_a_suspected_node_that_slurm_takes_away_does_not_come_back() -> None:
    gone = (45, ev.NodesLeft(("n1", "n3")))
    story = play(*RUNNING, (30, killed(B0)), (40, killed(B1)), gone, (50, killed(B2)), (70,))
    assert story.records("node_restored") == []
    assert story.state.nodes.out() == {"n2"}


def states(node: str, word: str, reason: str = "") -> ev.Event:
    return node_fate(node, word.upper(), reason)


def test_a_node_that_is_drained_is_used_only_where_no_other_is_free() -> None:
    told = (30, states("n2", "draining", "maintenance"))
    elsewhere = play(*RUNNING, told, (40, killed(B0)), (60,))
    assert elsewhere.unit(B0).place == Place(("n3",))
    assert elsewhere.records("node_shunned") == [{"node": "n2", "reason": "Slurm says draining: maintenance"}]
    only = play((0, granted(2)), *RUNNING[1:], told, (40, killed(B0)), (60,))
    assert only.unit(B0).place == Place(("n2",))
    again = play(*RUNNING, told, (35, states("n2", "mixed")), (40, killed(B0)), (60,))
    assert again.unit(B0).place == Place(("n2",))
    assert again.records("node_unshunned") == [{"node": "n2", "reason": "Slurm says mixed"}]


@pytest.mark.parametrize(("word", "unfit"), [("down*", True), ("fail", True), ("mixed", False), ("idle", False)])
def test_nodes_that_slurm_finds_unfit_are_excluded_and_others_are_not(word: str, unfit: bool) -> None:
    story = play(*RUNNING, (30, states("n2", word, "disk")), (31, states("n2", word, "disk")))
    reasons = [record["reason"] for record in story.records("node_excluded")]
    assert reasons == ([f"Slurm says {word}: disk"] if unfit else [])
    assert story.ids(act.Kill) == []  # what runs there may go on
