"""Silence: the probes and questions to Slurm, and the meaning of the answers, row by row of the table in silence.py."""

from __future__ import annotations

from typing import Any

import pytest
import said
from histories import Moment, Story, beats, config, granted, group_of, merged, play, ready, stepped, stop, store
from steps import A0, B0, B1, LIGHT0, LIGHT1, URL

from ftslurm.config.schema import Config
from ftslurm.core.health.node_health import DIAL_EVERY_S, EACH_START_S, FEW_STARTS, LOOK_AGAIN_S
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Out, Phase, Place, StepId
from ftslurm.protocol import messages as msg

ALL = ev.NodesLeft(("n1", "n2", "n3"))  # Slurm has answered, and the job has all its nodes
STARTED: tuple[Moment, ...] = (
    (0, granted(3)),
    (1, said.hello(LIGHT0, 0, "n1"), said.lighthouse_up(LIGHT0, URL)),
    (2, ready(A0), ready(B0)),
    (3, store(A0), store(B0)),
    (5, stepped(A0, 1), stepped(B0, 1)),
)


def listening(**sections: dict[str, Any]) -> Config:
    health = {"lost_after_s": 10.0, **sections.pop("health", {})}
    return config({"orphan_after_s": 60.0}, health=health, **sections)


def silent_b(*moments: Moment, until: float = 29.0, settings: Config | None = None) -> Story:
    """Play group B, on n2, with heartbeats until 20; the others until the end."""
    heard = beats({LIGHT0: until, A0: until, B0: min(20.0, until)})
    return play(*merged(STARTED, heard, moments, [(until,)]), config=settings or listening())


def cause(story: Story) -> tuple[str, str | None]:
    (exited,) = story.records("step_exited")
    return exited["cause"], exited["error"]


# --- probes and questions --------------------------------------------------------------------------------------------


def test_halfway_to_lost_a_probe_goes_to_the_silent_node_and_nothing_else_happens() -> None:
    story = silent_b()
    assert [(time, action) for time, action in story.done if isinstance(action, act.Probe)] == [(25, act.Probe("n2"))]
    assert story.records("node_silent") == [{"node": "n2", "seconds": 5}]
    assert story.ids(act.Kill) == []
    assert story.phases() == [Phase.RUNNING] * 2


def test_nobody_is_asked_about_while_all_are_heard() -> None:
    story = play(*merged(STARTED, beats({LIGHT0: 600, A0: 600, B0: 600}, every=4)), config=listening())
    assert story.all(act.Probe) == []
    assert story.state.nodes.looks == {}


@pytest.mark.parametrize("answer", [(), (26, ev.Looked("n2", False))], ids=["before it is answered", "after"])
def test_who_is_heard_again_has_lost_nothing(answer: Moment) -> None:
    story = silent_b(*([answer] if answer else []), (26.5, ALL), (29.9, ev.Alive(B0, 0, 29.9)), until=34)
    assert story.ids(act.Kill) == []
    assert story.state.nodes.looks == {}
    assert story.state.nodes.out() == frozenset()


def test_a_second_silence_is_a_new_one() -> None:
    story = silent_b((26, ev.Looked("n2", True, (("group-0001/0", "S"),))), (28, ev.Alive(B0, 0, 28)), until=34)
    assert [r["seconds"] for r in story.records("node_silent")] == [5, 5]
    assert story.all(act.Probe) == [act.Probe("n2")] * 2


def test_two_groups_of_one_silent_node_are_one_suspicion_and_one_lost_node() -> None:
    shared = listening(groups={"per_node": 2})
    started = ((0, granted(3)), (1, said.hello(LIGHT0, 0, "n1"), said.lighthouse_up(LIGHT0, URL)))
    up = [(2, ready(A0, "n1"), ready(B0, "n1")), (3, store(A0), store(B0)), (5, stepped(A0, 1), stepped(B0, 1))]
    story = play(*merged(started, up, beats({LIGHT0: 20, A0: 20, B0: 20}), [(25.1, ALL), (30.1,)]), config=shared)
    assert len(story.all(act.Probe)) == len(story.records("node_silent")) == len(story.records("node_excluded")) == 1
    assert {step.unit for step in story.ids(act.Kill)} == {"lighthouse", A0.unit, B0.unit}


