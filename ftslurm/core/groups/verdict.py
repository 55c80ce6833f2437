"""Classify why a step ended, from the evidence; srun's exit code alone means little, since it is mostly 137."""

from __future__ import annotations

import signal
from enum import IntEnum

from ftslurm.core.state.events import Ended
from ftslurm.core.state.model import Evidence, Exit, Phase, Unit
from ftslurm.protocol import traces
from ftslurm.protocol.causes import Cause, Says, cause_of
from ftslurm.protocol.records import StepExited


def classify(unit: Unit, ended: Ended, tasks: int, now: float, lighthouse_away: bool = False) -> Exit:
    """Return the verdict on the step of `unit` that has just ended.

    The strongest evidence decides (Strength): a lost node, broken hardware, a task killed for memory, a task killed by
    a signal, an exception, a lost connection. A killed rank makes the others raise, and their reports arrive in random
    order.

    Args:
        tasks: how many tasks the step had.
        lighthouse_away: whether the Lighthouse was down a moment ago.
    """
    best = strongest(unit.current.evidence)
    cause = _cause(unit, ended, best, tasks)
    if cause is Cause.USER_ERROR and lighthouse_away and best is not None and Says.LIGHTHOUSE in best.says:
        cause = Cause.LIGHTHOUSE_LOST
    asked = unit.current.recalled if cause is Cause.REQUESTED else None
    launcher = unit.adopting or cause is Cause.START_FAILED or (cause is Cause.KILLED and best is None)  # srun's words
    if best is None or cause in (Cause.OK, Cause.REQUESTED, Cause.CANCELLED, Cause.TIME_LIMIT, Cause.START_TIMEOUT):
        best = Evidence(code=ended.code, signal=ended.signal)
    return Exit(
        attempt=unit.attempt,
        time=now,
        cause=cause,
        nodes=unit.place.nodes,
        code=best.code,
        signal=best.signal,
        node=best.node,
        rank=None if unit.is_lighthouse else best.task,
        error=asked
        or (_with_place(unit, best) if cause is Cause.HARDWARE else None)
        or _quoted(best, bool(unit.current.traces))
        or _said(unit.current.evidence)
        or (ended.error if launcher else None)
        or (UNREPORTED if cause is Cause.UNKNOWN and ended.code == 0 else None),
        step=_reached(unit),
        echo=Says.ECHO in best.says,
        launched=unit.adopting or not ended.launcher_failed,
        healthy_s=0.0 if unit.marks.joined is None else round(now - unit.marks.joined, 3),
        traceback=traces.told(unit.current.traces, best.task),
        ran_as=unit.current.ran_as,
        restored=unit.current.restored,
    )


def _reached(unit: Unit) -> int | None:
    """Return the last step that an attempt has committed: reported once a second, while signs of life are newer."""
    known = [pulse.step for pulse in unit.pulses if pulse is not None and pulse.step is not None]
    known.append(unit.current.left or 0)
    return None if unit.current.step is None else max([unit.current.step, *known])


UNREPORTED = "its srun has ended with 0, but not every rank has reported that its script ended"
LONGEST = 240  # characters of an exception in `step_exited`


def _cause(unit: Unit, ended: Ended, best: Evidence | None, tasks: int) -> Cause:
    if unit.current.intent not in (None, Cause.HANG) or (unit.current.intent and not _blamed(best)):
        return unit.current.intent  # also if it exits with 0 after SIGTERM: that is no success
    begun = unit.current.assigned or (unit.group is None and bool(unit.current.ready))  # no script begins there
    if best is None:
        if len(unit.current.done) == tasks:
            return Cause.OK
        if ended.signal is not None:
            return Cause.KILLED
        if not unit.adopting and (ended.launcher_failed or not begun):
            return Cause.START_FAILED
        return Cause.UNKNOWN
    if best.node_lost:
        return Cause.NODE_LOST
    if best.cause not in (None, Cause.HANG):
        return best.cause
    if _blamed(best):
        return Cause.HARDWARE
    if best.cause is not None:
        return best.cause
    if best.out_of_memory:
        return Cause.OUT_OF_MEMORY
    if Says.ABORT in best.says:
        return Cause.UNKNOWN
    if Says.NETWORK in best.says and best.signal in _OWN_END:
        return Cause.NETWORK
    if best.signal is not None:
        return Cause.KILLED
    if not best.started or not begun:
        return Cause.START_FAILED
    return Cause.USER_ERROR if unit.current.assigned else Cause.UNKNOWN


def _blamed(evidence: Evidence | None) -> str | None:
    """Return the words of a sign that blame the hardware of its node; None: it does not."""
    if evidence is None:
        return None
    if evidence.hardware:
        return evidence.hardware
    return evidence.error if Says.BROKEN in evidence.says else None


def _with_place(unit: Unit, evidence: Evidence) -> str | None:
    """Return the words that blame the hardware, with the local rank; a guard's words name the GPU."""
    words, task, hosts = _blamed(evidence), evidence.task, unit.current.hosts
    if evidence.hardware or task is None or task >= len(hosts):
        return words
    return f"local rank {hosts[:task].count(hosts[task])}: {words}"


class Strength(IntEnum):
    """How much a sign says about why a step ended; of equal ones the first to arrive counts."""

    CERTAIN = 0  # a lost node; Slurm's verdict or the core's
    BROKEN = 1  # a guard has found broken hardware
    SAYS_BROKEN = 2  # an error of the script that only broken hardware causes
    HUNG = 3
    MEMORY = 4
    SIGNAL = 5
    LEFT = 6  # a rank has left with an exit code: what the others report follows from it
    ERROR = 7
    CODE = 8
    ECHO = 9  # of a task that has only lost a connection: something else has failed


