"""Classify why a step ended, from the evidence; srun's exit code alone means little, since it is mostly 137."""

from __future__ import annotations

import re
import signal

from ftslurm.core.state.events import LAST_LINE, SRUN_ABORTS, Ended
from ftslurm.core.state.model import Cause, Evidence, Exit, Phase, Unit


def classify(unit: Unit, ended: Ended, tasks: int, now: float, lighthouse_away: bool = False) -> Exit:
    """Return the verdict on the step of `unit` that has just ended.

    The strongest evidence decides: a lost node, a task killed for memory, a task killed by a signal, an exception, in
    this order. A killed rank makes the other ranks raise, and their reports arrive in random order.

    Args:
        tasks: how many tasks the step had.
        lighthouse_away: whether the Lighthouse was down a moment ago.
    """
    best = min(unit.current.evidence, key=_strength, default=None)
    cause = _cause(unit, ended, best, tasks)
    if cause is Cause.USER_ERROR and lighthouse_away and best is not None and _LIGHTHOUSE.search(best.error or ""):
        cause = Cause.LIGHTHOUSE_LOST
    asked = unit.current.recalled if cause is Cause.REQUESTED else None
    launcher = cause is Cause.START_FAILED or (cause is Cause.KILLED and best is None)  # srun itself is the reason
    if best is None or cause in (Cause.OK, Cause.REQUESTED, Cause.CANCELLED, Cause.TIME_LIMIT, Cause.START_TIMEOUT):
        best = Evidence(None, None, code=ended.code, signal=ended.signal)
    return Exit(
        attempt=unit.attempt,
        time=now,
        cause=cause,
        nodes=unit.place.nodes if unit.place else (),
        code=best.code,
        signal=best.signal,
        node=best.node,
        rank=best.task,
        error=asked
        or _quoted(best, unit.current.traceback)
        or _said(unit.current.evidence)
        or (ended.error if launcher else None),
        step=unit.current.step,
        launched=not ended.launcher_failed,
        healthy_s=0.0 if unit.marks.joined is None else round(now - unit.marks.joined, 3),
        traceback="\n".join(unit.current.traceback.splitlines()[-TRACEBACK_LINES:]) or None,
        ran_as=unit.current.ran_as,
    )


# What torchft 0.2.0 raises when the Lighthouse does not answer: a gRPC status, or its own message for a failed dial.
_LIGHTHOUSE = re.compile(r"(?i)lighthouse|failed to connect to http|status: (Cancelled|Unavailable|DeadlineExceeded)")
TRACEBACK_LINES = 20
LONGEST = 120  # characters of an exception in `step_exited`


def _cause(unit: Unit, ended: Ended, best: Evidence | None, tasks: int) -> Cause:
    if unit.current.intent is not None:
        return unit.current.intent  # also if it exits with 0 after SIGTERM: that is no success
    if best is None:
        if len(unit.current.done) == tasks or (ended.code == 0 and unit.current.assigned):
            return Cause.OK
        if ended.signal is not None:
            return Cause.KILLED
        if ended.launcher_failed or not unit.current.assigned:
            return Cause.START_FAILED  # the script had not started
        return Cause.UNKNOWN
    if best.node_lost:
        return Cause.NODE_LOST
    if best.cause is not None:
        return best.cause
    if best.out_of_memory:
        return Cause.OUT_OF_MEMORY
    if best.signal is not None:
        return Cause.KILLED
    if aborts(best):
        return Cause.UNKNOWN
    return Cause.USER_ERROR if best.started and unit.current.assigned else Cause.START_FAILED


def _strength(evidence: Evidence) -> int:
    if evidence.node_lost or evidence.cause is not None:
        return 0
    if evidence.out_of_memory:
        return 1
    if evidence.signal is not None:
        return 2
    return 3 if evidence.error is not None else 4  # of equal ones the first to arrive wins