def wide_b(*moments: Moment, until: float) -> Story:
    """Play group B with a rank on n2, which has ended well at 20, and one on n3."""
    settings = listening(groups={"nodes": 2})
    start = ((0, granted(4)), STARTED[1])
    up = [(2, ready(A0, "n1", "n2"), ready(B0, "n3", "n4")), (3, store(A0), store(B0)), STARTED[4]]
    heard = beats({LIGHT0: until, A0: until, B0: 20.0})
    return play(*merged(start, up, heard, [(20, said.task_done(B0, 0))], moments, [(until,)]), config=settings)


def test_a_node_whose_first_rank_has_ended_well_may_be_silent() -> None:
    others = beats({A0: 90.0, B0: 90.0}, task=1)
    story = wide_b(*others, until=90.0)
    assert story.all(act.Probe) == []
    assert story.ids(act.Kill) == []
    story.turn(91, [said.task_done(B0, 1), ev.Ended(B0, code=0)])
    assert cause(story)[0] == "ok"


def test_a_step_whose_ranks_all_ended_well_has_no_more_time_than_a_silent_node() -> None:
    others = [*beats({A0: 60.0, B0: 30.0}, task=1), (30, said.task_done(B0, 1))]
    story = wide_b(*others, until=60.0)  # its srun waits for a node that is gone
    assert story.times(act.Kill, B0)[0] == 40
    assert story.all(act.Probe) == []
    story.turn(61, [ev.Ended(B0, code=137)])
    assert cause(story)[0] == "ok"


def test_while_the_run_ends_nobody_is_asked_about() -> None:
    story = silent_b((24, stop()), until=60)
    assert story.all(act.Probe) == []
    assert story.times(act.Kill, B0)[0] == 34  # the grace, as for everybody


def test_while_many_steps_start_a_probe_has_more_time_to_answer() -> None:
    """Starts that take long lost their nodes, and the restarts and probes that followed delayed each other again."""
    assert first_lost(groups=24, silent=18) == pytest.approx(10.1 + EACH_START_S * (24 + 18 - FEW_STARTS))


def test_while_few_steps_start_a_silent_node_is_lost_as_soon_as_health_lost_after_s_says() -> None:
    assert first_lost(groups=6, silent=2) == pytest.approx(10.1)


def first_lost(groups: int, silent: int) -> float:
    """Return when the first group is stopped, if the last ones are never heard after the launch of all at 0."""
    steps = [StepId(f"group-{number:04d}", 0) for number in range(groups - silent)]
    begin: list[Moment] = [(0, granted(groups)), (1, said.hello(LIGHT0, 0, "n1"), said.lighthouse_up(LIGHT0, URL))]
    hello: Moment = (2, *(said.hello(step, 0, f"n{number + 1}") for number, step in enumerate(steps)))
    nodes = ev.NodesLeft(tuple(f"n{number + 1}" for number in range(groups)))  # slurmctld answers all the time
    ticks: list[Moment] = [(time + 0.1, nodes) for time in range(5, 20)]
    heard = beats(dict.fromkeys([LIGHT0, *steps], 20.0))
    story = play(*merged([*begin, hello], heard, ticks), config=listening(groups={"count": groups}))
    return min(time for time, action in story.done if isinstance(action, act.Kill))