def strongest(evidence: tuple[Evidence, ...]) -> Evidence | None:
    """Return the sign that decides the cause."""
    echoing = _echoing(evidence)
    return min(evidence, key=lambda sign: _strength(sign, echoing), default=None)


def _strength(sign: Evidence, echoing: set[int | None]) -> Strength:
    left = sign.cause in (Cause.LEFT_EARLY, Cause.LEFT_ON_SIGTERM)
    if sign.node_lost or (sign.cause not in (None, Cause.HANG) and not left):
        return Strength.CERTAIN
    if sign.hardware:
        return Strength.BROKEN
    if _blamed(sign):
        return Strength.SAYS_BROKEN
    if sign.cause is Cause.HANG:
        return Strength.HUNG
    if sign.out_of_memory:
        return Strength.MEMORY
    if sign.task in echoing and sign.signal in _OWN_END:
        return Strength.ECHO
    if sign.signal is not None:
        return Strength.SIGNAL
    if left:
        return Strength.LEFT
    return Strength.ERROR if sign.error is not None else Strength.CODE


def _echoing(evidence: tuple[Evidence, ...]) -> set[int | None]:
    """Return the tasks that report a lost connection."""
    return {sign.task for sign in evidence if Says.ECHO in sign.says}


_OWN_END = (None, signal.SIGABRT)  # an exception, or NCCL's watchdog, which aborts its process
WORDS_S = 0.1  # a killed rank's guard mostly reports within this time of the other ranks' errors


def _quoted(evidence: Evidence, traced: bool) -> str | None:
    """Return the error; of an exception of the script, whose traceback is recorded too, only the beginning."""
    error, is_told = evidence.error, evidence.started and traced
    return error[: LONGEST - 3] + "..." if error and is_told and len(error) > LONGEST else error


def _said(evidence: tuple[Evidence, ...]) -> str | None:
    return next((e.error for e in evidence if e.error and Says.ECHO not in e.says), None)


def after_abort(unit: Unit, evidence: Evidence) -> Evidence:
    """Return a sign as an echo, if it only shows how srun ended the tasks of a step that it has aborted."""
    ended = evidence.cause is Cause.CANCELLED or evidence.signal in (signal.SIGKILL, signal.SIGTERM)
    if not ended or not any(Says.ABORT in sign.says for sign in unit.current.evidence):
        return evidence
    error = f"srun aborts the step: it has ended its tasks on {evidence.node}"
    return Evidence(evidence.task, evidence.node, error=error, says=frozenset({Says.ECHO}))


def silent_siblings(unit: Unit) -> tuple[str, ...]:
    """Return the nodes that may have made a multi-node step fail: the silent ones, if all others lost connections.

    Empty as soon as there is better evidence, or every node has been heard from since.
    """
    since = unit.current.failing.noticed
    if unit.phase is not Phase.STOPPING or unit.current.intent is not None or since is None:
        return ()
    best = strongest(unit.current.evidence)
    if best is None or _strength(best, _echoing(unit.current.evidence)) < Strength.ECHO:
        return ()
    heard = {e.node for e in unit.current.evidence} | {unit.node_of(task) for task in unit.current.done}
    both = zip(unit.current.hosts, unit.pulses, strict=False)
    # What was sent before the failure has been read by now; "Z": its guard has not reaped it yet.
    heard |= {host for host, pulse in both if pulse and pulse.time > since + WORDS_S and pulse.state not in "ZX?"}
    return tuple(node for node in unit.place.nodes if node not in heard)


def kind(end: Exit | StepExited) -> object:
    """Return what failures have in common that are alike, though their errors name groups, nodes, files and times.

    That is the cause, the exit code or signal, the exception's type and the innermost call of its traceback. Without a
    traceback it has the error, without all words that contain a digit, a slash or the node's name.
    """
    call = traces.frames(end.traceback or "")[-1:]
    error = (end.error or "").replace(end.node or "/", "/")
    words = (error.partition(":")[0] if call else error).split()
    return end.cause, end.code, end.signal, *call, *(word for word in words if {*word}.isdisjoint("/0123456789"))


def signal_name(number: int) -> str:
    """Return the name of a signal: SIGKILL for 9; "signal 63" if it has none."""
    names: dict[int, str] = {int(member): str(member.name) for member in signal.Signals}
    return names.get(number, f"signal {number}")


_WITH_SIGN = (Cause.USER_ERROR, Cause.KILLED, Cause.START_FAILED, Cause.UNKNOWN)


def describe(end: Exit | StepExited) -> str:
    """Return why an attempt ended: "killed (signal 9) on n2, rank 3".

    Of an exception with its place: "the script failed on n2, rank 3: train.py:41 in step: ValueError: no such layer".
    """
    cause = cause_of(end.cause)
    raised = cause is not Cause.HANG and end.signal is None and end.error is not None
    frame = traces.blamed(end.traceback or "") if raised else None
    sign = f" (exit code {end.code})" if end.code is not None and frame is None else ""
    sign = f" (signal {end.signal})" if end.signal is not None else sign
    where = f" on {end.node}" if end.node is not None else ""
    where += f", rank {end.rank}" if where and end.rank is not None else ""
    if cause is Cause.REQUESTED and end.error:
        return end.error
    if cause is Cause.UNKNOWN and end.error:
        return end.error + where
    what = cause.row.words + (sign if cause in _WITH_SIGN else "")
    if cause is Cause.CANCELLED and not end.error:
        what = "stopped"  # by the controller
    return ": ".join([what + where, *([str(frame)] if frame else []), *([end.error] if end.error else [])])
