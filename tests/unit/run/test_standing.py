"""How a run stands, as a table; and that nothing follows from what Slurm does not say, or says in unknown words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.protocol.job_states import TABLE
from ftslurm.protocol.records import RunFinished
from ftslurm.protocol.run_states import GOING, OVER
from ftslurm.run.standing import Facts, Standing, standing
from ftslurm.slurm.parse import QueuedJob


def jobs(**states: str) -> tuple[QueuedJob, ...]:
    """Return jobs by name, as j81="RUNNING"."""
    return tuple(QueuedJob(name[1:], name[1:], state, "", "me", "mark", "") for name, state in states.items())


def ended(outcome: str, reason: str = "why") -> RunFinished:
    return RunFinished(outcome=outcome, reason=reason, steps=0, restarts=0)


LOCAL = Facts("local", job="4711")
QUEUED = Facts(job="81", answered=True)  # its controller has not begun
BEGUN = replace(QUEUED, begun=True, silent_s=None)
ARRAY = replace(BEGUN, kind="array")
CASES = {
    "never submitted": (Facts(), "lost"),
    "is submitted": (Facts(new=True), "waiting"),
    "local, starts": (replace(LOCAL, lives=True), "waiting"),
    "local, ended at once": (LOCAL, "failed"),
    "local, trains": (replace(LOCAL, begun=True, lives=True, silent_s=None), "running"),
    "local, silent": (replace(LOCAL, begun=True, lives=True, silent_s=40.0), "silent"),
    "local, gone": (replace(LOCAL, begun=True, silent_s=None), "lost"),
    "local, elsewhere": (replace(LOCAL, begun=True, host="n1", silent_s=None), "running"),
    "in the queue": (replace(QUEUED, jobs=jobs(j81="PENDING")), "waiting"),
    "begins": (replace(QUEUED, jobs=jobs(j81="RUNNING")), "waiting"),
    "ends before it begins": (replace(QUEUED, jobs=jobs(j81="COMPLETING")), "waiting"),
    "cancelled in the queue": (replace(QUEUED, jobs=jobs(j81="CANCELLED")), "stopped"),
    "forgotten": (QUEUED, "stopped"),
    "cancelled, but it had begun": (replace(QUEUED, jobs=jobs(j81="CANCELLED"), log=""), "failed"),
    "failed before it begins": (replace(QUEUED, jobs=jobs(j81="NODE_FAIL")), "failed"),
    "not answered": (replace(QUEUED, answered=False), "unknown"),
    "trains": (replace(BEGUN, jobs=jobs(j81="RUNNING")), "running"),
    "a pilot outlives it": (replace(BEGUN, jobs=jobs(j81="FAILED", j82="RUNNING")), "lost"),
    "requeued by Slurm": (replace(BEGUN, jobs=jobs(j81="PENDING", j82="RUNNING"), silent_s=40.0), "waiting"),
    "heard after Slurm was asked": (replace(BEGUN, jobs=jobs(j81="PENDING")), "running"),
    "requeued": (replace(BEGUN, jobs=jobs(j81="COMPLETING"), requeued=True), "waiting"),
    "requeued, not answered": (replace(BEGUN, answered=False, requeued=True), "unknown"),
    "silent": (replace(BEGUN, jobs=jobs(j81="RUNNING"), silent_s=40.0), "silent"),
    "array, a pilot leads": (replace(ARRAY, jobs=jobs(j81="FAILED", j82="RUNNING")), "running"),
    "array, nobody is asked": (replace(ARRAY, answered=False), "running"),
    "array, nobody leads": (replace(ARRAY, jobs=jobs(j81="PENDING", j82="RUNNING"), silent_s=40.0), "silent"),
    "array, all wait": (replace(ARRAY, jobs=jobs(j81="PENDING", j82="PENDING"), silent_s=40.0), "waiting"),
    "array, all gone": (replace(ARRAY, jobs=jobs(j81="FAILED"), silent_s=40.0), "lost"),
    "an outcome nobody knows": (replace(BEGUN, end=ended("exploded")), "failed"),
    "stopped, and Slurm starts it again": (replace(BEGUN, end=ended("stopped"), jobs=jobs(j81="PENDING")), "waiting"),
    "failed, and its job waits": (replace(BEGUN, end=ended("failed"), jobs=jobs(j81="PENDING")), "failed"),
    **{end: (replace(BEGUN, end=ended(end)), end) for end in OVER},
}


@pytest.mark.parametrize(("facts", "state"), CASES.values(), ids=CASES)
def test_it_stands(facts: Facts, state: str) -> None:
    found = standing(facts)
    assert found.state == state
    assert found.over == (facts.end is not None and state in OVER)
    assert found.note or state == "running"


def test_what_of_a_run_that_is_over_may_be_left() -> None:
    over = replace(BEGUN, end=ended("succeeded"))
    assert standing(over).left == "its controller was there until now"
    gone = replace(over, silent_s=90.0)
    assert standing(gone).left is None
    assert standing(replace(gone, jobs=jobs(j82="COMPLETING"))).left == "a Slurm job of it may be left"
    assert standing(replace(gone, answered=False)).left == "a Slurm job of it may be left"
    assert standing(replace(gone, answered=False, kind="local")).left is None


def test_a_complaint_is_told_while_it_trains_and_as_the_last_word() -> None:
    trains = replace(LOCAL, begun=True, lives=True, silent_s=None, complaint="the disk is full")
    assert standing(trains) == Standing("running", "the disk is full")
    assert (standing(replace(trains, lives=False)).why or "").endswith("; its last word: the disk is full")


def test_why_a_controller_is_silent_is_told_if_slurm_knows_it() -> None:
    silent = replace(BEGUN, jobs=jobs(j81="SUSPENDED"), silent_s=40.0)
    assert standing(silent).why == "its controller has not been heard for 40 s: Slurm job 81 is SUSPENDED"
    assert standing(replace(silent, jobs=jobs(j81="RUNNING"))).why == "its controller has not been heard for 40 s"


UNKNOWN = st.text(min_size=1, max_size=20).filter(lambda text: text not in TABLE)
ANY = st.builds(
    Facts,
    kind=st.sampled_from(["slurm", "array"]),
    begun=st.booleans(),
    requeued=st.booleans(),
    job=st.just("81"),
    silent_s=st.sampled_from([None, 40.0]),
    log=st.none() | st.text(max_size=5),
)


@given(ANY, UNKNOWN, st.booleans())
def test_a_state_that_nobody_knows_ends_no_run(facts: Facts, state: str, answered: bool) -> None:
    found = standing(replace(facts, jobs=jobs(j81=state), answered=answered))
    assert found.state in GOING
    assert found.state == "unknown" or (facts.begun and not facts.requeued)


@given(ANY, st.lists(st.sampled_from([*TABLE])))
def test_without_an_answer_no_run_is_gone(facts: Facts, states: list[str]) -> None:
    """Also if some of its jobs are seen to have ended: the rest of the answer is missing."""
    seen = jobs(**{f"j{81 + number}": state for number, state in enumerate(states)})
    assert standing(replace(facts, jobs=seen, answered=False)).state in GOING


@pytest.mark.parametrize("state", TABLE)
def test_each_state_of_slurm_means_one_thing_before_and_after_the_start(state: str) -> None:
    before = standing(replace(QUEUED, jobs=jobs(j81=state)))
    after = standing(replace(BEGUN, jobs=jobs(j81=state), silent_s=40.0))
    if TABLE[state].ends:
        assert (before.never, after.state) == (True, "lost")
    else:
        assert (before.state, after.state) == ("waiting", "waiting" if TABLE[state].waits else "silent")