# --- the meaning of the answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param((25.1, ALL), "a probe does not reach it", id="no answer, though Slurm is there"),
        pytest.param((26, ev.Looked("n2", False)), "Slurm cannot start a step there", id="Slurm does not reach it"),
    ],
)
def test_a_node_that_no_probe_reaches_is_lost(answer: Moment, words: str) -> None:
    story = silent_b(answer, (30.2, ev.Ended(B0, 137)), until=30.2)
    assert story.all(act.Kill) == [act.Kill(B0, stuck=True)]  # its srun would not end by itself
    assert story.times(act.Kill, B0) == [30.1 if answer[1:] == (ALL,) else 30]
    why, error = cause(story)
    assert why == "node_lost"
    assert words in str(error)
    assert [r["node"] for r in story.records("node_excluded")] == ["n2"]
    assert story.all(act.Launch, since=30) == [act.Launch(B1, 1, Place(("n3",)))]
    assert story.records("step_exited")[0]["noticed"] == story.times(act.Kill, B0)[0]


def test_while_slurmctld_is_away_an_unanswered_probe_proves_nothing_and_is_repeated() -> None:
    away = silent_b(until=59)
    assert away.ids(act.Kill) == []
    assert [time for time, action in away.done if isinstance(action, act.Probe)] == [25, 35, 45, 55]
    assert len(away.records("node_silent")) == 1
    back = silent_b((57, ALL), until=63)
    assert back.times(act.Kill, B0)[0] == 62  # the probe has as long as if it had been sent when slurmctld was back


@pytest.mark.parametrize("asked", [25, 35, 45])
@pytest.mark.parametrize("back", [0.1, 4.0, 9.9])
@pytest.mark.parametrize("refused_s", [0.0, 3.0, 12.0])
def test_who_answers_when_slurmctld_is_back_is_not_lost(asked: float, back: float, refused_s: float) -> None:
    returned, there = asked + back, ev.Looked("n2", True, (("group-0001/0", "R"),))
    refused = ev.Looked("n2", reachable=False, refused=True)
    refusals = [(returned + 0.1 + after, refused) for after in (0.0, 2.5, 5.0, 7.5, 10.0) if after < refused_s]
    asks = [(returned + every, ALL) for every in range(int(refused_s) + 8)]
    story = silent_b(*merged(asks, refusals, [(returned + refused_s + 3, there)]), until=returned + refused_s + 8)
    assert story.ids(act.Kill) == []
    assert story.state.nodes.out() == frozenset()


def test_a_probe_that_slurm_refuses_says_nothing_and_is_sent_again_soon() -> None:
    refused = ev.Looked("n2", reachable=False, refused=True)  # a slurmctld that has just restarted
    stopped = ev.Looked("n2", True, (("group-0001/0", "ST"),))
    story = silent_b((25.2, refused), (27.4, stopped), (30.2, ev.Ended(B0, 137)), until=30.2)
    assert [time for time, action in story.done if isinstance(action, act.Probe)] == [25, 27.2]
    assert story.times(act.Kill, B0) == [30]
    assert cause(story)[0] == "hang"


@pytest.mark.parametrize(
    ("steps", "at", "expected", "words"),
    [
        pytest.param((), 30, "killed", "gone from n2", id="our processes are not there"),
        pytest.param((("group-0000/0", "S"),), 30, "killed", "gone from n2", id="only those of others are"),
        pytest.param((("group-0001/0", "ST"),), 30, "hang", "SIGSTOP", id="one is stopped"),
        pytest.param(
            (("group-0001/0", "SR"),), 80, "hang", "six times health.lost_after_s", id="all are there: starved"
        ),
        pytest.param(None, 80, "hang", "six times health.lost_after_s", id="it is not known which are there"),
    ],
)
def test_a_node_that_answers_is_not_lost(
    steps: tuple[tuple[str, str], ...] | None, at: float, expected: str, words: str
) -> None:
    looks = [(t, ev.Looked("n2", True, steps)) for t in (25.1, 35.2, 45.3, 55.4, 65.5, 75.6)]
    story = silent_b(*looks, (at + 0.2, ev.Ended(B0, 137)), until=at + 0.2)
    assert story.times(act.Kill, B0) == [at]
    why, error = cause(story)
    assert why == expected
    assert words in str(error)
    assert story.state.nodes.out() == frozenset()
    assert story.all(act.Launch, since=at) == [act.Launch(B1, 1, Place(("n2",)))]
    assert story.all(act.Kill)[0].stuck == (steps is not None and "SIGSTOP" not in words and expected == "killed")


