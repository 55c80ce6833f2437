"""How does this run stand? One pure function of what is known from outside the run (run/facts.py gathers that).

The journal of a run does not grow once its controller is gone, so the file `alive`, Slurm and the process table are
asked too. What Slurm does not say, or says in words that are not understood, is unknown: nothing is concluded from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from ftslurm.protocol import job_states
from ftslurm.protocol.records import RunFinished
from ftslurm.protocol.run_states import GOING, OVER, State
from ftslurm.protocol.value_class import Value
from ftslurm.security.json_text import is_whole
from ftslurm.security.terminal import visible
from ftslurm.slurm.parse import QueuedJob
from ftslurm.words import seconds

NEVER_RUN = ("", "CANCELLED", "DEADLINE")  # last states of a job that may not have started; "": no longer known


class Facts(Value):
    """What is known of a run."""

    kind: str = "slurm"  # cluster.kind
    new: bool = False  # its directory has just been made
    begun: bool = False  # its journal has a line
    end: RunFinished | None = None  # the last line
    alone: bool = False  # the end is the only line: no controller has written there
    requeued: bool = False  # the last line says that the run goes on in its next job
    job: str | None = None  # the controller's Slurm job (in an allocation: from the journal), or its process
    host: str | None = None  # of the controller; None: it is this one, or not known
    lives: bool = False  # the process of a local controller lives here
    jobs: Sequence[QueuedJob] = ()  # of the run, the controller's and its groups', as far as Slurm shows them
    answered: bool = False  # all that Slurm has are shown: what is missing is gone
    silent_s: float | None = math.inf  # how long the controller has not been heard; inf: never; None: it is heard
    complaint: str | None = None  # its last word about a journal that it could not write
    log: str | None = None  # the last line of its job's output before it began; None: Slurm has made none
    folder: Path = Path("submitit")  # of the log

    @property
    def live(self) -> list[QueuedJob]:
        """Return the jobs that wait or run, as far as is known."""
        return [job for job in self.jobs if not job_states.state(job.state).ends]

    @property
    def carriers(self) -> list[QueuedJob]:
        """Return those of them in which the controller may be: in array mode all, a pilot may lead."""
        return [job for job in self.live if self.kind == "array" or job.name == self.job]

    @property
    def waits(self) -> QueuedJob | None:
        """Return the job in the queue for which the controller waits; None: it may run."""
        waiting = [job for job in self.carriers if job_states.state(job.state).waits]
        return waiting[0] if waiting and len(waiting) == len(self.carriers) else None


class Standing(Value):
    """How a run stands."""

    state: State
    why: str | None = None  # for a person
    hint: str = ""  # what to do about it
    never: bool = False  # it never started
    over: bool = False  # its journal has an end
    left: str | None = None  # of a run that is over: what of it may still be there

    @property
    def going(self) -> bool:
        """Return whether a controller may still write to the journal."""
        return self.state in GOING

    @property
    def note(self) -> str | None:
        """Return all of it that a person should know beside the state."""
        if self.never and not self.over:
            return f"never started: {self.why}"
        return f"{self.why}; {self.hint}" if self.hint else self.why


def standing(facts: Facts) -> Standing:
    """Return how a run stands."""
    # A job that Slurm itself has requeued goes on, although its controller has written that it was stopped; if a user
    # has stopped it, it does not.
    if facts.end is not None and (facts.waits is None or facts.end.outcome != "stopped" or is_whole(facts.end.by)):
        return _over(facts, facts.end)
    if not facts.begun and facts.job is None:
        return Standing("waiting", "it is being submitted") if facts.new else Standing("lost", "it was never submitted")
    if _gone(facts):
        if facts.begun:
            return Standing("lost", _why_lost(facts))
        return _never_started(facts)
    heard = facts.silent_s is None and facts.end is None  # what Slurm says may be older
    if not facts.begun or facts.requeued or (facts.waits is not None and not heard):
        return _between(facts)
    if facts.silent_s is None:
        return Standing("running", facts.complaint)
    ends = f"ftslurm stop cancels Slurm job {facts.job}" if facts.job is not None and facts.kind != "local" else ""
    return Standing("silent", _silence(facts, facts.silent_s), ends)


def _over(facts: Facts, end: RunFinished) -> Standing:
    left = "its controller was there until now" if facts.silent_s is None else None
    if facts.kind != "local" and (facts.live or not facts.answered):
        left = left or "a Slurm job of it may be left"
    why = visible(end.failure or end.reason or "") or None
    outcome: State = next((state for state in OVER if state == end.outcome), "failed")
    return Standing(outcome, why, never=facts.alone, over=True, left=left)


def _gone(facts: Facts) -> bool:
    """Return whether no controller can write to the journal any more."""
    if facts.kind == "local":
        return facts.host is None and not facts.lives
    if facts.job is None or not facts.answered or (facts.kind == "array" and facts.silent_s is None):
        return False
    return not facts.carriers


def _between(facts: Facts) -> Standing:
    """Return how a run stands whose controller has not begun, here or in the run's next job."""
    starting = f"its controller starts{f' ({visible(facts.log)})' if facts.log else ''}"
    if facts.kind == "local":
        return Standing("waiting", starting)
    state: State = "waiting"
    known = [job for job in facts.carriers if job.state in job_states.TABLE]
    if (job := facts.waits) is not None:
        reason = job.reason + ": Slurm holds a requeued job for two minutes" * (job.reason == job_states.HELD_BACK)
        why = f" ({visible(reason)})" if reason not in ("", "None") else ""
        held = f"; release it with: scontrol release {job.name}" if "requeued" in job.reason else ""
        note = f"Slurm job {job.name} is waiting in the queue{why}{held}"
    elif known:
        starts = f": {starting}" if job_states.state(known[0].state).runs else ""
        note = f"Slurm job {known[0].name} is {known[0].state}{starts}"
    else:
        state, note = "unknown", f"Slurm does not answer how job {facts.job} stands"
        if facts.carriers:
            job = facts.carriers[0]
            note = f"Slurm job {job.name} is {visible(job.state)}, and what that means is not known"
    return Standing(state, f"the run goes on in its next job: {note}" if facts.requeued else note)


