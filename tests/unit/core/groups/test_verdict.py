"""The cause of a step's end: evidence in, cause out."""

from __future__ import annotations

import pytest
from immutables import Map

from ftslurm.controller.translate import classified
from ftslurm.core.groups.verdict import LONGEST, classify, describe, signal_name
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Attempt, Evidence, Exit, Phase, Place, Pulse, StepId, Unit, replace
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.traces import Traces

STEP = StepId("group-0001", 2)


def unit(*evidence: Evidence, **fields: object) -> Unit:
    evidence = tuple(map(classified, evidence))
    known = {"phase": Phase.STOPPING if evidence else Phase.RUNNING, "attempt": 2, "place": Place(("n1", "n2"))}
    return Unit("group-0001", 1, **known, current=Attempt(**{"assigned": True, "evidence": evidence, **fields}))  # type: ignore[arg-type]


def ended(code: int | None = 1, signal: int | None = None, **fields: object) -> ev.Ended:
    return ev.Ended(STEP, code, signal, **fields)  # type: ignore[arg-type]


RAISED = Evidence(0, "n1", code=1, error="ValueError: no such layer")
ECC = Evidence(2, "n2", code=1, error="RuntimeError: CUDA error: uncorrectable ECC error encountered")
BUS = "GPU 0000:3b:00 (/dev/nvidia3): XID 79, the GPU has fallen off the bus"
LOST_GPU = Evidence(2, "n2", signal=6, error="its log says: terminate called", hardware=BUS)
HUNG = Evidence(1, "n1", cause=Cause.HANG, error="no step for 600 s")
ECHO = Evidence(0, "n1", code=1, error="RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]")
ECHO_OF_NCCL = Evidence(0, "n1", signal=6, error="its log says: what(): NCCL error: ncclRemoteError: A call failed")
RAISED_LATER = Evidence(4, "n2", code=1, error="ValueError: no such layer")
EXITED = Evidence(3, "n2", code=3)
KILLED = Evidence(1, "n1", signal=9)
MEMORY = Evidence(2, "n2", out_of_memory=True, error="Out Of Memory")
GUARD_MEMORY = Evidence(2, "n2", signal=9, out_of_memory=True)
NODE = Evidence(None, "n2", node_lost=True, error="srun: error: Node failure on n2")
UNBORN = Evidence(3, "n2", code=1, error="ModuleNotFoundError: No module named 'torchft'", started=False)


@pytest.mark.parametrize(
    ("evidence", "launcher", "cause", "node", "rank"),
    [
        # The launcher's exit code only counts when there is no better evidence.
        ((), ended(0), Cause.UNKNOWN, None, None),  # srun, if slurmctld restarts and the node dies: 1 in 2
        ((), ended(None, 9), Cause.KILLED, None, None),
        ((), ended(137), Cause.UNKNOWN, None, None),
        ((), ended(None, launcher_failed=True), Cause.START_FAILED, None, None),
        (
            (),
            ended(78, launcher_failed=True, error="srun: error: Unable to create step"),
            Cause.START_FAILED,
            None,
            None,
        ),
        # One sign; srun says 137, 143 or 1 whatever it was, and 0 if only the rank that failed was told of.
        ((RAISED,), ended(137), Cause.USER_ERROR, "n1", 0),
        ((EXITED,), ended(0), Cause.USER_ERROR, "n2", 3),
        ((KILLED,), ended(143), Cause.KILLED, "n1", 1),
        ((MEMORY,), ended(1), Cause.OUT_OF_MEMORY, "n2", 2),
        ((GUARD_MEMORY,), ended(137), Cause.OUT_OF_MEMORY, "n2", 2),
        ((NODE,), ended(137), Cause.NODE_LOST, "n2", None),
        ((UNBORN,), ended(1), Cause.START_FAILED, "n2", 3),
        # Several: a killed rank makes its siblings raise, and the order of their messages is chance.
        ((RAISED, KILLED), ended(137), Cause.KILLED, "n1", 1),
        ((KILLED, RAISED), ended(137), Cause.KILLED, "n1", 1),
        ((RAISED, KILLED, MEMORY), ended(1), Cause.OUT_OF_MEMORY, "n2", 2),
        ((RAISED, KILLED, MEMORY, NODE), ended(1), Cause.NODE_LOST, "n2", None),
        ((EXITED, RAISED), ended(1), Cause.USER_ERROR, "n1", 0),
        # Broken hardware explains whatever its rank and the others do; what a guard has seen is more exact.
        ((ECC,), ended(1), Cause.HARDWARE, "n2", 2),
        ((RAISED, KILLED, MEMORY, ECC), ended(1), Cause.HARDWARE, "n2", 2),
        ((ECC, LOST_GPU), ended(1), Cause.HARDWARE, "n2", 2),
        ((HUNG, LOST_GPU), ended(1), Cause.HARDWARE, "n2", 2),
        ((LOST_GPU, NODE), ended(1), Cause.NODE_LOST, "n2", None),
        # A rank that has only lost a connection comes after every other, whoever was first.
        ((ECHO, RAISED_LATER), ended(1), Cause.USER_ERROR, "n2", 4),
        ((ECHO_OF_NCCL, RAISED_LATER), ended(1), Cause.USER_ERROR, "n2", 4),
        ((ECHO, EXITED), ended(1), Cause.USER_ERROR, "n2", 3),
        ((ECHO_OF_NCCL,), ended(1), Cause.NETWORK, "n1", 0),
        ((ECHO_OF_NCCL, KILLED), ended(1), Cause.KILLED, "n1", 1),
        ((RAISED, EXITED), ended(1), Cause.USER_ERROR, "n1", 0),
    ],
)
def test_strong_evidence_goes_before_weak_and_all_evidence_before_the_exit_code(
    evidence: tuple[Evidence, ...], launcher: ev.Ended, cause: Cause, node: str | None, rank: int | None
) -> None:
    verdict = classify(unit(*evidence), launcher, 4, 50.0)
    assert (verdict.cause, verdict.node, verdict.rank) == (cause, node, rank)