def test_what_starves_is_looked_at_again_and_again() -> None:
    answered = [(t + 0.5, ev.Looked("n2", True, (("group-0001/0", "R"),))) for t in (25, 35.5, 46, 56.5)]
    story = silent_b(*answered, until=60)
    assert [time for time, action in story.done if isinstance(action, act.Probe)] == [25, 35.5, 46, 56.5]


def test_a_node_from_which_another_step_is_heard_is_not_lost() -> None:
    shared = listening(groups={"count": 2, "per_node": 2})
    started = ((0, granted(2)), (1, said.hello(LIGHT0, 0, "n1"), said.lighthouse_up(LIGHT0, URL)))
    up = [(2, ready(A0, "n1"), ready(B0, "n1")), (3, store(A0), store(B0)), (5, stepped(A0, 1), stepped(B0, 1))]
    heard = beats({LIGHT0: 81, A0: 81, B0: 20})
    story = play(*merged(started, up, heard, [(25.1, ev.NodesLeft(("n1", "n2"))), (81,)]), config=shared)
    assert story.times(act.Kill, B0)[:1] == [80]
    assert story.state.nodes.out() == frozenset()


def test_a_step_just_launched_on_a_silent_node_is_no_word_from_it() -> None:
    shared = listening(groups={"per_node": 2})
    started = ((0, granted(2)), (1, said.hello(LIGHT0, 0, "n1"), said.lighthouse_up(LIGHT0, URL)))
    up = [(2, ready(A0, "n1"), ready(B0, "n1")), (3, store(A0), store(B0)), (5, stepped(A0, 1), stepped(B0, 1))]
    again = [(28, ev.Ended(B0, 1)), (28.1, ev.NodesLeft(("n1", "n2")))]
    story = play(*merged(started, up, beats({LIGHT0: 20, A0: 20, B0: 20}), again, [(33.1,)]), config=shared)
    assert story.times(act.Launch, B1) == [28]
    assert story.times(act.Kill, A0)[:1] == [33.1]
    assert story.state.nodes.out() == {"n1"}


# --- nodes that do not answer at all ---------------------------------------------------------------------------------

SLURM = {"kind": "slurm"}


def silent(node: str) -> ev.Looked:
    return ev.Looked(node, False, silent=True)


def aside(step: StepId, is_aside: bool = True, by: StepId = LIGHT0) -> ev.Heard:
    return ev.Heard(by, msg.GroupAside(group_of(step), step.attempt, is_aside, 3.0))


def dead_b(*moments: Moment, until: float = 27.0, **sections: dict[str, Any]) -> Story:
    """Play the silence of n2 from 20 on, which is dialled at 23; Slurm has answered."""
    settings = listening(cluster=SLURM, **sections)
    return silent_b(*sorted([(23.1, ALL), *moments], key=lambda moment: moment[0]), until=until, settings=settings)


def test_a_silent_node_is_dialled_once_before_it_is_probed() -> None:
    story = dead_b(until=29)
    asked = [(time, action) for time, action in story.done if isinstance(action, act.Dial | act.Probe)]
    assert asked == [(23, act.Dial(("n2",))), (25, act.Probe("n2"))]