# Errors that ranks raise because a peer has died (Gloo, NCCL, TCPStore, sockets): not the cause of the failure.
_ECHO = re.compile(
    r"(?i)connection (was likely )?(closed|reset|refused|aborted)|broken pipe|read error|transport error|"
    r"connectFullMesh|(recv, got|send, sent) 0 bytes|nccl(Remote|System)Error|unhandled system error|"
    r"remote process (exit|has terminated)|"
    r"timed out waiting \d+ ?ms for (recv|send)|"
    rf"{SRUN_ABORTS}"
)
WORDS_S = 0.1  # a killed rank's guard reports within this time of the other ranks' errors


def _quoted(evidence: Evidence, traceback: str) -> str | None:
    """Return the error; of an exception of the script, whose traceback is recorded too, only the beginning."""
    error, is_told = evidence.error, evidence.started and bool(traceback)
    return error[: LONGEST - 3] + "..." if error and is_told and len(error) > LONGEST else error


def _said(evidence: tuple[Evidence, ...]) -> str | None:
    return next((e.error for e in evidence if e.error and not _ECHO.search(e.error)), None)


def aborts(evidence: Evidence) -> bool:
    """Return whether srun says that it aborts the step, because its connection to one of the nodes has broken."""
    return evidence.task is None and (evidence.error or "").startswith(SRUN_ABORTS)


def after_abort(unit: Unit, evidence: Evidence) -> Evidence:
    """Return a sign as an echo, if it only shows how srun ended the tasks of a step that it has aborted."""
    ended = evidence.cause is Cause.CANCELLED or evidence.signal in (signal.SIGKILL, signal.SIGTERM)
    if not ended or not any(aborts(sign) for sign in unit.current.evidence):
        return evidence
    return Evidence(evidence.task, evidence.node, error=f"{SRUN_ABORTS}: it has ended its tasks on {evidence.node}")


def silent_siblings(unit: Unit) -> tuple[str, ...]:
    """Return the nodes that may have made a multi-node step fail: the silent ones, if all others lost connections.

    Empty as soon as there is better evidence, or every node has been heard from since.
    """
    since = unit.current.failing.noticed
    if unit.phase is not Phase.STOPPING or unit.place is None or unit.current.intent is not None or since is None:
        return ()
    echoes = {e.task for e in unit.current.evidence if e.error is not None and _ECHO.search(e.error)}
    if not unit.current.evidence or any(_strength(e) < 3 or e.task not in echoes for e in unit.current.evidence):
        return ()
    heard = {e.node for e in unit.current.evidence} | {
        unit.current.hosts[task] for task in unit.current.done if task < len(unit.current.hosts)
    }
    both = zip(unit.current.hosts, unit.pulses, strict=False)
    heard |= {host for host, pulse in both if pulse is not None and pulse.time > since + WORDS_S}
    return tuple(node for node in unit.place.nodes if node not in heard)


def signal_name(number: int) -> str:
    """Return the name of a signal: SIGKILL for 9; "signal 63" if it has none."""
    names: dict[int, str] = {int(member): str(member.name) for member in signal.Signals}
    return names.get(number, f"signal {number}")


def describe(exit_: Exit) -> str:
    """Return the verdict as a short text: "killed by SIGKILL on n2", "user_error: ValueError: no such layer"."""
    where = f" on {exit_.node}" if exit_.node else ""
    if exit_.cause is Cause.KILLED and exit_.signal is not None:
        said = f": {exit_.error}" if (exit_.error or "").startswith(LAST_LINE) else ""  # it has crashed
        return f"killed by signal {exit_.signal} ({signal_name(exit_.signal)}){where}{said}"
    if exit_.cause is Cause.USER_ERROR:
        if exit_.error:
            return f"user_error{where}: {exit_.error}"
        return f"user_error{where}: the script ended with exit code {exit_.code}"
    if exit_.cause is Cause.REQUESTED and exit_.error:
        return exit_.error
    error = f": {exit_.error}" if exit_.error else ""
    return f"{exit_.cause.value}{where}{error}"