@pytest.mark.parametrize("intent", [Cause.CANCELLED, Cause.TIME_LIMIT, Cause.START_TIMEOUT])
@pytest.mark.parametrize("launcher", [ended(0), ended(143), ended(None, 9)])
def test_what_we_ended_ourselves_ends_of_that_whatever_else_is_seen(intent: Cause, launcher: ev.Ended) -> None:
    assert classify(unit(KILLED, intent=intent), launcher, 4, 50.0).cause is intent


def test_tasks_that_all_ended_with_0_succeeded_even_if_the_launcher_then_failed() -> None:
    assert classify(unit(done=frozenset({0, 1})), ended(1), 2, 50.0).cause is Cause.OK
    assert classify(unit(done=frozenset({0})), ended(1), 2, 50.0).cause is Cause.UNKNOWN


def test_the_verdict_carries_all_that_was_seen() -> None:
    verdict = classify(unit(RAISED, step=41), ended(137), 4, 50.0)
    assert verdict == Exit(
        attempt=2,
        time=50.0,
        cause=Cause.USER_ERROR,
        nodes=("n1", "n2"),
        code=1,
        signal=None,
        node="n1",
        rank=0,
        error="ValueError: no such layer",
        step=41,
    )


def test_a_killed_rank_does_not_borrow_what_is_only_the_echo_of_its_death() -> None:
    echo = "RuntimeError: [/torch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [n1]:4"
    dead = unit(Evidence(1, "n1", signal=9), Evidence(0, "n1", code=1, error=echo))
    assert classify(dead, ended(137), 4, 50.0).error is None


def test_a_killed_rank_borrows_the_words_of_the_sibling_that_raised() -> None:
    assert classify(unit(KILLED, RAISED), ended(137), 4, 50.0).error == "ValueError: no such layer"


def test_the_launchers_own_words_are_kept_when_nobody_else_spoke() -> None:
    verdict = classify(unit(), ended(78, error="srun: error: Unable to create step", launcher_failed=True), 4, 50.0)
    assert (verdict.code, verdict.error) == (78, "srun: error: Unable to create step")


@pytest.mark.parametrize(("traces", "length"), [(((0, "Traceback ..."),), LONGEST), ((), 300)])
def test_a_long_error_is_cut_if_its_traceback_is_recorded(traces: Traces, length: int) -> None:
    raised = Evidence(0, "n1", code=1, error="ValueError: " + "x" * 288)
    error = classify(unit(raised, traces=traces), ended(1), 4, 50.0).error
    assert error is not None
    assert len(error) == length