def test_a_node_where_nothing_answers_and_that_nobody_hears_is_lost_at_once() -> None:
    story = dead_b((23.2, aside(B0)), (24.6, silent("n2")), (24.8, ev.Ended(B0, 137)))
    assert story.all(act.Kill) == [act.Kill(B0, stuck=True)]
    assert story.times(act.Kill, B0) == [24.6]
    assert cause(story)[0] == "node_lost"
    assert "slurmd's port does not answer" in str(cause(story)[1])
    assert story.state.nodes.out() == {"n2"}
    assert story.all(act.Launch, since=24) == [act.Launch(B1, 1, Place(("n3",)))]


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param([(23.2, aside(B0))], id="something has answered, or nobody has told"),
        pytest.param([(23.2, aside(B0)), (24.6, silent("n3"))], id="another node has not answered"),
        pytest.param([(24.6, silent("n2"))], id="the Lighthouse hears its manager"),
        pytest.param([(23.2, aside(B0)), (24, aside(B0, False)), (24.6, silent("n2"))], id="hears it again"),
        pytest.param([(23.2, aside(B1)), (24.6, silent("n2"))], id="misses another attempt"),
        pytest.param([(23.2, aside(B0)), (24, ev.Alive(B0, 0, 24)), (24.6, silent("n2"))], id="heard since"),
    ],
)
def test_a_node_that_somebody_hears_has_the_whole_time(moments: list[Moment]) -> None:
    story = dead_b(*moments, until=29.9)
    assert story.all(act.Kill) == []
    assert story.state.nodes.out() == frozenset()


def test_what_a_lighthouse_that_is_gone_has_said_counts_no_more() -> None:
    moments = [(23.2, aside(B0)), (23.3, ev.Ended(LIGHT0, 137)), (24.6, silent("n2"))]
    story = dead_b(*moments, until=29)
    assert story.ids(act.Launch, since=23) == [LIGHT1]
    assert story.ids(act.Kill) == []


def test_without_our_lighthouse_the_answer_alone_decides() -> None:
    story = dead_b((24.6, silent("n2")), lighthouse={"kind": "torchft"})
    assert story.times(act.Kill, B0)[0] == 24.6


def test_a_node_that_is_silent_again_is_dialled_again_and_an_old_answer_does_not_count() -> None:
    heard = (26, ev.Alive(B0, 0, 26))
    story = dead_b((23.2, aside(B0)), heard, (26.5, silent("n2")), until=30)
    assert [time for time, action in story.done if isinstance(action, act.Dial)] == [23, 29]
    assert story.ids(act.Kill) == []


def test_a_node_with_another_step_that_is_heard_is_not_dead() -> None:
    shared = {"count": 2, "per_node": 2}
    started = ((0, granted(2)), (1, said.hello(LIGHT0, 0, "n1"), said.lighthouse_up(LIGHT0, URL)))
    up = [(2, ready(A0, "n1"), ready(B0, "n1")), (3, store(A0), store(B0)), (5, stepped(A0, 1), stepped(B0, 1))]
    heard = beats({LIGHT0: 29, A0: 29, B0: 20})
    dialled = [(23.2, aside(B0), aside(A0)), (24.6, silent("n1"))]
    story = play(*merged(started, up, heard, dialled, [(29,)]), config=listening(groups=shared, cluster=SLURM))
    assert story.ids(act.Kill) == []


def test_of_a_wide_group_the_lighthouse_hears_the_first_node_only() -> None:
    wide = listening(groups={"nodes": 2}, cluster=SLURM)
    start = ((0, granted(5)), STARTED[1])
    up = [(2, ready(A0, "n1", "n2"), ready(B0, "n3", "n4")), (3, store(A0), store(B0)), STARTED[4]]
    lost_at = {}
    for task, node in ((0, "n3"), (1, "n4")):
        until = {one: {LIGHT0: 40.0, A0: 40.0, B0: 20.0 if task == one else 40.0} for one in (0, 1)}
        heard = merged(beats(until[0]), beats({A0: until[1][A0], B0: until[1][B0]}, task=1))
        story = play(*merged(start, up, heard, [(24.6, silent(node))], [(26,)]), config=wide)
        lost_at[node] = story.times(act.Kill, B0)[:1]
    assert lost_at == {"n3": [], "n4": [24.6]}


def test_a_step_just_launched_on_a_dead_node_moves_on() -> None:
    begin = [(0, granted(3)), (1, said.hello(LIGHT0, 0, "n1"), said.lighthouse_up(LIGHT0, URL)), (2, ready(A0))]
    heard = beats({LIGHT0: 9, A0: 9})
    settings = listening(cluster=SLURM)
    story = play(*merged(begin, [(3, store(A0))], heard, [(4.6, silent("n2"))], [(9,)]), config=settings)
    assert story.times(act.Kill, B0)[0] == 4.6
    assert story.state.nodes.out() == {"n2"}


