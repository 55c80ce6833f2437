"""Hangs: the group that is to blame, row by row, and the reaction."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

import pytest
import said
from histories import Moment, Story, config, granted, is_a, killed, play, ready, stepped, store, with_units
from steps import A0, A1, B0, C0, C1, LIGHT0, URL

from ftslurm.config.schema import Config
from ftslurm.core.health.hangs import DUMP_S, awaited, hung, overtaken
from ftslurm.core.rules import begin
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence, Phase, Pulse, StepId
from ftslurm.core.state.turn import Turn
from ftslurm.protocol import messages as msg
from ftslurm.protocol.causes import Says
from ftslurm.protocol.stages import Stage

LIMIT = 60.0
COMPUTES, ASKS, HAS_QUORUM, COLLECTIVE, VOTES, SHUT_DOWN = Stage
NAMES = "ABCD"


def settings(groups: int = 3, workers: int = 1) -> Config:
    return config(groups={"count": groups, "workers": workers}, health={"hang_after_s": LIMIT})


def blamed(*groups: list[tuple[float, int, int] | tuple[float, int, int, str] | None], now: float = 200.0) -> str:
    """Return the blamed at `now` if all answer. For each task: when it moved, to which step and stage."""
    state = begin(settings(len(groups)))
    units = []
    for unit, tasks in zip(state.groups, groups, strict=True):
        pulses = [
            None
            if task is None
            else Pulse(now, [*task, "S"][3], task[1], task[2], task[0], task[0] if task[3:] == ("T",) else None)
            for task in tasks
        ]
        units.append(
            replace(
                unit,
                phase=Phase.RUNNING,
                pulses=tuple(pulses),
                current=replace(unit.current, step=9, hosts=("n1",) * len(tasks)),
            )
        )
    state = with_units(state, *units)
    turn = Turn(state, now, settings(len(groups)))
    long_ago = {one: 100.0 for one, _ in overtaken(turn)}
    turn.set(standstill=replace(state.standstill, overtaken=long_ago))
    found = hung(turn) if len(groups) > 1 else ()
    return " ".join(f"{NAMES[one.unit.group or 0]}{one.task}" for one in found)


@pytest.mark.parametrize(
    ("groups", "culprit"),
    [
        # No group hangs.
        pytest.param([[(199, 10, ASKS)], [(180, 10, COMPUTES)]], "", id="all have moved lately"),
        pytest.param([[(100, 10, COMPUTES)], [(101, 10, COMPUTES)], [(120, 10, COMPUTES)]], "", id="all evaluate"),
        pytest.param([[(100, 10, COLLECTIVE)], [(130, 10, COLLECTIVE)]], "", id="all in one collective: the network?"),
        pytest.param([[(138, 10, ASKS)], [(141, 10, COMPUTES)]], "", id="one waits for another that computes"),
        pytest.param([[(100, 10, SHUT_DOWN)], [(130, 10, COMPUTES)]], "", id="one works after its training"),
        pytest.param([[(100, 10, SHUT_DOWN)], [(190, 30, ASKS)]], "", id="and the others train on"),
        pytest.param([[(100, 10, COMPUTES)]], "", id="nobody to compare with"),
        pytest.param([[(100, 10, COMPUTES, "T")]], "", id="the only group is stopped"),
        pytest.param([[(100, 10, COMPUTES)], [None]], "", id="the other has not said where it is"),
        # One does; the others wait for it.
        pytest.param([[(100, 10, COMPUTES)], [(100.3, 10, ASKS)], [(100.2, 10, ASKS)]], "A0", id="before the quorum"),
        pytest.param(
            [[(100, 10, ASKS)], [(99.9, 10, COMPUTES)]], "B0", id="it committed a moment before another asked"
        ),
        pytest.param([[(99.9, 10, ASKS)], [(100, 10, COMPUTES)]], "B0", id="it committed a moment after another asked"),
        pytest.param([[(100, 10, COLLECTIVE)], [(99.9, 10, HAS_QUORUM)]], "B0", id="it has its quorum"),
        pytest.param([[(100, 10, COLLECTIVE)], [(100.1, 10, HAS_QUORUM)]], "B0", id="and had it a moment later"),
        pytest.param([[(103, 10, COLLECTIVE)], [(100, 10, ASKS)]], "B0", id="it asked, and does not see the answer"),
        pytest.param([[(100, 10, VOTES)], [(100.1, 11, ASKS)]], "A0", id="it votes, and the others are a step further"),
        # One does; the others have given it up.
        pytest.param([[(100, 10, COLLECTIVE)], [(130, 10, ASKS)]], "A0", id="a collective timed out for the others"),
        pytest.param([[(100, 10, COLLECTIVE)], [(140, 10, ASKS)], [(140, 10, ASKS)]], "A0", id="and they stand too"),
        pytest.param(
            [[(100, 10, ASKS)], [(199, 30, COLLECTIVE)], [(199, 30, VOTES)]], "A0", id="they train without it"
        ),
        # A stopped process needs no comparison, as long as it is one of several.
        pytest.param([[(100, 10, COLLECTIVE)], [(101, 10, COLLECTIVE, "T")]], "B0", id="the stopped one"),
        pytest.param([[(99, 10, COMPUTES)], [(101, 10, ASKS, "T")]], "B0", id="rather than one that only stands still"),
        pytest.param([[(100, 1, 0, "T")], [(101, 1, 0)], [(99, 1, 0, "T")]], "A0 C0", id="two stopped at once"),
        pytest.param([[(100, 1, 0)], [(170, 1, 0, "T")]], "", id="stopped, but only for a moment"),
        pytest.param([[(100, 1, 0, "D")], [(100, 1, 0)]], "", id="one that waits for a disk is not stopped"),
        # Rank by rank: siblings of the culprit wait for it in places of their own.
        pytest.param(
            [[(100.1, 10, VOTES), (100, 10, HAS_QUORUM)], [(100.3, 11, ASKS), (100.3, 11, ASKS)]],
            "A1",
            id="its sibling votes and waits for it",
        ),
        pytest.param(
            [[(100, 10, COLLECTIVE), (100.1, 10, COLLECTIVE)], [(100, 10, COLLECTIVE), (99, 10, COMPUTES)]],
            "B1",
            id="one rank of many is behind",
        ),
        pytest.param([[(100, 10, ASKS), (90, 10, COMPUTES)], [(100, 10, ASKS), (90, 10, COMPUTES)]], "", id="alike"),
    ],
)
def test_to_blame_is(groups: list[list[tuple[float, int, int]]], culprit: str) -> None:
    assert blamed(*groups) == culprit


def test_groups_that_have_not_joined_are_not_compared() -> None:
    state = begin(settings(2))
    running = [
        replace(
            u,
            phase=Phase.RUNNING,
            pulses=(Pulse(200, step=s, stage=s, moved=100.0),),
            current=replace(u.current, hosts=("n1",), step=joined),
        )
        for u, s, joined in zip(state.groups, (1, 2), (9, None), strict=True)
    ]
    assert hung(Turn(with_units(state, *running), 200.0, settings(2))) == ()


@pytest.mark.parametrize("seed", range(20))
def test_a_wait_that_has_timed_out_names_who_computes_since_before_the_others_moved(seed: int) -> None:
    draw = Random(seed)
    groups, workers, now = draw.randint(2, 5), draw.randint(1, 3), 200.0
    culprit = draw.randrange(groups), draw.randrange(workers)
    stage = draw.choice([COMPUTES, COMPUTES, *Stage])
    units = []
    state = begin(settings(groups, workers))
    for unit in state.groups:
        pulses = tuple(
            Pulse(now, "S", 9, stage, 100.0)
            if (unit.group, task) == culprit
            else Pulse(
                now,
                "S",
                draw.choice([9, 10]),
                draw.choice([ASKS, ASKS, VOTES]),
                draw.uniform(96 if stage is COMPUTES else 106, now),
            )
            for task in range(workers)
        )
        at_work = replace(unit.current, step=9, hosts=("n1",) * workers)
        units.append(replace(unit, phase=Phase.RUNNING, pulses=pulses, current=at_work))
    turn = Turn(with_units(state, *units), now, settings(groups, workers))
    found = awaited(turn)
    if stage is COMPUTES:
        assert found is not None
        assert f"rank {culprit[1]} of group {culprit[0]} has taken no step for 100 s" in found
        assert "job.longest_step_s" in found
    else:
        assert found is None


# --- in the life of a run ---------------------------------------------------------------------------------------------

STARTED: tuple[Moment, ...] = (
    (0, granted(4)),
    (1, said.lighthouse_up(LIGHT0, URL)),
    (2, ready(A0), ready(B0), ready(C0)),
    (3, store(A0), store(B0), store(C0)),
    (20, stepped(A0, 10), stepped(B0, 10), stepped(C0, 10)),
    (20, [ev.Alive(step, task, 20, step=9, stage=ASKS) for step in (A0, B0, C0) for task in (0, 1)]),
)
STOOD = 20.0  # C hangs right after its commit, the others ask for a quorum and wait


def at_work(now: float, step: StepId, task: int = 0, stage: int | None = None, state: str = "S") -> ev.Event:
    here = stage if stage is not None else COMPUTES if step == C0 else ASKS
    return ev.Alive(step, task, now, state, step=10, stage=here, since_s=now - STOOD)


def hanging(*moments: Moment, until: float, steps: tuple[StepId, ...] = (A0, B0, C0)) -> Story:
    beats = [(STOOD + n, [at_work(STOOD + n, step) for step in steps]) for n in range(2, int(until - STOOD) + 1, 2)]
    history = sorted([*STARTED, *beats, *moments, (until,)], key=lambda moment: moment[0])
    return play(*history, config=settings())


def test_groups_that_time_out_while_another_evaluates_say_for_whom_they_have_waited() -> None:
    torchft = 'TimeoutError: status: Cancelled, message: "Timeout expired", details: []'
    error = Evidence(0, None, code=1, error=torchft, says=frozenset({Says.TIMEOUT}))
    fails = [(STOOD + after, [ev.TaskFailed(step, error), ev.Ended(step, 1)]) for after, step in ((50, A0), (51, B0))]
    story = hanging(*fails, until=STOOD + 52)
    told = [record["error"] for record in story.records("step_exited")]
    assert [
        f"rank 0 of group 2 has taken no step for {after} s" in text for text, after in zip(told, (50, 51), strict=True)
    ] == [True] * 2
    gone = play(*STARTED, (25, ev.TaskFailed(A0, error), ev.Ended(A0, 1)), config=settings())
    assert [record["error"] for record in gone.records("step_exited")] == [torchft]  # all wait alike


def test_while_all_move_nobody_is_asked() -> None:
    beats = [
        (t, [ev.Alive(step, 0, t, step=t, stage=ASKS, since_s=1.0) for step in (A0, B0, C0)]) for t in range(22, 300, 2)
    ]
    assert play(*STARTED, *beats, config=settings()).all(msg.Where) == []


def test_all_are_asked_each_heartbeat_once_one_has_stood_still_for_half_the_limit() -> None:
    story = hanging(until=STOOD + 59)
    times = [time for time, action in story.done if action == act.Send(A0, msg.Where())]
    assert times[0] == STOOD + LIMIT / 2
    assert {b - a for a, b in itertools.pairwise(times)} == {2}
    assert story.ids(act.Kill) == []
    assert {action.id for action in story.all(msg.Where)} == {A0, B0, C0}


def test_the_next_question_is_due_also_when_nobody_says_anything() -> None:
    story = hanging(until=STOOD + 30)
    assert story.state.wakes == STOOD + 32


def test_off_by_default() -> None:
    story = play(
        *STARTED, *[(t, at_work(t, C0), at_work(t, A0)) for t in range(22, 400, 2)], config=config(groups={"count": 3})
    )
    assert story.all(msg.Where) == []
    assert story.ids(act.Kill) == []


def test_after_the_limit_only_the_culprit_is_dumped_and_then_killed() -> None:
    ends = (STOOD + 64.3, ev.Ended(C0, 137))
    story = hanging(ends, until=STOOD + 66, steps=(A0, B0, C0))
    assert story.times(msg.Dump, C0) == [STOOD + 62]
    assert story.times(act.Kill, C0) == [STOOD + 62 + DUMP_S]
    (exited,) = story.records("step_exited")
    assert (exited["cause"], exited["rank"], exited["node"], exited["noticed"]) == ("hang", 0, "n3", STOOD + 62)
    assert exited["away_since"] == STOOD
    assert exited["error"] == "rank 0 has not moved for 62 s, computing after step 10"
    assert story.ids(act.Launch, since=STOOD) == [C1]
    assert story.ids(act.Kill) == [C0]
    assert story.phases() == [Phase.RUNNING, Phase.RUNNING, Phase.STARTING]


def test_the_time_of_its_last_move_is_the_same_however_late_a_message_comes() -> None:
    jitter = itertools.cycle((0.0, 0.03, 0.007, 0.11))
    beats = [
        (
            t,
            at_work(t, A0),
            at_work(t, B0),
            ev.Alive(C0, 0, t, step=10, stage=COMPUTES, since_s=t - STOOD - next(jitter)),
        )
        for t in range(22, 84, 2)
    ]
    story = play(*STARTED, *beats, (85,), config=settings())
    assert story.ids(msg.Dump) == [C0]


def test_all_that_pause_together_and_not_equally_long_are_no_hang() -> None:
    def at(t: float, step: StepId, until: float) -> ev.Event:
        if t < until:
            return ev.Alive(step, 0, t, step=10, stage=COMPUTES, since_s=t - STOOD)
        return ev.Alive(step, 0, t, step=10, stage=ASKS, since_s=t - until)

    ends = {A0: STOOD + 80, B0: STOOD + 95, C0: STOOD + 110}
    beats = [(t, *[at(t, step, until) for step, until in ends.items()]) for t in range(22, 132, 2)]
    assert play(*STARTED, *beats, config=settings()).all(msg.Dump) == []


def test_once_all_stacks_are_in_the_logs_nothing_more_is_waited_for() -> None:
    story = hanging((STOOD + 62.2, said.dumped(C0, 0)), until=STOOD + 63)
    assert story.times(act.Kill, C0) == [STOOD + 62.2]


def test_all_ranks_are_waited_for() -> None:
    wide = settings(workers=2)
    up = [(2, ready(s, n, n)) for s, n in zip((A0, B0, C0), ("n1", "n2", "n3"), strict=True)]
    beats = [(t, [at_work(t, s, task) for s in (A0, B0, C0) for task in (0, 1)]) for t in range(22, 84, 2)]
    dumps = [(82.2, said.dumped(C0, 1)), (82.6, said.dumped(C0, 0)), (83,)]
    story = play(*STARTED[:2], *up, *STARTED[3:], *beats[:-1], *beats[-1:], *dumps, config=wide)
    assert story.times(act.Kill, C0) == [82.6]


def test_a_task_that_says_nothing_more_is_silent_and_not_hung() -> None:
    story = hanging(until=STOOD + 300, steps=(A0, B0))
    assert story.all(msg.Dump) == []


@pytest.mark.parametrize("state", ["S", "T"])
@pytest.mark.parametrize("stops_s", [LIMIT, 3 * LIMIT])
def test_a_group_whose_whole_node_was_stopped_and_goes_on_is_not_hung(stops_s: float, state: str) -> None:
    back = STOOD + 2 + stops_s
    waits = [(STOOD + n, at_work(STOOD + n, A0), at_work(STOOD + n, B0)) for n in range(2, int(stops_s) + 20, 2)]
    first = ev.Alive(C0, 0, back, state, step=10, stage=COMPUTES, since_s=stops_s + 2)  # its guard goes on first
    moves = [(back + n, ev.Alive(C0, 0, back + n, step=11, stage=ASKS, since_s=n - 0.1)) for n in (2, 4)]
    history = sorted([*STARTED, (22, at_work(22, C0)), *waits, (back, first), *moves], key=lambda moment: moment[0])
    assert play(*history, config=settings()).all(msg.Dump) == []


def test_old_words_are_no_evidence_as_after_a_stall_of_the_controller() -> None:
    story = hanging(until=STOOD + 20)
    story.turn(STOOD + 500, [])
    assert story.all(msg.Dump) == []
    story.turn(STOOD + 500.1, [ev.Alive(s, 0, STOOD + 500.1, step=700, stage=ASKS, since_s=0.1) for s in (A0, B0, C0)])
    assert story.all(msg.Dump) == []


def test_a_stopped_rank_is_found_by_its_state() -> None:
    beats = [(t, at_work(t, A0), at_work(t, B0), at_work(t, C0, stage=ASKS, state="T")) for t in range(22, 84, 2)]
    story = play(*STARTED, *beats, (83,), config=settings())
    assert story.ids(msg.Dump) == [C0]
    assert "stopped (SIGSTOP)" in str(story.unit(C0).current.evidence)


def test_one_is_blamed_at_a_time_and_another_that_stood_still_gets_its_time_again() -> None:
    beats = [(t, at_work(t, A0), at_work(t, B0, stage=COMPUTES), at_work(t, C0)) for t in range(22, 160, 2)]
    story = play(*STARTED, *beats, config=settings())
    assert set(story.ids(msg.Dump)) == {B0, C0}
    times = [time for time, action in story.done if is_a(action, msg.Dump)]
    assert times[0] == STOOD + 2 + LIMIT  # it was seen to be passed at the first heartbeat
    assert times[1] >= times[0] + LIMIT


def test_who_joins_again_is_compared_again() -> None:
    again = [
        (30, killed(A0)),
        (31, ready(A1)),
        (32, store(A1)),
        (33, stepped(A1, 40), stepped(B0, 40), stepped(C0, 40)),
    ]
    beats = [
        (t, *[ev.Alive(s, 0, t, step=40, stage=Stage(s != A1), since_s=t - 33.0) for s in (A1, B0, C0)])
        for t in range(34, 96, 2)
    ]
    story = play(*STARTED, *again, *beats, config=settings())
    assert story.ids(msg.Dump) == [A1]