def test_the_traceback_of_the_rank_that_decides_is_told() -> None:
    traces = ((0, "Traceback\nRuntimeError: Connection closed by peer"), (4, "Traceback\nValueError: no such layer"))
    told = classify(unit(ECHO, RAISED_LATER, traces=traces), ended(1), 8, 50.0).traceback
    assert told is not None
    assert told == "Traceback\nValueError: no such layer"


@pytest.mark.parametrize(
    ("told", "pulses", "reached"),
    [
        pytest.param(7, (12, None, 11), 12, id="a guard has seen more than was reported"),
        pytest.param(7, (None, 6), 7, id="a sign of life is older"),
        pytest.param(7, (), 7, id="nobody has said more"),
        pytest.param(None, (40,), None, id="it has healed, and committed nothing"),
    ],
)
def test_a_group_has_reached_the_newest_step_that_anybody_has_told(
    told: int | None, pulses: tuple[int | None, ...], reached: int | None
) -> None:
    seen = tuple(Pulse(1.0, step=step) for step in pulses)
    assert classify(replace(unit(KILLED, step=told), pulses=(*seen, None)), ended(137), 4, 50.0).step == reached


@pytest.mark.parametrize("name", ["lighthouse", "standby-000"])
@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_what_has_been_up_and_ends_has_not_failed_to_start(name: str, up: bool, known: bool) -> None:
    evidence = (Evidence(0, "n1", code=79, error="its guard has left"),) if known else ()
    current = Attempt(evidence=evidence, ready=Map({0: ""} if up else {}))
    one = Unit(name, None, phase=Phase.STOPPING, attempt=0, place=Place(("n1",)), current=current)
    assert classify(one, ended(79), 1, 50.0).cause is (Cause.UNKNOWN if up else Cause.START_FAILED)


def test_a_success_has_no_error() -> None:
    whole = unit(done=frozenset(range(4)))
    assert classify(whole, ended(0, error="srun: a warning"), 4, 50.0).error is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cause": Cause.KILLED, "signal": 9, "node": "n2"}, "killed (signal 9) on n2"),
        ({"cause": Cause.KILLED, "signal": 63}, "killed (signal 63)"),
        ({"cause": Cause.KILLED}, "killed"),
        (
            {"cause": Cause.KILLED, "signal": 6, "error": "its log says: what():  boom"},
            "killed (signal 6): its log says: what():  boom",
        ),
        ({"cause": Cause.USER_ERROR, "error": "ValueError: x", "node": "n1"}, "the script failed on n1: ValueError: x"),
        ({"cause": Cause.USER_ERROR, "code": 3}, "the script failed (exit code 3)"),
        ({"cause": Cause.OUT_OF_MEMORY, "node": "n2", "error": "Out Of Memory"}, "out of memory on n2: Out Of Memory"),
        ({"cause": Cause.OUT_OF_MEMORY, "signal": 9}, "out of memory"),
        ({"cause": Cause.START_TIMEOUT}, "took too long to start"),
    ],
)
def test_the_verdict_in_a_few_words(fields: dict[str, object], words: str) -> None:
    assert describe(Exit(attempt=0, time=0.0, nodes=("n1",), **fields)) == words  # type: ignore[arg-type]


def test_signals_have_their_names() -> None:
    assert [signal_name(n) for n in (9, 11, 15, 63)] == ["SIGKILL", "SIGSEGV", "SIGTERM", "signal 63"]


def test_what_ends_with_0_before_it_was_told_who_it_is_was_not_the_script() -> None:
    assert classify(unit(assigned=False), ended(0), 4, 50.0).cause is Cause.START_FAILED


def test_a_gpu_that_is_lost_explains_a_hang_but_no_end_that_was_ordered() -> None:
    hung = classify(unit(HUNG, LOST_GPU, intent=Cause.HANG), ended(137), tasks=4, now=100.0)
    assert (hung.cause, hung.node, hung.rank, hung.error) == (Cause.HARDWARE, "n2", 2, BUS)
    assert describe(hung) == f"broken hardware on n2, rank 2: {BUS}"
    for order in (Cause.CANCELLED, Cause.REQUESTED, Cause.PREEMPTED):
        assert classify(unit(LOST_GPU, intent=order), ended(137), tasks=4, now=100.0).cause is order