def test_nodes_that_fall_silent_together_are_dialled_together() -> None:
    steps = [StepId(f"group-{g:04d}", 0) for g in range(20)]
    begin: list[Moment] = [(0, granted(20)), (1, said.hello(LIGHT0, 0, "n1"), said.lighthouse_up(LIGHT0, URL))]
    hello: Moment = (2, *(said.hello(step, 0, f"n{g + 1}") for g, step in enumerate(steps)))
    spread = [(20 + g / 20, ev.Alive(step, 0, 20 + g / 20)) for g, step in enumerate(steps) if g]
    heard = merged(beats(dict.fromkeys(steps, 18.0)), beats({LIGHT0: 26.0, steps[0]: 26.0}), spread)
    story = play(*merged(begin, [hello], heard, [(26,)]), config=listening(cluster=SLURM, groups={"count": 20}))
    dialled = [action.nodes for action in story.all(act.Dial, since=20)]
    assert sorted(node for nodes in dialled for node in nodes) == sorted(f"n{g + 1}" for g in range(1, 20))
    assert len(dialled) <= 1 + 1 / DIAL_EVERY_S


def test_when_all_nodes_are_silent_none_is_dead_it_is_rather_our_own_network() -> None:
    story = four({"n2": 20, "n3": 20, "n4": 20}, (24.6, silent("n2"), silent("n3"), silent("n4")), cluster=SLURM)
    assert story.all(act.Dial) == [act.Dial(("n2", "n3", "n4"))]
    assert story.ids(act.Kill) == []
    others = four({"n2": 20, "n3": 20}, (24.6, silent("n2"), silent("n3")), cluster=SLURM)
    assert min(time for time, action in others.done if isinstance(action, act.Kill)) == 24.6


# --- steps without any message, the Lighthouse, standbys -------------------------------------------------------------


def never_heard(*moments: Moment, until: float) -> Story:
    """Play group B, on n2, which is launched at 0 and sends no message."""
    started = [
        (0, granted(3)),
        (1, said.hello(LIGHT0, 0, "n1"), said.lighthouse_up(LIGHT0, URL)),
        (2, ready(A0)),
        (3, store(A0)),
    ]
    return play(*merged(started, beats({LIGHT0: until, A0: until}), moments, [(until,)]), config=listening())


def test_a_step_that_never_said_hello_is_lost_with_its_node() -> None:
    story = never_heard((6, ev.Looked("n2", False)), until=11)
    assert story.times(act.Kill, B0)[0] == 10
    assert story.state.nodes.out() == {"n2"}


def test_a_step_slow_to_say_hello_on_a_node_that_answers_has_its_start_timeout() -> None:
    answers = [(t + 0.1, ev.Looked("n2", True, (("group-0001/0", "S"),))) for t in range(5, 599, 2)]
    story = never_heard(*answers, until=598)
    assert story.ids(act.Kill) == []
    assert len(story.records("node_silent")) == 1


def test_a_step_that_is_gone_before_it_said_hello_is_not_waited_for() -> None:
    answers = [(t + 0.1, ev.Looked("n2", True, ())) for t in range(5, 40, 2)]
    story = never_heard(*answers, until=40)
    assert 20 <= story.times(act.Kill, B0)[0] <= 22
    assert story.state.nodes.out() == frozenset()


def lighthouse_at(*beats: tuple[float, str, float]) -> list[Moment]:
    """Return heartbeats of the Lighthouse's guard: when, the state of its process, since when it has stood still."""
    return [(at, ev.Alive(LIGHT0, 0, at, state, step=int(stood), since_s=at - stood)) for at, state, stood in beats]