def _silence(facts: Facts, silent_s: float) -> str:
    where = f" on {visible(facts.host)}" if facts.host else ""
    long = "is not heard" if silent_s == math.inf else f"has not been heard for {seconds(silent_s)}"
    state, _ = _last_state(facts)
    job = f": Slurm job {facts.job} is {visible(state)}" if state not in ("", "RUNNING") else ""
    return f"its controller{where} {long}{job}"


def _why_lost(facts: Facts) -> str:
    word = f"; its last word: {facts.complaint}" if facts.complaint else ""
    if facts.kind == "local":
        return f"its controller is gone; its workers have ended with it{word}"
    if facts.kind == "array":
        return f"none of its Slurm jobs is left{word}"
    state, _ = _last_state(facts)
    return f"its controller is gone: Slurm job {facts.job} is {state or 'unknown to Slurm'}{word}"


def _last_state(facts: Facts) -> tuple[str, str]:
    """Return the last state of the controller's job, "" if Slurm does not know it any more, and Slurm's reason."""
    return next(((job.state, job.reason) for job in facts.jobs if job.name == facts.job), ("", ""))


def _never_started(facts: Facts) -> Standing:
    """Return how a run stands whose controller is gone without a line in the journal."""
    local, job, (state, _) = facts.kind == "local", facts.job, _last_state(facts)
    outcome: State = "stopped"
    reason = f"Slurm job {job} was cancelled before it started"
    if local or state not in NEVER_RUN or facts.log is not None:
        what = "its controller ended" if local else f"Slurm job {job} ended before its controller began"
        see = f"see {facts.folder}"
        if facts.log:
            what += f" ({visible(facts.log)})"
        elif facts.log is None and not local:
            see = f"its node cannot write into {facts.folder}: set run.root to a folder that all nodes share"
        outcome, reason = "failed", f"{what}; {see}"
    elif state == "":
        reason = (
            f"Slurm does not know job {job} any more, and it has left no log: it was cancelled, or its node cannot "
            f"write into run.root"
        )
    return Standing(outcome, reason, never=True)
