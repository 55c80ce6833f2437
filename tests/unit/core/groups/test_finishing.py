"""Whether a group whose script has ended has finished: the whole table, and histories."""

from __future__ import annotations

from itertools import product

import pytest
import said
from fuzz import tried
from histories import (
    CHECKPOINT,
    LIGHTHOUSE_UP,
    RUNNING,
    Moment,
    config,
    granted,
    killed,
    play,
    raised,
    ready,
    stepped,
    stop,
    store,
)
from hypothesis import given
from hypothesis import strategies as st
from steps import A0, A1, B0, B1, C0, LIGHT0

from ftslurm.core.groups.finishing import BEYOND, TOGETHER_S, Answer, End, Others, Reached, judge, reach
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence, Phase, StepId
from ftslurm.protocol import messages as msg
from ftslurm.protocol.stages import Stage

STEPS, UP_TO = st.integers(0, 12), st.none() | st.integers(1, 12)


def leaves(step: StepId, at: int, term: bool = False, **ended: object) -> list[ev.Event]:
    """Return the end of a group of one rank with exit code 0 at a step, as its guard tells it."""
    return [said.task_done(step, 0, at, term), ev.Ended(step, code=0, **ended)]  # type: ignore[arg-type]


# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", End)
def test_the_table_is_whole_and_more_steps_or_fewer_who_train_never_take_a_success_back(end: End) -> None:
    table = {(reached, others): judge(end, reached, others) for reached, others in product(Reached, Others)}
    for (reached, others), answer in table.items():
        for more in (one for one in Reached if one > reached):
            assert answer is not Answer.FINISHED or table[more, others] is Answer.FINISHED
        fewer = {table[reached, one] for one in Others if one > others}
        assert answer is not Answer.FINISHED or fewer <= {Answer.FINISHED}
        assert answer is not Answer.TOO_LATE or others is Others.FINISHED
        assert answer is not Answer.FINISHED or (end is not End.FAILED and reached is not Reached.SHORT)
        assert answer is not Answer.FINISHED or end is End.ZERO or reached is Reached.END
    assert {*table.values()} <= {*Answer}


@given(step=st.none() | STEPS, furthest=STEPS, total=UP_TO, finished_at=UP_TO)
def test_a_group_is_never_at_the_end_short_of_it(
    step: int | None, furthest: int, total: int | None, finished_at: int | None
) -> None:
    reached = reach(step, furthest, total, finished_at)
    if reached is Reached.END:
        assert step is not None
        assert step >= (total if total is not None else finished_at or 0)
    if step is not None and furthest and (total is not None or furthest >= step + BEYOND):
        assert reached is (Reached.SHORT if step < (total or finished_at or furthest) else Reached.END)
    assert reach(step, 0, total, finished_at) is Reached.UNKNOWN  # a script without a Manager
    if step is not None:
        assert reach(step + 1, furthest, total, finished_at) >= reached or furthest == 0


# --- histories: RUNNING is at step 10 after 20 s ----------------------------------------------------------------------


@pytest.mark.parametrize("total", [None, 40])
@pytest.mark.parametrize("term", [True, False])
def test_a_group_that_leaves_while_the_other_trains_on_gets_another_attempt(total: int | None, term: bool) -> None:
    goes_on: list[Moment] = [(30.0 + n, stepped(B0, 12 + n)) for n in range(1, 7)]
    story = play(*RUNNING, (30, leaves(A0, 12, term)), *goes_on, config=config(job={"total_steps": total}))
    assert story.ids(act.Launch, since=30) == [A1]
    *_, end = story.records("step_exited")
    assert (end["cause"], end["step"]) == ("left_on_sigterm" if term else "left_early", 12)
    assert story.times(act.Launch, A1)[0] <= 30 + max(TOGETHER_S, BEYOND)
    back = ((40, ready(A1)), (41, store(A1)), (42, stepped(A1, 20)), (50, leaves(A1, 40), leaves(B0, 40)))
    for time, *events in back:
        story.wait(time)
        story.turn(time, events)
    assert story.outcome() == "succeeded"
    warned = [str(one["text"]) for one in story.records("warning")]
    assert len(warned) == (not term)
    assert all("group 0 ended with exit code 0 at step 12" in text for text in warned)


def test_loops_of_slightly_different_length_have_all_finished() -> None:
    story = play(*RUNNING, (30, leaves(A0, 12)), (31, stepped(B0, 14)), (40, leaves(B0, 14)))
    assert story.phases() == [Phase.SUCCEEDED] * 2
    assert story.reason() == "all groups finished"