def test_a_lighthouse_that_is_stopped_or_stands_still_is_replaced() -> None:
    stopped = lighthouse_at((19, "S", 18.9), (20, "T", 19.5), (21, "T", 19.5))
    still = lighthouse_at(*((15.0 + n, "S", 15.5 if n else 14.9) for n in range(7)))
    for heard in (stopped, still):
        story = play(*STARTED, *heard, (21.3, ev.Ended(LIGHT0, 137)), config=config())
        assert story.times(act.Kill, LIGHT0)[0] == 21
        assert story.ids(act.Launch, since=20) == [LIGHT1]
    fine = play(*STARTED, *lighthouse_at((19, "S", 18.7), (20, "S", 19.7), (21, "S", 20.7)), config=config())
    assert fine.ids(act.Kill) == []


@pytest.mark.parametrize("stops_s", [4.0, 5.5, 30.0])
@pytest.mark.parametrize("state", ["S", "T"])
@pytest.mark.parametrize("stands", [False, True])
def test_after_a_silence_of_its_guard_two_heartbeats_show_that_a_lighthouse_stands(
    stops_s: float, state: str, stands: bool
) -> None:
    back = 20.1 + stops_s  # the whole node was stopped, and its guard goes on first
    then = [(back + n, "S" if not stands else state, 20.05 if stands else back + n - 0.2) for n in (1.0, 2.0)]
    heard = lighthouse_at((19.1, "S", 19.05), (20.1, "S", 20.05), (back, state, 20.05), *then)
    story = play(*STARTED, *heard, (back + 3,), config=config({"heartbeat_s": 1.0}))
    assert story.times(act.Kill, LIGHT0)[:1] == ([back + 1] if stands else [])


def test_a_silent_lighthouse_is_replaced_and_the_groups_are_not_touched() -> None:
    look = ev.Looked("n1", True, (("group-0000/0", "S"), ("lighthouse/0", "T")))
    heard = beats({LIGHT0: 20, A0: 31, B0: 31})
    story = play(*merged(STARTED, heard, [(25.1, look), (30.1, ev.Ended(LIGHT0, 137))]), config=listening())
    assert story.times(act.Kill, LIGHT0) == [30]
    assert story.times(act.Launch, LIGHT1) == [30.1]
    assert story.records("step_exited")[0]["cause"] == "hang"
    assert story.phases() == [Phase.RUNNING] * 2


def test_a_group_of_two_nodes_is_brought_down_when_one_of_them_is_lost() -> None:
    wide = listening(groups={"nodes": 2})
    hello = [said.hello(A0, 0, "n1"), said.hello(A0, 1, "n2"), said.hello(B0, 0, "n3"), said.hello(B0, 1, "n4")]
    started = [(0, granted(5)), (1, said.hello(LIGHT0, 0, "n1"), said.lighthouse_up(LIGHT0, URL)), (2, hello)]
    other = [(t, ev.Alive(A0, 1, t)) for t in range(2, 30, 2)]
    lost = [(8, ev.Looked("n4", False)), (12.2, ev.Ended(B0, 137))]
    story = play(*merged(started, beats({LIGHT0: 30, A0: 30, B0: 30}), other, lost), config=wide)
    assert story.times(act.Kill, B0) == [12]
    assert story.state.nodes.out() == {"n4"}
    assert story.all(act.Launch, since=12) == [act.Launch(B1, 1, Place(("n3", "n5")))]


# --- all groups at once, and this machine alone ----------------------------------------------------------------------


def four(until: dict[str, float], *moments: Moment, **sections: dict[str, Any]) -> Story:
    """Play 60 s of four groups on n1 to n4 with a working Slurm; each sends heartbeats until its time."""
    steps = [StepId(f"group-{g:04d}", 0) for g in range(4)]
    started = [
        (0, granted(4)),
        (1, said.hello(LIGHT0, 0, "n1"), said.lighthouse_up(LIGHT0, URL)),
        (2, *[ready(s, f"n{g + 1}") for g, s in enumerate(steps)]),
        (3, *[store(s) for s in steps]),
        (5, *[stepped(s, 1) for s in steps]),
    ]
    heard = beats({LIGHT0: 59.0, **{s: until.get(f"n{g + 1}", 59.0) for g, s in enumerate(steps)}})
    slurm = [(25.1, ev.NodesLeft(("n1", "n2", "n3", "n4")))]
    config = listening(groups={"count": 4}, lighthouse={"kind": "torchft"}, **sections)
    return play(*merged(started, heard, slurm, moments, [(59,)]), config=config)


