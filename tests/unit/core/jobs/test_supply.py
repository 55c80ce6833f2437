"""The jobs of a run beside the controller's: requested, awaited, requeued, given back; never two for one group."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from histories import (
    ASKED_FOR,
    LIGHTHOUSE_UP,
    NO_NODES,
    RUNNING,
    STARTED,
    Moment,
    Story,
    array_config,
    array_running,
    config,
    finished,
    granted,
    killed,
    node_lost,
    over,
    pilot,
    play,
    queued,
    ready,
    stepped,
    stop,
    store,
)
from steps import A0, A1, ANN, B0, B1

from ftslurm.config.schema import Range
from ftslurm.core.groups.restart import GiveUp, RestartAt, judge
from ftslurm.core.jobs import queue
from ftslurm.core.jobs.supply import over as left_at_the_end
from ftslurm.core.rules import decide
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence, Exit, Job, JobPool, Out, Phase
from ftslurm.protocol import messages as msg
from ftslurm.protocol.causes import Cause

ARRAY = array_config()
AT_WORK = array_running()


def seen(asked: float, *jobs: Job, took_s: float = 0.0) -> ev.JobsSeen:
    return ev.JobsSeen(jobs, asked, took_s)


def asked_at(story: Story) -> list[float]:
    return [time for time, action in story.done if isinstance(action, act.AskJobs)]


def requests(story: Story) -> list[act.RequestJobs]:
    return story.all(act.RequestJobs)


FIRST = act.RequestJobs(0, 2)


def test_a_decision_in_which_nothing_has_changed_looks_at_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    story = play(*AT_WORK, config=ARRAY)
    story.turn(10.1, [])

    def look(pool: JobPool) -> tuple[Job, ...]:
        raise AssertionError("all jobs were looked at")

    monkeypatch.setattr(JobPool, "jobs", property(look))
    assert decide(story.state, [], 10.2, ARRAY) == (story.state, [])
    with pytest.raises(AssertionError, match="all jobs"):
        decide(story.state, killed(A0), 10.3, ARRAY)


def test_slurm_is_asked_what_is_there_before_anything_is_asked_for() -> None:
    story = play((0, NO_NODES), config=ARRAY)
    assert asked_at(story) == [0]
    assert requests(story) == []
    story.turn(0.1, [seen(0.0)])
    assert requests(story) == [FIRST]
    assert story.records("allocation_requested") == [{"pool": 0, "count": 2, "exclude": []}]


def test_jobs_of_an_earlier_controller_are_taken_over() -> None:
    story = play((0, NO_NODES), (0.1, seen(0.0, pilot("90_0", "n1"), queued("90_1"))), config=ARRAY)
    assert requests(story) == []
    assert story.ids(act.Launch)[1:] == [A0]


def test_a_job_that_waits_in_the_queue_counts_as_there_however_long() -> None:
    waits = [queued("90_0", "Priority"), queued("90_1", "QOSMaxJobsPerUserLimit")]
    moments: list[Moment] = [(t, seen(t - 0.1, *waits)) for t in range(3, 2000, 17)]
    story = play(*ASKED_FOR, *moments, config=ARRAY)
    assert requests(story) == [FIRST]
    assert [(r["allocation"], r["reason"]) for r in story.records("allocation_pending")] == [
        ("90_0", "Priority"),
        ("90_1", "QOSMaxJobsPerUserLimit"),
    ]
    told = {r["group"]: (r["reason"], r["allocation"]) for r in story.records("group_waits")}
    assert told[1] == ("Slurm job 90_1 (pending: QOSMaxJobsPerUserLimit)", "90_1")
    assert story.outcome() is None


def test_each_group_is_launched_in_its_job_as_soon_as_that_runs() -> None:
    story = play(*ASKED_FOR, (2.6, seen(2.5, pilot("90_0", "n1"), queued("90_1"))), config=ARRAY)
    assert story.ids(act.Launch)[1:] == [A0]
    story.turn(30, [seen(29.9, pilot("90_0", "n1"), pilot("90_1", "n2", ends=900.0))])
    assert story.ids(act.Launch)[1:] == [A0, B0]
    where = [(r["group"], r["nodes"], r["allocation"]) for r in story.records("step_launched")[1:]]
    assert where == [(0, ["n1"], "90_0"), (1, ["n2"], "90_1")]
    known = {"allocation": "90_1", "nodes": ["n2"], "pool": 0, "ends": 900.0}
    assert story.records("allocation_granted")[1] == known


def test_a_pilot_that_says_that_it_runs_is_believed_and_others_are_not_gone() -> None:
    story = play(*ASKED_FOR, (1.0, ev.JobsSeen((pilot("90_1", "n2"),), 1.0, whole=False)), config=ARRAY)
    assert story.ids(act.Launch)[1:] == [A0]
    assert [job.name for job in story.state.job_pool.jobs if job.alive] == ["90_0", "90_1"]


def test_the_end_of_a_job_is_told_when_it_becomes_known_and_when_it_is_moved() -> None:
    story = play(*ASKED_FOR, (1.0, ev.JobsSeen((pilot("90_0", "n1"),), 1.0, whole=False)), config=ARRAY)
    for now, ends in ((2, 900.0), (3, 900.0), (4, 1800.0)):
        story.turn(now, [seen(now - 0.1, pilot("90_0", "n1", ends=ends), queued("90_1"))])
    assert [r["ends"] for r in story.records("allocation_granted")] == [None]
    assert story.records("allocation_ends") == [{"allocation": "90_0", "ends": ends} for ends in (900.0, 1800.0)]


@pytest.mark.parametrize("ends", [None, 15.0])
def test_a_preempted_job_is_left_even_if_not_seen_before_and_its_end_is_hidden(
    ends: float | None,
) -> None:
    cut = replace(pilot("90_1", "n2", ends=ends), began=1.0, preempted=True)
    story = play(*AT_WORK, (12.5, seen(12.4, pilot("90_0", "n1"), cut)), config=ARRAY)
    assert [r["cause"] for r in story.records("allocation_leaving")] == ["preempted"]
    assert story.ids(msg.Stop) == [B0]
    story.turn(13, [seen(12.9, pilot("90_0", "n1"), cut)])
    assert len(story.records("allocation_leaving")) == 1
    story.turn(14, [ev.Ended(B0, code=143)])
    assert story.records("step_exited")[-1]["cause"] == "preempted"
    back = replace(pilot("90_1", "n3"), began=30.0)
    story.turn(20, [seen(19.9, pilot("90_0", "n1"), queued("90_1", "BeginTime"))])
    story.turn(30, [seen(29.9, pilot("90_0", "n1"), back)])
    assert story.ids(act.Launch)[-1] == B1
    assert requests(story) == [FIRST]


# --- jobs that end ---------------------------------------------------------------------------------------------------


def test_a_preempted_job_waits_its_two_minutes_in_the_queue() -> None:
    cut = replace(pilot("90_1", "n2"), preempted=True)
    story = play(*AT_WORK, (12, seen(11.9, pilot("90_0", "n1"), cut)), (13, ev.Ended(B0, code=143)), config=ARRAY)
    for now in range(20, 140, 10):
        story.turn(now, [seen(now - 0.1, pilot("90_0", "n1"), queued("90_1", "BeginTime"))])
    assert story.all(act.StartNow) == []
    assert requests(story) == [FIRST]
    story.turn(150, [seen(149.9, pilot("90_0", "n1"), replace(pilot("90_1", "n3"), began=145.0))])
    assert story.ids(act.Launch)[-1] == B1
    story.turn(160, [seen(159.9, pilot("90_0", "n1"), queued("90_1", "BeginTime"))])
    story.turn(170, [seen(169.9, pilot("90_0", "n1"), queued("90_1", "BeginTime"))])
    assert story.all(act.StartNow) == [act.StartNow("90_1")]  # that time somebody had requeued it


def test_a_job_that_slurm_requeued_is_not_asked_for_again_and_its_delay_is_cut_later() -> None:
    back = queued("90_1", "BeginTime")
    story = play(*AT_WORK, (12, seen(11.9, pilot("90_0", "n1"), back)), config=ARRAY)
    assert story.unit(B0).phase is Phase.STOPPING
    assert story.records("allocation_lost")[0]["reason"] == "Slurm has requeued it"
    assert story.records("allocation_lost")[0]["state"] == "PENDING"
    assert story.all(act.StartNow) == []  # 22.05 fails a job for good that is started within about 0.2 s
    story.turn(12.3, [ev.Ended(B0, code=137)])
    story.turn(14.0, [seen(13.9, pilot("90_0", "n1"), back)])
    assert [t for t, a in story.done if isinstance(a, act.StartNow)] == [14.0]
    story.turn(16.0, [seen(15.9, pilot("90_0", "n1"), back)])
    story.turn(34.5, [seen(34.4, pilot("90_0", "n1"), back)])
    assert [t for t, a in story.done if isinstance(a, act.StartNow)] == [14.0, 34.5]  # it was not heard
    story.turn(36, [seen(35.9, pilot("90_0", "n1"), pilot("90_1", "n5"))])
    assert story.ids(act.Launch)[-1] == B1
    assert requests(story) == [FIRST]
    assert story.all(act.RequeueJob) == []


@pytest.mark.parametrize(
    ("word", "cause"),
    [
        ("CANCELLED", "cancelled"),
        ("TIMEOUT", "time_limit"),
        ("NODE_FAIL", "node_lost"),
        ("PREEMPTED", "preempted"),
        ("COMPLETED", "unknown"),
    ],
)
def test_a_job_that_is_over_ends_its_group_for_its_reason_and_is_asked_for_again(word: str, cause: str) -> None:
    story = play(*AT_WORK, (12, seen(11.9, pilot("90_0", "n1"), over("90_1", word))), config=ARRAY)
    assert story.all(act.Kill) == [act.Kill(B0, stuck=True)]  # its srun may hang and is not awaited
    assert requests(story) == [FIRST, act.RequestJobs(0, 1)]
    story.turn(12.4, [ev.Ended(B0, code=137)])
    assert story.records("step_exited")[-1]["cause"] == cause
    lost = {"allocation": "90_1", "nodes": ["n2"], "reason": f"Slurm job {word}", "state": word}
    assert story.records("allocation_lost") == [lost]
    assert story.unit(A0).phase is Phase.RUNNING


def test_the_group_of_a_suspended_job_has_not_failed_and_waits_for_it() -> None:
    story = play(*AT_WORK, (12, seen(11.9, pilot("90_0", "n1"), over("90_1", "SUSPENDED"))), config=ARRAY)
    story.turn(12.4, [ev.Ended(B0, code=137)])
    assert story.records("step_exited")[-1]["cause"] == "preempted"
    story.turn(36, [seen(35.9, pilot("90_0", "n1"), pilot("90_1", "n2"))])
    assert story.ids(act.Launch)[-1] == B1
    assert requests(story) == [FIRST]


def test_a_job_that_slurm_knows_no_more_is_over() -> None:
    story = play(*AT_WORK, (12, seen(11.9, pilot("90_0", "n1"))), config=ARRAY)
    assert story.records("allocation_lost")[0]["reason"] == "Slurm knows it no more"
    assert requests(story) == [FIRST, act.RequestJobs(0, 1)]


def test_a_job_that_is_ending_may_come_back_to_the_queue_and_is_waited_for() -> None:
    ending = over("90_1", "COMPLETING")
    story = play(*AT_WORK, (12, seen(11.9, pilot("90_0", "n1"), ending), ev.Ended(B0, code=137)), config=ARRAY)
    story.wait(71.9)
    assert requests(story) == [FIRST]
    assert len(story.all(act.AskJobs, since=12)) == 1  # as soon as the answer was due
    back = play(*AT_WORK, (12, seen(11.9, pilot("90_0", "n1"), ending), ev.Ended(B0, code=137)), config=ARRAY)
    back.turn(15, [seen(14.9, pilot("90_0", "n1"), queued("90_1", "BeginTime"))])
    back.wait(500)
    assert requests(back) == [FIRST]
    story.wait(73)
    assert requests(story) == [FIRST, act.RequestJobs(0, 1)]
    lost = play(*AT_WORK, (12, seen(11.9, pilot("90_0", "n1"), ending), *node_lost(B0, "n2")), config=ARRAY)
    lost.wait(13)
    assert requests(lost) == [FIRST, act.RequestJobs(0, 1, exclude=("n2",))]


@pytest.mark.parametrize(
    "held", [("REQUEUE_HOLD",), ("PENDING", "JobHeldAdmin"), ("PENDING", "job_requeued_in_held_state")]
)
def test_nothing_is_submitted_around_a_job_that_somebody_holds(held: tuple[str, ...]) -> None:
    completing = [(12 + 2 * n, seen(11.9 + 2 * n, pilot("90_0", "n1"), over("90_1", "COMPLETING"))) for n in range(15)]
    holds = [
        (42 + 10 * n, seen(41.9 + 10 * n, pilot("90_0", "n1"), replace(queued("90_1", held[-1]), state=held[0])))
        for n in range(99)
    ]
    story = play(*AT_WORK, (11.9, ev.Ended(B0, code=137)), *completing, *holds, config=ARRAY)
    assert requests(story) == [FIRST]
    assert story.all(act.CancelJobs) == []
    story.turn(2000, [seen(1999.9, pilot("90_0", "n1"), pilot("90_1", "n3"))])
    assert story.ids(act.Launch)[-1] == B1


def test_a_job_whose_end_takes_a_while_is_lost_once_and_takes_its_group_down() -> None:
    ending, end = over("90_1", "COMPLETING"), over("90_1", "CANCELLED")
    moments: list[Moment] = [(t, seen(t - 0.1, pilot("90_0", "n1"), ending)) for t in (12, 14, 16)]
    story = play(*AT_WORK, *moments, (18, seen(17.9, pilot("90_0", "n1"), end)), config=ARRAY)
    assert story.all(act.Kill) == [act.Kill(B0, stuck=True)]
    story.turn(20, [seen(19.9, pilot("90_0", "n1"), end)])
    assert [r["reason"] for r in story.records("allocation_lost")] == ["Slurm job CANCELLED"]
    assert story.state.job_pool.jobs[-1].nodes == ()


def test_while_a_job_hangs_in_its_end_slurm_is_not_asked_every_two_seconds_for_ever() -> None:
    ending = over("90_1", "COMPLETING")
    moments: list[Moment] = [(t, seen(t - 0.1, pilot("90_0", "n1"), ending)) for t in range(12, 112, 2)]
    story = play(*AT_WORK, *moments, config=ARRAY)
    assert story.state.job_pool.next_poll == 110 + ARRAY.poll_s


def test_a_lost_node_brings_a_job_that_excludes_it_and_the_old_job_is_given_back() -> None:
    gone = node_lost(B0, "n2")
    excluded = play(*AT_WORK, (12, gone), config=ARRAY)
    assert requests(excluded) == [FIRST, act.RequestJobs(0, 1, ("n2",))]
    assert excluded.all(act.CancelJobs) == [act.CancelJobs(("90_1",))]
    assert excluded.all(act.RequeueJob) == []
    (lost,) = excluded.records("allocation_lost")
    assert (lost["allocation"], lost["reason"], lost["state"]) == ("90_1", "n2 is lost or bad", None)
    excluded.turn(13, [ev.Submitted(0, ("91",))])
    excluded.turn(16, [seen(15.9, pilot("90_0", "n1"), over("90_1", "CANCELLED"), pilot("91", "n3"))])
    assert excluded.ids(act.Launch)[-1] == B1
    assert len(excluded.records("allocation_lost")) == 1


@pytest.mark.parametrize("apart_s", [0.0, 1.0, 29.0])
@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
def test_a_run_whose_jobs_are_all_cancelled_ends(state: str, apart_s: float) -> None:
    """Also if one ends later than the other, and a job was submitted meanwhile."""
    before = pilot("90_1", "n2") if state == "RUNNING" else queued("90_1")
    story = play(*ASKED_FOR, (2.6, seen(2.5, pilot("90_0", "n1"), before)), config=ARRAY)
    story.turn(12, [seen(11.9, over("90_0", "CANCELLED"), before if apart_s else over("90_1", "CANCELLED"))])
    if apart_s:
        story.turn(12.5, [ev.Submitted(0, ("91",))])
        story.turn(12 + apart_s, [seen(11.9 + apart_s, *map(over, ("90_0", "90_1"), ("CANCELLED",) * 2), queued("91"))])
    assert story.state.ending is not None
    assert story.state.ending.reason == queue.ALL_CANCELLED
    assert story.records("command")[-1]["what"] == "stop"
    story.wait(100)
    assert len(requests(story)) == (2 if apart_s else 1)


@pytest.mark.parametrize(
    ("first", "second", "apart_s"),
    [
        ("CANCELLED", "RUNNING", 1.0),
        ("CANCELLED", "PREEMPTED", 1.0),
        ("CANCELLED", "NODE_FAIL", 1.0),
        ("TIMEOUT", "TIMEOUT", 1.0),
        ("CANCELLED", "CANCELLED", queue.TOGETHER_S + 1.0),
    ],
)
def test_a_run_of_which_some_jobs_are_cancelled_gets_others(first: str, second: str, apart_s: float) -> None:
    story = play(*AT_WORK, (12, seen(11.9, over("90_0", first), pilot("90_1", "n2"))), config=ARRAY)
    story.turn(12.5, [ev.Submitted(0, ("91",))])
    later = pilot("90_1", "n2") if second == "RUNNING" else over("90_1", second)
    story.turn(12 + apart_s, [seen(11.9 + apart_s, over("90_0", first), later, queued("91"))])
    assert story.state.ending is None


# --- jobs that are about to end --------------------------------------------------------------------------------------

PREEMPTED = ev.JobLeaving("90_1", Cause.PREEMPTED, "Slurm sent SIGTERM to it")
BOTH = (pilot("90_0", "n1"), pilot("90_1", "n2"))


def test_a_preempted_pilot_is_left_and_requeued_once_unless_slurm_does_so_itself() -> None:
    story = play(*AT_WORK, (12, PREEMPTED), config=ARRAY)
    assert story.ids(msg.Stop) == [B0]
    story.turn(13, [ev.Ended(B0, code=143), seen(12.9, *BOTH)])
    assert story.records("step_exited")[-1]["cause"] == "preempted"
    assert story.ids(act.Launch)[-1] == B0  # not again in a job that is about to end
    story.wait(17.5)
    assert story.all(act.RequeueJob) == []
    story.turn(18.5, [seen(18.4, *BOTH)])
    story.turn(25.0, [seen(24.9, *BOTH)])
    assert story.all(act.RequeueJob) == [act.RequeueJob("90_1")]
    assert story.records("allocation_requeued") == [{"allocation": "90_1", "reason": "preempted"}]
    assert requests(story) == [FIRST]
    by_slurm = play(*AT_WORK, (12, PREEMPTED), (13, ev.Ended(B0, code=143)), config=ARRAY)
    by_slurm.turn(14, [seen(13.9, pilot("90_0", "n1"), queued("90_1", "BeginTime"))])
    by_slurm.wait(400)
    assert by_slurm.all(act.RequeueJob) == []
    assert requests(by_slurm) == [FIRST]


def causes(story: Story) -> dict[tuple[int, int], str]:
    """Return why each attempt of a group ended, as the journal says at last."""
    lines = (*story.records("step_exited"), *story.records("cause_corrected"))
    return {(line["group"], line["attempt"]): line["cause"] for line in lines}


SCANCEL = ev.TaskFailed(B0, Evidence(None, "n2", cause=Cause.CANCELLED, error="Slurm cancelled the step (scancel)"))
DRAWN = ev.TaskFailed(
    B0, Evidence(None, "n2", cause=Cause.PREEMPTED, error="Slurm cancelled the step due to preemption")
)


@pytest.mark.parametrize("sign", [SCANCEL, DRAWN], ids=["scancel", "preemption"])
@pytest.mark.parametrize("first", ["its pilot", "its step"])
def test_a_pilot_that_is_cancelled_says_only_sigterm_and_its_step_says_why(first: str, sign: ev.TaskFailed) -> None:
    words = (PREEMPTED, sign) if first == "its pilot" else (sign, PREEMPTED)
    at_12 = (12, words[0]), (12.1, words[1])
    story = play(
        *AT_WORK, *at_12, (12.3, ev.Ended(B0, 143), seen(12.2, BOTH[0], over("90_1", "COMPLETING"))), config=ARRAY
    )
    state = "CANCELLED" if sign is SCANCEL else "PREEMPTED"
    story.turn(14, [seen(13.9, BOTH[0], over("90_1", state))])
    assert len(story.records("step_exited")) == 1
    assert causes(story) == {(1, 0): state.lower()}


TERMED = ev.TaskFailed(B0, Evidence(0, "n2", code=143, cause=Cause.LEFT_ON_SIGTERM))
OF_STATES = {"CANCELLED": "cancelled", "TIMEOUT": "time_limit", "PREEMPTED": "preempted"}


@pytest.mark.parametrize("state", OF_STATES)
@pytest.mark.parametrize(
    "first", [[], [SCANCEL], [DRAWN], [TERMED], [PREEMPTED], [PREEMPTED, SCANCEL], [TERMED, PREEMPTED]]
)
@pytest.mark.parametrize("late_s", [-0.1, 0.0, 1.0, 100.0])
def test_an_end_has_the_cause_that_slurm_gives_its_job_if_it_says_so_soon(
    state: str, first: list[ev.Event], late_s: float
) -> None:
    said_at = 13 + late_s
    words, ends = seen(said_at - 0.05, BOTH[0], over("90_1", state)), ev.Ended(B0, 143)
    config = array_config(restart={"max_per_group": 1})
    moments = sorted([(12.0, *first), (13.0, ends), (said_at, words)], key=lambda moment: moment[0])
    story = play(*AT_WORK, *moments, config=config)
    corrected = story.records("cause_corrected")
    assert len(story.records("step_exited")) == 1  # at once, and once
    if late_s > queue.CORRECTS_S:
        assert corrected == []
        return
    assert causes(story) == {(1, 0): OF_STATES[state]}
    assert [line["was"] for line in corrected] == [story.records("step_exited")[0]["cause"]] * len(corrected)
    assert not corrected or late_s >= 0
    assert story.unit(B0).exits[-1].cause.value == OF_STATES[state]
    decision = judge([*story.unit(B0).exits, Exit(1, said_at, Cause.KILLED, ("n2",))], config.restart, 60.0)
    assert isinstance(decision, RestartAt)  # that end has cost no restart


def test_an_end_that_slurm_may_still_correct_gives_no_group_up() -> None:
    config = array_config(restart={"max_per_group": 1})
    ends = (Exit(0, 10.0, Cause.KILLED, ("n2",)), Exit(1, 12.0, Cause.LEFT_ON_SIGTERM, ("n2",)))
    assert isinstance(judge(ends, config.restart, 60.0), RestartAt)
    assert isinstance(judge([*ends, Exit(2, 13.0, Cause.KILLED, ("n2",))], config.restart, 60.0), GiveUp)


@pytest.mark.parametrize("first", ["its pilot", "squeue"])
def test_a_job_that_slurm_preempts_with_a_grace_time_is_not_taken_for_cancelled(first: str) -> None:
    """slurmstepd then reports the step as after scancel."""
    cut = replace(pilot("90_1", "n2", ends=15.0), began=1.0, preempted=True)
    words = [PREEMPTED, seen(12.1, BOTH[0], cut)]
    told = [(12 + i / 10, word) for i, word in enumerate(words if first == "its pilot" else words[::-1])]
    story = play(*AT_WORK, (11.9, SCANCEL), *told, (12.5, ev.Ended(B0, 143)), config=ARRAY)
    assert story.records("step_exited")[-1]["cause"] == "preempted"


def test_a_pilot_of_which_slurm_says_that_it_was_cancelled_was() -> None:
    story = play(*AT_WORK, (12, PREEMPTED), (12.2, seen(12.1, BOTH[0], over("90_1", "CANCELLED"))), config=ARRAY)
    story.turn(12.5, [ev.Ended(B0, 143)])
    assert story.records("step_exited")[-1]["cause"] == "cancelled"


def test_where_nothing_may_be_requeued_another_job_is_asked_for() -> None:
    never = array_config(cluster={"requeue": False})
    story = play(*AT_WORK, (12, PREEMPTED), (13, ev.Ended(B0, code=143)), config=never)
    assert requests(story) == [FIRST, act.RequestJobs(0, 1)]
    assert story.all(act.CancelJobs) == [act.CancelJobs(("90_1",))]
    assert story.all(act.RequeueJob) == []


def test_a_requeue_that_slurm_refuses_is_a_job_that_is_replaced() -> None:
    story = play(*AT_WORK, (12, PREEMPTED), (13, ev.Ended(B0, code=143)), config=ARRAY)
    story.turn(18.5, [seen(18.4, *BOTH)])
    story.turn(18.6, [ev.RequeueRefused("90_1", "there is no scontrol here")])
    assert requests(story) == [FIRST, act.RequestJobs(0, 1)]
    assert "there is no scontrol here" in story.records("allocation_lost")[-1]["reason"]
    assert story.all(act.CancelJobs) == [act.CancelJobs(("90_1",))]  # otherwise it would hold its nodes without use


# --- too few, too many, none -----------------------------------------------------------------------------------------


def test_a_refusal_is_told_once_and_asked_again_ever_more_rarely_until_it_is_granted() -> None:
    story = play((0, NO_NODES), (0.1, seen(0.0)), (0.5, ev.Submitted(0, ("90_0",))), config=ARRAY)
    story.turn(0.6, [seen(0.55, pilot("90_0", "n1"))])
    waits = []
    for n in range(1, 8):
        story.turn(story.now + 0.1, [ev.Submitted(0, (), "Invalid qos specification")])
        refused = story.now
        story.wait(refused + 301)
        assert len(requests(story)) == n + 2
        waits.append(max(time for time, action in story.done if isinstance(action, act.RequestJobs)) - refused)
        story.now = refused + waits[-1]
    assert [round(wait) for wait in waits] == [15, 30, 60, 120, 240, 300, 300]
    (told,) = story.records("allocation_refused")
    assert told == {"pool": 0, "reason": "Invalid qos specification", "again_s": 15.0}
    assert story.records("group_waits")[-1]["reason"] == "a job that sbatch refuses: Invalid qos specification"
    assert story.outcome() is None
    story.turn(story.now + 1, [ev.Submitted(0, ("92",))])
    asked = len(requests(story))
    story.wait(story.now + 200)
    assert len(requests(story)) == asked


def test_a_run_for_which_sbatch_refuses_every_job_fails_in_its_words() -> None:
    story = play((0, NO_NODES), (0.1, seen(0.0)), config=ARRAY)
    for _ in range(4):
        story.turn(story.now + 0.1, [ev.Submitted(0, (), "Invalid qos specification")])
        story.wait(story.now + 200)
    assert story.outcome() == "failed"
    assert "a job that sbatch refuses: Invalid qos specification" in story.reason()


def test_when_fewer_are_needed_those_that_wait_are_given_back_before_those_that_run() -> None:
    four = array_config(groups={"count": 4})
    jobs = (pilot("90_0", "n1"), pilot("90_1", "n2"), queued("90_2"), queued("90_3"))
    start: tuple[Moment, ...] = (
        (0, NO_NODES),
        (0.1, seen(0.0)),
        (0.5, ev.Submitted(0, tuple(job.name for job in jobs))),
        (1, LIGHTHOUSE_UP),
    )
    story = play(*start, (2.6, seen(2.5, *jobs)), (3, ev.Asked("scale", ANN, "c1", groups=3)), config=four)
    assert story.all(act.CancelJobs) == [act.CancelJobs(("90_3",))]
    story.turn(4, [ev.Asked("scale", ANN, "c1", groups=1)])
    story.turn(5, [ev.Ended(B0, code=143)])
    assert [names for action in story.all(act.CancelJobs) for names in action.names] == ["90_3", "90_2", "90_1"]
    assert story.state.groups[0].phase is Phase.STARTING


def test_a_group_that_has_finished_needs_its_job_no_more_and_gets_no_other() -> None:
    story = play(*AT_WORK, (12, finished(B0)), config=ARRAY)
    assert story.all(act.CancelJobs) == [act.CancelJobs(("90_1",))]
    story.turn(15, [seen(14.9, pilot("90_0", "n1"), over("90_1", "CANCELLED"))])
    story.wait(100)
    assert requests(story) == [FIRST]


def test_when_the_run_ends_no_job_is_asked_for_and_those_there_are_known() -> None:
    story = play(*AT_WORK, (12, stop()), (13, ev.Ended(A0, code=143), ev.Ended(B0, code=143)), config=ARRAY)
    assert requests(story) == [FIRST]
    assert left_at_the_end(story.state) == ("90_0", "90_1")


def test_tasks_of_an_array_submitted_by_hand_are_only_requeued_never_replaced() -> None:
    by_hand = array_config(internal={"pilots": "90"})
    story = play((0, NO_NODES), (0.1, seen(0.0, pilot("90_0", "n1"))), config=by_hand)
    story.wait(1000)
    assert requests(story) == []
    assert story.ids(act.Launch)[1:] == [A0]


def test_each_range_of_groups_has_its_own_jobs() -> None:
    ranged = array_config(groups={"count": 3}, cluster={"ranges": [Range("1-", partition="cheap")]})
    story = play((0, NO_NODES), (0.1, seen(0.0)), config=ranged)
    assert requests(story) == [act.RequestJobs(0, 1), act.RequestJobs(1, 2)]
    story.turn(0.5, [ev.Submitted(0, ("90",)), ev.Submitted(1, ("91_0", "91_1"))])
    cheap = pilot("91_0", "n2", pool=1)
    story.turn(2.6, [seen(2.5, queued("90"), cheap, queued("91_1", pool=1))])
    assert story.ids(act.Launch)[1:] == [B0]  # group 0 does not take a cheap node


# --- rate of requests to Slurm ---------------------------------------------------------------------------------------


def test_in_steady_state_slurm_is_asked_every_poll_s() -> None:
    story = play(*AT_WORK, config=ARRAY)
    for _ in range(5):
        story.wait(story.state.job_pool.next_poll + 0.01)
        story.turn(story.now + 0.1, [seen(story.now, *BOTH)])
    times = asked_at(story)[-5:]
    assert [round(b - a) for a, b in itertools.pairwise(times)] == [15] * 4


@pytest.mark.parametrize(("took_s", "wait"), [(0.01, 15.0), (2.0, 40.0), (60.0, 300.0)])
def test_a_slow_slurmctld_is_asked_more_rarely(took_s: float, wait: float) -> None:
    story = play(*AT_WORK, (20, seen(19.9 - took_s, *BOTH, took_s=took_s)), config=ARRAY)
    assert story.state.job_pool.next_poll == 20 + wait


def test_one_that_does_not_answer_is_asked_more_and_more_rarely() -> None:
    story = play(*AT_WORK, config=ARRAY)
    gaps = []
    for _ in range(6):
        story.wait(story.state.job_pool.next_poll + 0.01)
        story.turn(story.now + 5, [ev.JobsSeen((), story.now, 5.0, whole=False)])
        gaps.append(story.state.job_pool.next_poll - story.now)
    assert gaps[0] >= 15
    assert max(gaps) <= 300
    assert story.phases() == [Phase.RUNNING] * 2  # no group is judged for it


def test_an_answer_to_an_earlier_question_does_not_make_a_new_job_gone() -> None:
    story = play((0, NO_NODES), (0.1, seen(0.0)), (0.5, ev.Submitted(0, ("90_0", "90_1"))), config=ARRAY)
    story.turn(0.9, [seen(0.4)])  # asked before they were submitted
    story.wait(5)
    assert requests(story) == [FIRST]


def test_in_steps_mode_slurm_is_never_asked_as_long_as_no_job_is_needed() -> None:
    slurm = config(cluster={"kind": "slurm"})
    story = play(*RUNNING, (2000, stepped(A0, 900), stepped(B0, 900)), config=slurm)
    assert asked_at(story) == []
    assert requests(story) == []


def satellites(**cluster: object) -> Story:
    """Play two groups on n1 and n2 in steps mode without a spare; n2 is lost."""
    start: tuple[Moment, ...] = ((0, granted(2)), *STARTED[1:], (5, stepped(A0, 1), stepped(B0, 1)))
    lost = (12, node_lost(B0, "n2")), (12.1, ev.NodeFate("n2", True))
    return play(*start, *lost, config=config(cluster={"kind": "slurm", **cluster}))


def test_in_steps_mode_a_lost_node_without_a_spare_is_replaced_by_a_satellite() -> None:
    story = satellites()
    assert requests(story) == [act.RequestJobs(0, 1, ("n2",))]
    story.turn(13, [ev.Submitted(0, ("95",))])
    story.wait(16)
    assert asked_at(story) != []
    story.turn(16, [seen(15.9, pilot("95", "n9"))])
    assert story.ids(act.Launch)[-1] == B1
    assert story.records("step_launched")[-1]["allocation"] == "95"
    story.turn(17, ready(B1, "n9"))
    story.turn(18, [store(B1)])
    story.turn(19, [stepped(B1, 30)])
    assert story.unit(B1).joined
    story.wait(1000)
    assert requests(story) == [act.RequestJobs(0, 1, ("n2",))]


def test_a_satellite_that_never_starts_leaves_the_others_alone() -> None:
    story = satellites()
    story.turn(13, [ev.Submitted(0, ("95",))])
    for t in range(20, 3000, 40):
        story.wait(t)
        story.turn(t, [seen(t - 0.1, queued("95", "ReqNodeNotAvail"))])
    assert requests(story) == [act.RequestJobs(0, 1, ("n2",))]
    assert story.outcome() is None
    assert story.unit(A0).phase is Phase.RUNNING
    assert "ReqNodeNotAvail" in str(story.state.groups[1].waits_for)


def test_a_satellite_that_waits_may_have_the_lost_node_once_slurm_knows_of_its_loss() -> None:
    story = satellites()
    story.turn(13, [ev.Submitted(0, ("95",))])
    story.turn(16, [seen(15.9, queued("95", "Resources"))])
    story.turn(57, [ev.NodesLeft(("n1",))])
    assert story.all(act.Exclude) == [act.Exclude("95", ())]
    story.turn(80, [seen(79.9, pilot("95", "n2"))])  # it is back: Slurm gives out none that is down
    assert story.ids(act.Launch)[-1] == B1
    assert story.records("node_restored")[-1]["node"] == "n2"
    assert story.all(act.CancelJobs) == []


def spares(*moments: Moment, until: float, **cluster: object) -> Story:
    """Play two groups on n1 and n2 with a spare n3 in steps mode; n2 is lost at 12, and B moves to n3."""
    start: tuple[Moment, ...] = ((0, granted(3)), *STARTED[1:], (5, stepped(A0, 1), stepped(B0, 1)))
    settings = config(cluster={"kind": "slurm", "spare_nodes": 1, **cluster})
    back: tuple[Moment, ...] = ((14, ready(B1, "n3")), (15, store(B1)), (16, stepped(B1, 30)))
    return play(*start, (12, node_lost(B0, "n2")), *back, *moments, (until,), config=settings)


TAKEN_OUT = ev.NodesLeft(("n1", "n3"))


def test_a_spare_node_that_was_used_up_is_asked_for_again() -> None:
    assert requests(spares(until=13.0)) == [act.RequestJobs(0, 1, ("n2",))]  # Slurm may not know that it is lost


def test_a_job_that_was_just_asked_for_may_have_the_lost_node_too_once_slurm_knows_of_its_loss() -> None:
    story = spares((12.5, TAKEN_OUT), (13, ev.Submitted(0, ("95",))), until=14)
    assert requests(story) == [act.RequestJobs(0, 1, ("n2",))]
    assert story.all(act.Exclude) == [act.Exclude("95", ())]
    assert not spares((13, ev.Submitted(0, ("95",))), until=14).all(act.Exclude)  # nothing has changed


def test_a_spare_is_asked_for_once_and_given_back_when_the_lost_node_returns() -> None:
    story = spares((73, ev.Submitted(0, ("95",))), (76, seen(75.9, queued("95"))), until=77)
    assert len(requests(story)) == 1
    story.turn(105, [ev.Looked("n2", True)])
    assert story.all(act.CancelJobs) == [act.CancelJobs(("95",))]
    story.wait(1000)
    assert len(requests(story)) == 1


def test_the_next_lost_group_takes_the_new_spare_which_is_replaced_too() -> None:
    given = (31, ev.Submitted(0, ("95",))), (34, seen(33.9, pilot("95", "n2")))
    story = spares((30, TAKEN_OUT), *given, until=40)
    assert story.records("node_restored")[-1]["node"] == "n2"
    story.turn(50, node_lost(B1, "n3"))
    story.turn(50.1, [ev.NodeFate("n3", True)])
    assert story.records("step_launched")[-1].items() >= {"attempt": 2, "nodes": ["n2"], "allocation": "95"}.items()
    assert requests(story) == [act.RequestJobs(0, 1, ("n2",)), act.RequestJobs(0, 1, ("n3",))]


@pytest.mark.parametrize("cluster", [{"requeue": False}, {"spare_nodes": 0}])
def test_no_spare_is_asked_for_that_nobody_wanted(cluster: dict[str, object]) -> None:
    assert requests(spares((30, TAKEN_OUT), until=1000, **cluster)) == []


def test_a_wide_group_that_lost_a_node_gets_a_job_of_its_width() -> None:
    up = [(2, ready(A0, "n1", "n2"), ready(B0, "n3", "n4")), (3, store(A0), store(B0)), (5, stepped(A0, 1))]
    settings = config(cluster={"kind": "slurm", "spare_nodes": 2}, groups={"nodes": 2})
    out = ev.NodesLeft(("n1", "n2", "n3", "n5", "n6"))
    story = play((0, granted(6)), STARTED[1], *up, (12, node_lost(B0, "n4")), (30, out), (31,), config=settings)
    assert requests(story) == [act.RequestJobs(0, 1, ("n4",))]


def test_where_nothing_is_requeued_none_is_asked_for_in_steps_mode() -> None:
    story = satellites(requeue=False)
    story.wait(1000)
    assert requests(story) == []
    assert asked_at(story) == []
    assert story.records("group_waits")[-1]["reason"] == "a free node: n2 left out"


def test_a_step_ended_by_others_makes_slurm_be_asked_and_its_job_is_not_used() -> None:
    story = play(*AT_WORK, config=ARRAY)
    before = len(asked_at(story))
    story.turn(11, [ev.Ended(B0, code=1, launcher_failed=True)])
    assert asked_at(story)[before:] == [11]
    story.wait(12.9)
    assert story.ids(act.Launch)[-1] == B0
    story.turn(13, [seen(12.9, *BOTH)])  # it runs: only the step was cancelled
    story.wait(15)
    assert story.ids(act.Launch)[-1] == B1
    assert requests(story) == [FIRST]
    assert A1 not in story.ids(act.Launch)


def test_a_standby_has_its_own_job_and_never_sits_beside_a_group() -> None:
    settings = array_config(standby={"count": 1})
    story = play((0, NO_NODES), (0.1, ev.JobsSeen((), asked=0.0)), config=settings)
    assert story.all(act.RequestJobs) == [act.RequestJobs(0, 3)]
    story.turn(0.5, [ev.Submitted(0, ("90_0", "90_1", "90_2"))])
    story.turn(1, [ev.JobsSeen((pilot("90_0", "n1"), pilot("90_1", "n1")), 0.9, whole=False)])
    assert [launch.id.unit for launch in story.all(act.Launch)] == ["lighthouse", "group-0000", "group-0001"]
    story.turn(2, [ev.JobsSeen((pilot("90_2", "n1"),), 1.9, whole=False)])
    assert story.all(act.Launch)[-1].place.allocation == "90_2"
    assert story.all(act.Launch)[-1].id.unit == "standby-000"


def test_a_job_that_is_first_seen_running_is_granted_and_has_a_beginning_and_an_end() -> None:
    story = play((0, NO_NODES), (5, seen(4.9, pilot("90_0", "n1", ends=1000.0))), config=ARRAY)
    (granted_,) = story.records("allocation_granted")
    assert (granted_["allocation"], granted_["nodes"], granted_["ends"]) == ("90_0", ["n1"], 1000.0)
    (one,) = story.state.job_pool.jobs
    assert (one.began, one.ends) == (5, 1000.0)


def test_a_job_requeued_to_its_node_between_two_looks_is_granted_anew() -> None:
    first, second = (replace(pilot("90_0", "n1", ends=1000.0), began=began) for began in (4.0, 60.0))
    story = play((0, NO_NODES), (5, seen(4.9, first)), (70, seen(69.9, second)), config=ARRAY)
    assert len(story.records("allocation_granted")) == 2


@pytest.mark.parametrize(
    ("other", "ends"),
    [
        (queued("90_1", "Priority"), False),
        (over("90_1", "COMPLETING"), False),  # it may come back to the queue
        (over("90_1", "FAILED"), True),
    ],
)
def test_a_run_ends_without_enough_tasks_of_an_array_submitted_by_hand(other: Job, ends: bool) -> None:
    by_hand = array_config(internal={"pilots": "90"}, groups={"min": 2})
    story = play((0, NO_NODES), (0.1, seen(0.0, pilot("90_0", "n1"), other)), config=by_hand)
    for time in (3, 20):
        assert story.state.ending is None
        story.turn(time, [seen(time - 0.5, pilot("90_0", "n1"), other)])
    assert (story.state.ending is not None) == ends
    if story.state.ending is not None:
        assert "a task of the array, of which none is left" in story.state.ending.reason


def test_a_group_that_was_scaled_away_is_not_missed_where_no_job_can_come() -> None:
    by_hand = array_config(internal={"pilots": "90"})
    alone = pilot("90_0", "n1"), over("90_1", "CANCELLED")
    story = play(*AT_WORK, (12, seen(11.9, *alone)), (13, ev.Ended(B0, code=143), stepped(A0, 12)), config=by_hand)
    story.turn(18, [stepped(A0, 17)])
    assert story.state.ending is None
    story.turn(24, [ev.Asked("scale", ANN, "c1", groups=1), stepped(A0, 23)])
    assert story.state.ending is None
    assert story.phases()[0] is Phase.RUNNING


def test_a_node_without_the_run_directory_is_left_out_once_and_a_user_may_take_it_back() -> None:
    no_output = Job("90_0", state="FAILED", nodes=("n1",))
    story = play(*ASKED_FOR, (2.6, seen(2.5, pilot("90_0", "n1"), pilot("90_1", "n2"))), config=ARRAY)
    story.turn(5, [seen(4.9, no_output, pilot("90_1", "n2"))])
    assert story.state.nodes.out(Out.UNFIT) == {"n1"}
    story.turn(6, [ev.Asked("undrain", ANN, "c1", node="n1")])
    story.turn(8, [seen(7.9, no_output, pilot("90_1", "n2"))])  # squeue shows it for minutes
    assert story.state.nodes.out(Out.UNFIT) == set()
    unknown = play(*ASKED_FOR, (2.6, seen(2.5, Job("89", state="FAILED", nodes=("n3",)))), config=ARRAY)
    assert unknown.state.nodes.out(Out.UNFIT) == set()  # an earlier controller has judged it


@pytest.mark.parametrize("order", ["oldest first", "newest first"])
def test_each_group_waits_for_a_job_of_its_own_and_another_one_that_starts_changes_little(order: str) -> None:
    count = 20
    names = tuple(f"90_{n}" for n in range(count))
    starts = names if order == "oldest first" else names[::-1]
    moments: list[Moment] = [*ASKED_FOR[:2], (0.5, ev.Submitted(0, names))]
    for n in range(count + 1):
        jobs = [pilot(x, f"n{x}") if x in starts[:n] else queued(x, "Resources") for x in names]
        moments.append((3 + n, ev.JobsSeen(tuple(jobs), asked=2.5 + n)))
    told = play(*moments, config=array_config(groups={"count": count})).records("group_waits")
    waits = [record for record in told if record["allocation"] is not None]
    assert {record["allocation"] for record in waits} == set(names)
    if order == "oldest first":
        assert len(told) <= 3 * count