@pytest.mark.parametrize("total", [None, 400])
@pytest.mark.parametrize("term", [True, False])
def test_all_groups_leave_at_the_same_step(total: int | None, term: bool) -> None:
    both = [*leaves(A0, 12, term, checkpoint=CHECKPOINT), *leaves(B0, 12, term, checkpoint=CHECKPOINT)]
    story = play(*RUNNING, (30, both), (31,), config=config(job={"total_steps": total}))
    if total is None and not term:  # agreed early stopping
        assert story.outcome() == "succeeded"
        return
    assert story.records("full_restart")[0]["checkpoint_step"] == 5
    assert story.ids(act.Launch, since=30) == [A1, B1]


def test_groups_that_stop_at_the_same_step_again_end_the_run_with_a_hint() -> None:
    both = [*leaves(A0, 12, checkpoint=CHECKPOINT), *leaves(B0, 12, checkpoint=CHECKPOINT)]
    loaded = [said.restored(step, CHECKPOINT.step or 0, CHECKPOINT.path) for step in (A1, B1)]
    again: tuple[Moment, ...] = (
        (32, ready(A1), ready(B1)),
        (33, store(A1), store(B1)),
        (34, loaded),
        (35, stepped(A1, 6), stepped(B1, 6)),
        (40, leaves(A1, 12, checkpoint=CHECKPOINT), leaves(B1, 12, checkpoint=CHECKPOINT)),
    )
    story = play(*RUNNING, (30, both), *again, config=config(job={"total_steps": 400}))
    assert story.outcome() == "failed"
    assert "leave out job.total_steps" in story.reason()


def test_without_a_checkpoint_groups_that_all_leave_early_are_no_success() -> None:
    story = play(*RUNNING, (30, leaves(A0, 12), leaves(B0, 12)), (31,), config=config(job={"total_steps": 400}))
    assert story.outcome() == "failed"
    assert "left early: exit code 0 at step 12 of 400" in story.failure()


@pytest.mark.parametrize("at", [400, 401])
def test_sigterm_at_the_end_of_the_training_changes_nothing(at: int) -> None:
    story = play(*RUNNING, (30, leaves(A0, at, term=True), leaves(B0, at)), config=config(job={"total_steps": 400}))
    assert story.outcome() == "succeeded"


def test_a_group_that_is_killed_after_another_has_left_is_not_too_late_while_a_third_trains() -> None:
    three = config(groups={"count": 3})
    running = (
        (0, granted(3)),
        (1, LIGHTHOUSE_UP),
        (2, *map(ready, (A0, B0, C0))),
        (3, *map(store, (A0, B0, C0))),
        (20, *(stepped(step, 10) for step in (A0, B0, C0))),
    )
    story = play(*running, (30, leaves(A0, 12)), (31, killed(B0)), (32, stepped(C0, 20)), (33,), config=three)
    assert story.records("group_given_up") == []
    assert set(story.ids(act.Launch, since=30)) == {A1, B1}


def test_jobs_without_steps_count_by_their_exit_codes_unless_after_sigterm() -> None:
    alone = config(lighthouse={"kind": "none"})
    begun: tuple[Moment, ...] = ((0, RUNNING[0][1]), (2, ready(A0), ready(B0)), (3, store(A0), store(B0)))
    story = play(*begun, (30, leaves(A0, 0), leaves(B0, 0)), config=alone)
    assert story.outcome() == "succeeded"
    story = play(*begun, (30, leaves(A0, 0, term=True)), (31,), config=alone)
    assert story.ids(act.Launch, since=30) == [A1]


# --- some ranks of a group --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "term"), [(12, False), (12, True), (400, False)])
def test_the_rest_of_a_group_has_its_grace_and_no_more_if_a_rank_has_left_early(at: int, term: bool) -> None:
    wide = config(groups={"workers": 2}, stop={"grace_s": 7.0}, job={"total_steps": 400})
    both = (
        *RUNNING[:2],
        (2, ready(A0, "n1", "n1"), ready(B0, "n2", "n2")),
        (3, store(A0), store(B0)),
        (20, stepped(A0, 10), stepped(B0, 10)),
    )
    story = play(*both, (30, said.task_done(A0, 1, at, term)), (50,), config=wide)
    assert story.times(act.Kill, A0)[:1] == ([] if at == 400 else [37])
    assert story.ids(msg.Stop) == []
    if at == 400:
        return
    story.turn(51, [ev.Ended(A0, code=137)])
    (end,) = story.records("step_exited")
    assert (end["cause"], end["rank"]) == ("left_on_sigterm" if term else "left_early", 1)