def test_all_other_nodes_silent_at_once_is_rather_our_own_network() -> None:
    story = four({"n2": 20, "n3": 20, "n4": 20})
    assert {probe.node for probe in story.all(act.Probe)} == {"n2", "n3", "n4"}
    assert story.ids(act.Kill) == []
    assert story.state.nodes.out() == frozenset()


def test_a_few_silent_nodes_are_lost_while_another_is_heard() -> None:
    story = four({"n2": 20, "n3": 20})
    assert story.state.nodes.out() == {"n2", "n3"}


def test_on_this_machine_no_node_is_excluded() -> None:
    story = silent_b(
        (26, ev.Looked("n2", False)), (30.2, ev.Ended(B0, 137)), until=31, settings=listening(cluster={"kind": "local"})
    )
    assert story.records("step_exited")[0]["cause"] == "node_lost"
    assert story.state.nodes.out() == frozenset()
    assert story.all(act.Launch, since=30) == [act.Launch(B1, 1, Place(("n2",)))]


# --- nodes that come back --------------------------------------------------------------------------------------------


def lost_b(*moments: Moment, until: float, nodes: int = 2) -> Story:
    """Play the loss of n2 at 30, without a spare node."""
    started = ((0, granted(nodes)), *STARTED[1:])
    heard = beats({LIGHT0: until, A0: until, B0: 20}, every=3)
    lost = [(26, ev.Looked("n2", False)), (30.2, ev.Ended(B0, 137))]
    return play(*merged(started, heard, lost, moments, [(until,)]), config=listening())


def test_a_lost_node_is_looked_at_again_and_again() -> None:
    story = lost_b(until=2000)
    looks = [time for time, action in story.done if isinstance(action, act.Probe) and time > 30]
    assert {b - a for a, b in zip([30.0, *looks], looks, strict=False)} == {LOOK_AGAIN_S}


def test_a_node_on_which_a_step_can_be_started_again_is_used_again() -> None:
    story = lost_b((45.5, ev.Looked("n2", True, ())), until=46)
    assert [(r["node"]) for r in story.records("node_restored")] == ["n2"]
    assert story.all(act.Launch, since=45) == [act.Launch(B1, 1, Place(("n2",)))]
    assert story.state.nodes.out() == frozenset()


def test_a_node_that_still_does_not_answer_stays_out() -> None:
    story = lost_b((46, ev.Looked("n2", False)), until=50)
    assert story.state.nodes.out() == {"n2"}


def test_a_node_that_slurm_has_taken_out_of_the_job_is_not_waited_for() -> None:
    story = lost_b((31, ev.NodesLeft(("n1",))), (32, ev.Looked("n2", True, ())), until=400)
    assert story.state.nodes.out(Out.LOST) == frozenset()
    assert story.state.nodes.out() == {"n2"}
    assert story.records("node_restored") == []
    assert len(story.records("node_excluded")) == 1


def test_nobody_looks_after_lost_nodes_when_the_run_ends() -> None:
    story = lost_b((31, stop()), until=300)
    assert story.all(act.Probe, since=31) == []


def test_a_node_that_slurm_takes_away_is_excluded_once_and_says_so() -> None:
    story = play(*STARTED, (30, ev.NodesLeft(("n1", "n2"))), (31, ev.NodesLeft(("n1", "n2"))))
    (excluded,) = story.records("node_excluded")
    assert excluded["node"] == "n3"
    assert story.state.nodes.out(Out.LOST) == frozenset()
