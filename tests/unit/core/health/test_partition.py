"""Nodes that do not reach each other: who dials whom and when, who is excluded, and who comes back."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
import said
from fuzz import numbers
from histories import Story, array_config, config, granted, pilot, play, ready, stepped
from steps import LIGHT0, URL

from ftslurm.config.schema import Config
from ftslurm.core.health.partition import AGAIN_S, BACK_S, LATE_S, WAIT_S, Spot, culprit
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Out, Phase, StepId, Unit
from ftslurm.core.state.unit_names import group_unit
from ftslurm.protocol import messages as msg
from ftslurm.protocol.stages import Stage

Pairs = Iterable[tuple[int, int]]  # (1, 2): n1 does not reach n2
TOLD = "n2 (group 1) and n3 (group 2) do not reach each other; both reach n1"
ON = {"hang_after_s": 1000.0}
BOTH = ((2, 3), (3, 2))  # n2 and n3 are apart


def name(group: int, attempt: int = 0) -> StepId:
    return StepId(group_unit(group), attempt)


def node(number: int) -> str:
    return f"n{number}"


class World:
    """Groups on n1, n2, ... that train, and spare nodes; all stand still from `stand` on."""

    def __init__(self, groups: int = 3, spare: int = 1, settings: Config | None = None) -> None:
        self.groups = groups
        steps = [name(group) for group in range(groups)]
        self.story = play(
            (0, granted(groups + spare)),
            (1, said.lighthouse_up(LIGHT0, URL)),
            (2, *(ready(step) for step in steps)),
            (3, *(said.store_up(step, node(i + 1), 29500 + i) for i, step in enumerate(steps))),
            (5, *(stepped(step, 1) for step in steps)),
            config=settings or config(groups={"count": groups}, health=ON),
        )
        self.beat(6.0)

    def beat(self, now: float, stage: Stage = Stage.COMPUTING, since: float | None = None, without: int = -1) -> None:
        """Let all running groups send a heartbeat."""
        moved = now if since is None else since
        live = (unit for unit in self.story.state.groups if unit.phase is Phase.RUNNING and unit.group != without)
        beats = [ev.Alive(unit.id, 0, now, "S", 1, stage, now - moved) for unit in live]
        self.story.wait(now)
        self.story.turn(now, beats)

    def stand(self, since: float, until: float, without: int = -1) -> None:
        """Let all stand in a collective."""
        now = since + 0.5
        while now < until:
            self.beat(now, Stage.COLLECTIVE, since, without)
            now += 0.5

    def asked(self, since: float = 0.0) -> list[act.Send]:
        return self.story.all(msg.Reach, since)

    def answer(self, now: float, missed: Pairs = (), without: int = -1) -> None:
        """Let all that were asked last answer."""
        last = max(sent.message.number for sent in self.asked())  # type: ignore[union-attr]
        self.story.wait(now)
        events = []
        for sent in self.asked():
            assert isinstance(sent.message, msg.Reach)
            here = self.story.unit(sent.id).current.hosts[0]
            if sent.message.number == last and sent.id.unit != group_unit(without):
                silent = tuple(
                    other for other in sent.message.nodes if (here, other) in {(node(a), node(b)) for a, b in missed}
                )
                events.append(ev.Heard(sent.id, msg.Unreached(last, silent)))
        self.story.turn(now, events)
        self.story.wait(now + 0.3)

    @property
    def out(self) -> list[str]:
        return [str(line["node"]) for line in self.story.records("node_excluded")]


def stands(since: float = 10.0, **world: int) -> World:
    """Return a world in which all have stood still until they dial each other."""
    made = World(**world)  # type: ignore[arg-type]
    made.stand(since, since + WAIT_S + 0.3)
    assert {sent.id.unit for sent in made.asked()} == {group_unit(group) for group in range(made.groups)}
    return made


def test_two_nodes_that_do_not_reach_each_other_are_told_and_one_is_left_at_once() -> None:
    world = stands()
    (first, *_) = world.asked()
    assert first.message == msg.Reach(1, ("n2", "n3", "n1"), (("n2", 29501), ("n3", 29502), ("n1", 29500)))
    world.answer(13.6, BOTH)
    (told,) = world.story.records("node_excluded")
    assert (told["node"], told["reason"]) == ("n3", TOLD)
    assert world.story.phases() == [Phase.RUNNING, Phase.RUNNING, Phase.STOPPING]
    assert [(m.group, m.attempt) for m in world.story.sent(msg.Evict)][-1] == (2, 0)
    world.story.turn(14.0, [ev.Ended(name(2), code=137)])
    (ended,) = (line for line in world.story.records("step_exited") if line["group"] == 2)
    assert (ended["cause"], ended["node"], ended["error"]) == ("network", "n3", TOLD)
    world.story.wait(15.0)
    assert world.story.unit(name(2)).place.nodes == ("n4",)


def test_groups_that_train_or_stand_for_a_moment_dial_nobody() -> None:
    world = World()
    for now in range(7, 100):
        world.beat(now, Stage(now % 5), now - (WAIT_S - 1.1) * (now % 2))
    assert not world.asked()


def test_groups_that_compute_for_long_dial_nobody() -> None:
    world = World()
    for now in range(7, 100):
        world.beat(now, Stage.COMPUTING if now % 2 else Stage.HAS_QUORUM, 7)
    assert not world.asked()


def test_after_an_answer_they_dial_again_when_they_have_moved_or_after_a_while() -> None:
    world = stands()
    world.answer(12.6)
    world.stand(10.0, 12.0 + AGAIN_S - 1)
    assert len(world.asked()) == 3
    world.stand(40.0, 40.0 + WAIT_S + 1.6)
    assert len(world.asked()) == 6
    world.answer(44.0)
    world.stand(40.0, 44.0 + AGAIN_S)
    assert len(world.asked()) == 9
    assert not world.out


@pytest.mark.parametrize(
    ("first", "second", "out"),
    [
        pytest.param([(2, 3)], [(2, 3)], ["n3"], id="twice: the port of n3 is filtered"),
        pytest.param([(3, 2)], [(3, 2)], ["n2"], id="twice: the port of n2 is filtered"),
        pytest.param([(2, 3)], [], [], id="once"),
        pytest.param([(1, 3), (2, 3)], [(1, 3), (2, 3)], ["n3"], id="that of n3, for all"),
        pytest.param([(1, 2), *BOTH], None, ["n3"], id="one pair is apart, and one port is filtered"),
    ],
)
def test_what_only_one_side_sees_is_looked_at_twice(first: Pairs, second: Pairs | None, out: list[str]) -> None:
    world = stands()
    world.answer(13.6, first)
    if second is not None:
        assert len(world.asked()) == 6, "they dial again at once"
        assert not world.out
        world.beat(14.0, Stage.COLLECTIVE, 10.0)
        world.answer(15.4, second)
    world.beat(16.0, Stage.COLLECTIVE, 10.0)
    assert world.out == out


def test_who_does_not_answer_is_no_case_for_this() -> None:
    world = stands()
    world.answer(13.6, [(1, 3), (2, 3)], without=2)
    world.stand(10.0, 13.6 + LATE_S + 1, without=2)
    assert not world.out


def test_who_has_trained_on_meanwhile_is_left_alone() -> None:
    world = stands()
    world.beat(13.0, Stage.COMPUTING)
    world.answer(13.6, BOTH)
    world.beat(14.0, Stage.COLLECTIVE)
    assert not world.out


def test_an_answer_of_an_earlier_round_says_nothing() -> None:
    world = stands()
    world.answer(12.6)
    world.stand(20.0, 20.0 + WAIT_S + 0.3)
    world.story.turn(22.6, [ev.Heard(name(g), msg.Unreached(1, (node(4 - g),))) for g in (1, 2)])
    world.stand(20.0, 24.0)
    assert not world.out


def test_a_node_without_another_one_is_used_again_once_all_reach_it() -> None:
    world = stands(spare=0)
    world.answer(13.6, BOTH)
    world.story.turn(14.0, [ev.Ended(name(2), code=137)])
    world.story.wait(15.0)
    assert [line["reason"] for line in world.story.records("group_waits")] == ["a free node: n3 left out"]
    for now in (25.0, 36.0):
        world.beat(now)
        world.story.wait(now + 0.9)
        (*_, last) = world.asked()
        assert isinstance(last.message, msg.Reach)
        assert dict(zip(last.message.nodes, last.message.ports, strict=True))["n3"] == ("n3", 29502)
        world.answer(now + 1.6, [(2, 3)] if now < 30 else [])
        assert world.story.state.nodes.out(Out.CUT) == ({"n3"} if now < 30 else set())
    assert [line["node"] for line in world.story.records("node_restored")] == ["n3"]
    assert world.story.unit(name(2)).place.nodes == ("n3",)
    assert world.story.unit(name(2)).attempt == 1
    assert BACK_S < 11


def test_a_group_with_a_place_that_it_cannot_heal_in_moves_not_its_donor() -> None:
    world = World()
    world.story.turn(7.0, [ev.Ended(name(0), code=137)])
    world.story.wait(9.0)
    assert world.story.unit(name(0)).attempt == 1
    back = name(0, 1)
    world.story.turn(9.5, ready(back, "n1"))
    world.story.turn(10.0, [said.store_up(back, "n1", 29600)])
    world.stand(10.5, 10.5 + WAIT_S + 0.3)
    world.answer(14.0, [(1, 3), (3, 1)])
    assert world.out == ["n1"]


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ("23 32", "n3"),
        ("12 21", "n2"),
        ("12 21 23 32", "n2"),
        ("12 21 13 31", "n1"),
        ("13 31 14 41 23 32 24 42", "n4"),
        ("21 31", "n1"),
        ("12", "n2"),
    ],
)
def test_the_culprit_is(broken: str, expected: str) -> None:
    pairs = {(node(int(a)), node(int(b))) for a, b in broken.split()}
    assert culprit(pairs, {node(n): Spot(Unit(group_unit(n), n), 0) for n in range(1, 5)}) == expected


@pytest.mark.parametrize("seed", numbers(10, 100))
def test_one_bad_node_among_many_is_found_whatever_else_is_said_once(seed: int) -> None:
    dice = Random(seed)
    groups = dice.randint(4, 30)
    bad = dice.randint(1, groups)
    missed = {(bad, other) for other in range(1, groups + 1) if other != bad}
    missed |= {pair[::-1] for pair in missed}
    noise = {tuple(dice.sample(range(1, groups + 1), 2)) for _ in range(dice.randint(0, 3))}
    world = stands(groups=groups, spare=1)
    world.answer(13.6, missed | {(a, b) for a, b in noise if (b, a) not in noise})
    assert world.out == [node(bad)]


def test_the_messages_of_many_groups_are_bounded_and_dialling_is_mutual() -> None:
    world = stands(groups=150, spare=0)
    dialled = {str(world.story.unit(one.id).current.hosts[0]): set(one.message.nodes) for one in world.asked()}  # type: ignore[union-attr]
    assert {len(nodes) for nodes in dialled.values()} == {65}
    assert all(a in dialled[b] for a, nodes in dialled.items() for b in nodes)
    longest = msg.Unreached(2**40, ("x" * 64,) * 12)
    assert len(msg.encode_report(longest, 0)) <= msg.LONGEST


def array(groups: int = 3, **health: float) -> World:
    """Return a world of groups in jobs of their own."""
    pilots = [pilot(f"90_{i}", node(i + 1)) for i in range(groups)]
    settings = array_config(groups={"count": groups}, health=ON | health)
    steps = [name(group) for group in range(groups)]
    story = play(
        (0, ev.Granted(granted(0).allocation)),
        (0.1, ev.JobsSeen((), asked=0.0)),
        (0.5, ev.Submitted(0, tuple(one.name for one in pilots))),
        (2.6, ev.JobsSeen(tuple(pilots), asked=2.5)),
        (3, said.lighthouse_up(LIGHT0, URL), *(ready(step) for step in steps)),
        (4, *(said.store_up(step, node(i + 1), 29500) for i, step in enumerate(steps))),
        (5, *(stepped(step, 1) for step in steps)),
        config=settings,
    )
    world = World.__new__(World)
    world.groups, world.story = groups, story
    return world


def test_in_array_mode_the_job_on_the_node_is_given_up_and_no_other_gets_it() -> None:
    world = array()
    world.stand(10.0, 10.0 + WAIT_S + 0.3)
    world.answer(13.6, BOTH)
    world.story.turn(14.0, [ev.Ended(name(2), code=137)])
    world.story.wait(15.0)
    asked = world.story.all(act.RequestJobs, 13.0)
    assert [one.exclude for one in asked] == [("n3",)]
    assert [one.names for one in world.story.all(act.CancelJobs, 13.0)] == [("90_2",)]


@pytest.mark.parametrize(
    ("missed", "lost"),
    [
        pytest.param([(1, 3), (2, 3)], ["n3"], id="by nobody"),
        pytest.param([(1, 3)], [], id="by one of them"),
        pytest.param([], [], id="by both"),
    ],
)
def test_in_array_mode_a_silent_node_that_is_reached_is_not_lost(missed: Pairs, lost: list[str]) -> None:
    world = array(lost_after_s=10.0)
    for tenth in range(60, 130):
        world.beat(tenth / 10, without=2 if tenth > 90 else -1)
    assert {sent.id for sent in world.asked()} == {name(group) for group in range(3)}
    world.story.turn(13.0, [ev.Heard(LIGHT0, msg.GroupAside(2, 0, True, 3.0))])
    world.answer(13.6, missed, without=2)
    world.beat(13.8, without=2)
    assert world.out == lost
    assert not lost or "no other node reaches it" in str(world.story.records("node_excluded")[0]["reason"])


# --- groups of several nodes ------------------------------------------------------------------------------------------


def wide(*missed: tuple[int, int]) -> World:
    """Return a world of two groups, on n1 and n2, and on n3 and n4, whose nodes have dialled each other."""
    world, steps = World.__new__(World), [name(0), name(1)]
    there = {step: (node(2 * i + 1), node(2 * i + 2)) for i, step in enumerate(steps)}
    world.groups = 2
    world.story = play(
        (0, granted(6)),
        (1, said.lighthouse_up(LIGHT0, URL)),
        (2, *(ready(step, *hosts) for step, hosts in there.items())),
        (3, *(said.store_up(step, host, 29500, t) for step, hosts in there.items() for t, host in enumerate(hosts))),
        (5, *(stepped(step, 1) for step in steps)),
        config=config(groups={"count": 2, "nodes": 2}, health=ON),
    )
    world.stand(10.0, 10.0 + WAIT_S + 0.3)
    for sent in world.asked():
        assert isinstance(sent.message, msg.Reach)
        assert sorted(sent.message.nodes) == ["n1", "n2", "n3", "n4"]
        for task, host in enumerate(there[sent.id]):
            silent = tuple(node(b) for a, b in missed if node(a) == host)
            world.story.turn(13.6, [ev.Heard(sent.id, msg.Unreached(1, silent, task=task))])
    world.story.wait(13.9)
    return world


@pytest.mark.parametrize(
    ("broken", "out", "told"),
    [
        ((2, 4), "n4", "n2 (group 0) and n4 (group 1) do not reach each other; both reach n1, n3"),
        ((1, 2), "n2", "n1 (group 0) and n2 (group 0) do not reach each other; both reach n3, n4"),
        ((3, 4), "n4", "n3 (group 1) and n4 (group 1) do not reach each other; both reach n1, n2"),
    ],
)
def test_a_pair_of_nodes_of_wide_groups_is_found_and_one_group_moves(
    broken: tuple[int, int], out: str, told: str
) -> None:
    world = wide(broken, broken[::-1])
    (line,) = world.story.records("node_excluded")
    assert (line["node"], line["reason"]) == (out, told)
    group = int(out[1:]) > 2
    world.story.turn(14.0, [ev.Ended(name(group), code=137)])
    world.story.wait(15.0)
    nodes = world.story.unit(name(group)).place.nodes
    assert len(nodes) == 2
    assert out not in nodes


# --- what users say ---------------------------------------------------------------------------------------------------


def test_a_node_that_a_user_takes_back_is_not_excluded_for_this_again() -> None:
    world = stands(spare=0)
    world.answer(13.6, BOTH)
    world.story.turn(14.0, [ev.Ended(name(2), code=137)])
    world.story.turn(15.0, [ev.Asked("undrain", "ann", "c1", node="n3")])
    back = name(2, 1)
    assert world.story.unit(back).place.nodes == ("n3",)
    world.story.turn(16.0, ready(back, "n3"))
    world.story.turn(17.0, [said.store_up(back, "n3", 29600)])
    world.stand(20.0, 20.0 + WAIT_S + 0.3)
    world.answer(24.0, BOTH)
    world.stand(20.0, 26.0)
    assert world.out == ["n3"]
    assert [line["node"] for line in world.story.records("node_restored")] == ["n3"]


def test_a_new_controller_goes_on_with_the_round() -> None:
    world = stands()
    story: Story = world.story.taken_over(12.6)
    story.turn(
        12.7,
        [
            said.adopted(
                name(g), ready=True, assigned=True, begun=True, store=(node(g + 1), 29500 + g), lighthouse=URL, at=1
            )
            for g in range(3)
        ],
    )
    story.turn(12.8, [said.lighthouse_up(LIGHT0, URL)])
    world.stand(10.0, 13.4)
    world.answer(13.6, BOTH)
    world.stand(10.0, 20.0)
    world.answer(20.1, BOTH)
    world.stand(10.0, 21.0)
    assert world.out == ["n3"]