WIDE: tuple[Moment, ...] = (
    *RUNNING[:2],
    (2, ready(A0, "n1", "n1"), ready(B0, "n2", "n2")),
    (3, store(A0), store(B0)),
    (20, stepped(A0, 12), stepped(B0, 12)),
)
TWO = config(groups={"workers": 2}, stop={"grace_s": 1.0})


def at(task: int, time: float, stage: Stage, since_s: float = 0.1, step: int = 12) -> ev.Event:
    return ev.Alive(A0, task, time, "S", step, stage, since_s)


@st.composite
def orders(draw: st.DrawFn, *events: ev.Event) -> tuple[Moment, ...]:
    """Return these events in any order, in one decision or in several."""
    times = sorted(draw(st.lists(st.sampled_from([30.0, 30.1, 30.2]), min_size=len(events), max_size=len(events))))
    return tuple(zip(times, draw(st.permutations(events)), strict=True))


@tried(200)
@given(st.data(), st.integers(0, 1), st.booleans(), st.sampled_from([Stage.SEEKING_QUORUM, Stage.VOTING]))
def test_the_error_of_a_rank_follows_from_the_end_of_another_whichever_is_heard_first(
    data: st.DataObject, task: int, term: bool, stage: Stage
) -> None:
    error = ev.TaskFailed(A0, Evidence(1 - task, None, code=1, error="RuntimeError: no answer"))
    heard = data.draw(orders(said.task_done(A0, task, 12, term), at(1 - task, 30, stage), error))
    story = play(*WIDE, *heard, (31, ev.Ended(A0, code=1)), (33,), config=TWO)
    (end,) = story.records("step_exited")
    assert (end["cause"], end["rank"]) == ("left_on_sigterm" if term else "left_early", task)
    assert story.ids(act.Launch, since=30) == [A1]


@tried(200)
@given(st.data(), st.integers(0, 1), st.sampled_from([Stage.COMPUTING, Stage.HAS_QUORUM]))
def test_an_error_after_the_last_step_is_that_ranks_own(data: st.DataObject, task: int, stage: Stage) -> None:
    error = ev.TaskFailed(A0, Evidence(1 - task, None, code=1, error="ValueError: x"))
    heard = data.draw(orders(said.task_done(A0, task, 12), at(1 - task, 30, stage), error))
    (end,) = play(*WIDE, *heard, (31, ev.Ended(A0, code=1)), config=TWO).records("step_exited")
    assert (end["cause"], end["rank"]) == ("user_error", 1 - task)


@tried(200)
@given(task=st.integers(0, 1), exited=st.booleans(), stage=st.sampled_from(Stage), first=st.floats(30, 40))
def test_the_others_are_asked_where_they_are_and_waited_for_unless_they_wait(
    task: int, exited: bool, stage: Stage, first: float
) -> None:
    end = said.task_done(A0, task, 12) if exited else said.script_done(A0, task)
    story = play(*WIDE, (30, end), (first,), (50, at(1 - task, 50, stage, TOGETHER_S / 2)), config=TWO)
    assert 5 <= len(story.times(msg.Where, A0)) <= 12
    assert story.phases() == [Phase.RUNNING] * 2
    story.turn(52, [at(1 - task, 52, stage, TOGETHER_S + 1)])
    waits = stage in (Stage.SEEKING_QUORUM, Stage.COLLECTIVE, Stage.VOTING)
    assert story.phases()[0] is (Phase.STOPPING if waits else Phase.RUNNING)
    assert story.ids(msg.MayLeave) == [A0] * waits
    story.wait(60)
    assert story.times(act.Kill, A0)[:1] == [53] * waits


def test_a_rank_has_left_early_as_soon_as_the_others_are_beyond_it_however_late_that_is() -> None:
    story = play(*WIDE, (30, said.task_done(A0, 1, 12)), (300, stepped(B0, 14)), config=TWO)
    assert story.phases() == [Phase.RUNNING] * 2
    story.turn(301, [stepped(B0, 12 + BEYOND)])
    assert story.phases() == [Phase.STOPPING, Phase.RUNNING]


def test_rank_0_that_has_waited_for_the_others_tells_of_sigterm_when_it_is_let_go() -> None:
    ends = (50, at(1, 50, Stage.SEEKING_QUORUM, 5)), (50.5, said.task_done(A0, 0, 12, term=True))
    story = play(*WIDE, (30, said.script_done(A0, 0)), *ends, (51.5, ev.Ended(A0, code=137)), config=TWO)
    (end,) = story.records("step_exited")
    assert (end["cause"], end["rank"], end["error"]) == ("left_on_sigterm", 0, "exit code 0 at step 12")


def test_rank_0_may_leave_when_all_scripts_have_ended_however_they_tell() -> None:
    wide = config(groups={"workers": 3})
    begun: tuple[Moment, ...] = (*RUNNING[:2], (2, ready(A0, "n1", "n1", "n1")), (3, store(A0)))
    ends = ((5, said.script_done(A0, 0)), (6, said.task_done(A0, 2)), (7, said.script_done(A0, 1)))
    assert play(*begun, *ends, config=wide).times(msg.MayLeave, A0) == [7]


# --- the end of the run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [0, 5])
def test_a_run_tells_which_group_has_never_taken_a_step(attempts: int) -> None:
    """It was given up, or waits for its next attempt when the other has finished."""
    limit = config(restart={"max_per_group": attempts, "backoff_s": 60.0})
    unborn = [raised(step, "ImportError: x", started=False) for step in (B0, B1)]
    begun: tuple[Moment, ...] = (*RUNNING[:2], (2, ready(A0), unborn[0]), (2.5, store(A0)), (3, unborn[1]))
    story = play(*begun, (5, stepped(A0, 5)), (30, leaves(A0, 5)), (40,), (41, ev.Ended(LIGHT0, 0)), config=limit)
    (end,) = story.records("run_finished")
    assert (end["outcome"], end["missing"]) == ("succeeded", [1])
    assert "the training went on without it" in end["reason"]


def test_a_group_that_is_ending_is_not_told_to_be_silent() -> None:
    aside = ev.Heard(LIGHT0, msg.GroupAside(0, 0, True, 3.0))
    for sign in (said.script_done(A0, 0), said.task_done(A0, 0), stop()):
        assert play(*RUNNING, (30, sign), (33, aside)).records("group_set_aside") == []
    assert len(play(*RUNNING, (33, aside)).records("group_set_aside")) == 1


@tried(100)
@given(st.integers(1, 39), st.sampled_from(Stage), st.floats(0, 3), st.booleans())
def test_a_group_that_asks_for_a_quorum_behind_those_that_have_finished_is_given_up(
    step: int, stage: Stage, after_s: float, finished: bool
) -> None:
    """As after a cut of the network: its last heartbeat may be from before the others' end."""
    ends = leaves(A0, 40) if finished else [stepped(A0, 40)]
    seen = ev.Alive(B0, 0, 50 + after_s, "S", step, stage, 1.0)
    story = play(*RUNNING[:5], (40, stepped(A0, 40), stepped(B0, step)), (50, *ends), (50 + after_s, seen))
    story.wait(53.5)
    stranded = finished and stage is Stage.SEEKING_QUORUM and 50 + after_s > 50 and step < 39
    assert (story.phases()[1] is Phase.STOPPING) is stranded
    if stranded:
        story.turn(54, [ev.Ended(B0, code=143)])
        assert "at step" in story.records("step_exited")[-1]["error"]
        assert [record["group"] for record in story.records("group_given_up")] == [1]
        assert story.outcome() == "succeeded"
        assert "1 of 2 groups finished; group 1 did not" in story.reason()


@tried(100)
@given(st.integers(1, 40), st.sampled_from([None, 40]), st.booleans(), st.floats(0, TOGETHER_S / 2))
def test_a_group_that_left_early_just_before_the_end_is_missed(
    step: int, total: int | None, crashes: bool, apart_s: float
) -> None:
    """Nobody waits until the others are seen to train on: they have ended. It may crash after its script has ended."""
    end = leaves(B0, step)
    if crashes:
        said_by_guard = msg.Exited(None, 6, False, step=step)
        end = [
            said.script_done(B0, 0),
            ev.TaskFailed(B0, Evidence(0, None, signal=6), said_by_guard),
            ev.Ended(B0, code=134),
        ]
    early = (40, stepped(A0, 39), stepped(B0, step)), (50 - apart_s, *end), (50, stepped(A0, 40), *leaves(A0, 40))
    story = play(*RUNNING[:5], *early, (53,), config=config(job={"total_steps": total}))
    story.turn(54, [ev.Ended(again, code=143) for again in story.ids(act.Launch, since=45)])
    story.turn(55, [ev.Ended(LIGHT0, code=143)])
    short = step < 40 if total else step + BEYOND <= 40
    assert story.outcome() == "succeeded"
    assert ("group 1 did not" in story.reason()) is short
    (over,) = story.records("run_finished")
    assert list(over.get("missing", [])) == [1] * (step < 40 - BEYOND)
