"""Determines from outside a run whether its controller still lives and which of its Slurm jobs wait or run.

The verbs of the command line (status, logs, stop) call this in the user's process. The journal of a run does not grow
once its controller is gone, so Slurm is asked, or the process table for a local run.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from ftslurm.config.schema import Config
from ftslurm.monitor.sentences import seconds
from ftslurm.protocol.job_states import state as job_state
from ftslurm.protocol.records import RunFinished, RunStarted
from ftslurm.run import liveness
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import first_line, last_event, last_line
from ftslurm.run.journal_lines import read
from ftslurm.security import owned_files
from ftslurm.security.terminal import visible
from ftslurm.slurm import client, commands
from ftslurm.slurm.parse import NO_OUTPUT, UNKNOWN_STATE, QueuedJob, read_jobs

NEVER_RUN = ("", "CANCELLED", "DEADLINE")  # last states of a job that may not have started; "": no longer known
NEVER = "never started: "
QUEUE_S = 15.0  # how often Slurm is asked about one job


# What a run's state may be. waiting: its job is in Slurm's queue. silent: it should run, and its controller is not
# heard. lost: its controller is gone, and nobody has written an end.
STATES = ("running", "waiting", "silent", "lost", "succeeded", "failed", "stopped", "unreadable")
GOING = STATES[:3]


@dataclass(frozen=True)
class Queue:
    """What squeue says of some users' jobs. Without an answer nothing is concluded from a job that is not in it."""

    users: frozenset[str] = frozenset()  # whose jobs are known, all of them
    jobs: Sequence[QueuedJob] = ()
    asked: float = math.inf  # when, in unix seconds; a job that was submitted later may be missing

    def live(self, run: RunDir) -> list[QueuedJob]:
        """Return the jobs of a run that wait or run, its controller's and its groups'."""
        names, mark = {*run.pools(), own := job_of(run) or ""}, run.mark()
        tasks = f"{own.partition('_')[0]}_"  # of an array that was submitted by hand
        mine = (job for job in self.jobs if job.mark == mark or job.name in names or job.name.startswith(tasks))
        return [job for job in mine if not job_state(job.state).ends]

    def covers(self, run: RunDir) -> bool:
        """Return whether a job of this run that is missing has left Slurm."""
        submitted = 0.0
        with suppress(OSError):
            submitted = run.job_id.stat().st_mtime
        return _owner(run) in self.users and submitted <= self.asked


def ask_queue(users: Iterable[str]) -> Queue:
    """Ask Slurm for all jobs of some users."""
    asked, answer = time.time(), client.call(commands.jobs_of_users(*sorted(users)))
    return read_queue(users, answer.out, asked) if answer.ok else Queue()


def read_queue(users: Iterable[str], text: str, asked: float) -> Queue:
    """Return what an answer of squeue says."""
    jobs, whole = read_jobs(text)
    return Queue(frozenset(users if whole else ()), jobs, asked)


def state(config: Config, run: RunDir, queue: Queue | None = None) -> tuple[str, str | None]:
    """Return how a run stands whose journal has no end: one of STATES, and a note for a person.

    Args:
        queue: what Slurm says; None: it is asked if that matters.
    """
    if (never := never_started(config, run, queue)) is not None:
        return never.outcome, f"{NEVER}{never.reason}"
    if (why := abandoned(config, run, queue)) is not None:
        return "lost", why
    begun, local = _begun(run), config.cluster.kind == "local"
    if not begun and (local or run.job() is None):
        return ("waiting", "its controller starts") if run.job() else ("lost", "its controller is gone")
    jobs = [] if queue is None or local else queue.live(run)
    goes_on = last_event(run.events) == "run_requeued"
    if jobs and (not begun or goes_on or all(job.state == "PENDING" for job in jobs)):
        waiting = next((job for job in jobs if job.state == "PENDING"), None)
        return "waiting", "its controller starts" if waiting is None else _waits(waiting.name, waiting.reason)
    if _heard(run):
        return "running", None
    host = _elsewhere(run)
    return "silent", f"its controller{f' on {visible(host)}' if host else ''} is not heard"


def still_there(config: Config, run: RunDir) -> Callable[[], bool]:
    """Return a function that returns whether a controller may still write this run's journal.

    For a local run it checks the process. For a job it asks Slurm, at most every 15 seconds, because a job can be
    cancelled before its controller has written anything.
    """
    asked, answer = time.monotonic(), True

    def ask() -> bool:
        nonlocal asked, answer
        if config.cluster.kind == "local" or time.monotonic() - asked >= QUEUE_S:
            asked = time.monotonic()
            answer = run.root.is_dir() and _last_state(config, run, None) is None
        return answer

    return ask


def abandoned(config: Config, run: RunDir, queue: Queue | None = None) -> str | None:
    """Return why no controller will write the end of this run's journal; None if one may."""
    state = _last_state(config, run, queue)
    if state is None:
        return None
    if not _begun(run):
        return f"it {NEVER}{end_without_start(config, run, *state).reason}"
    said = liveness.complaint(run)
    word = f"; its last word: {said}" if said else ""
    if config.cluster.kind == "local":
        return f"its controller is gone; its workers have ended with it{word}"
    if config.cluster.kind == "array":
        return f"none of its Slurm jobs is left{word}"
    return f"its controller is gone: Slurm job {job_of(run)} is {state[0] or 'unknown to Slurm'}{word}"


def never_started(config: Config, run: RunDir, queue: Queue | None = None) -> RunFinished | None:
    """Return the end of a run that never started: its journal's only line, or what would be; None: it has, or it may.

    Its controller has written nothing, and none of its jobs is left that could start one.
    """
    first = first_line(run.events)
    if first is not None and isinstance(end := read(first), RunFinished):
        return end if first == last_line(run.events) else None  # a job that Slurm starts once more goes on with it
    state = None if _begun(run) else _last_state(config, run, queue)
    if state is None or _begun(run):  # it may have begun and ended meanwhile
        return None
    return end_without_start(config, run, *state)


def end_without_start(config: Config, run: RunDir, state: str, why: str) -> RunFinished:
    """Return the end of a run whose controller is gone without a line in the journal.

    Args:
        state: Slurm's last state of the controller's job; "": Slurm does not know the job any more.
        why: Slurm's reason for it.
    """
    local, job = config.cluster.kind == "local", run.job()
    # Slurm makes a job's log when the job starts.
    logs = any(run.submitit.glob(f"{job}_*_log.*"))
    if local or state not in NEVER_RUN or logs:
        what = "its controller ended" if local else f"Slurm job {job} ended before its controller began"
        see = f"see {run.submitit}"
        if why.startswith(NO_OUTPUT) or not (local or logs):  # Slurm 26.05 makes the folder where there is none
            see = f"its node cannot write into {run.submitit}: set run.root to a folder that all nodes share"
        return RunFinished(outcome="failed", reason=f"{what}; {see}", steps=0, restarts=0)
    reason = f"Slurm job {job} was cancelled before it started"
    if state == "":
        reason = (
            f"Slurm does not know job {job} any more, and it has left no log: it was cancelled, or its node cannot "
            f"write into run.root"
        )
    return RunFinished(outcome="stopped", reason=reason, steps=0, restarts=0)


def _begun(run: RunDir) -> bool:
    """Return whether the journal has a line; a damaged first one is one, too."""
    return first_line(run.events) is not None or last_event(run.events) is not None


def _last_state(config: Config, run: RunDir, queue: Queue | None) -> tuple[str, str] | None:
    """Return the last state of the job of a controller that is gone, "" if that is not known, and Slurm's reason.

    None: it may live.
    """
    job, array = job_of(run), config.cluster.kind == "array"
    if config.cluster.kind == "local":
        return None if _elsewhere(run) or _lives_here(run) or job is None else ("", "")
    # In array mode the leader's job may be a pilot's. A live leader spares asking Slurm.
    if job is None or (array and _heard(run)):
        return None
    queue = ask_queue({_owner(run)}) if queue is None else queue
    state, why = next(((one.state, one.reason) for one in queue.jobs if one.name == job), ("", ""))
    lives = queue.live(run) if array else state and not job_state(state).ends
    return None if lives or not queue.covers(run) else (state, why)


def job_of(run: RunDir) -> str | None:
    """Return the Slurm job of a controller (in an allocation: from the journal), or the process of a local run's."""
    begun = _started(run)
    return run.job() or (begun.job_id if begun else None)


def _started(run: RunDir) -> RunStarted | None:
    begun = read(first_line(run.events) or {})
    return begun if isinstance(begun, RunStarted) else None


def _elsewhere(run: RunDir) -> str | None:
    """Return the machine of a controller; None: it is this one, or not known."""
    begun = _started(run)
    return begun.host if begun and begun.host != platform.node() else None


def _heard(run: RunDir) -> bool:
    age = liveness.age_s(run.alive)
    return age is not None and age <= liveness.SILENT_S


def silence(config: Config, run: RunDir, watch: liveness.Watch | None = None) -> str | None:
    """Return a note that the controller is silent, and what to do, or what it complains of; None if all is well.

    Args:
        watch: see liveness.silent_s.
    """
    if config.cluster.kind != "local" and last_event(run.events) == "run_requeued":
        return f"the run goes on in its next job: {_in_queue_at(run, int(time.monotonic() / QUEUE_S))}"
    silent, job = liveness.silent_s(config, run, watch), run.job()
    if silent is None:
        return liveness.complaint(run)
    ends = f"; ftslurm stop cancels Slurm job {job}" if job is not None and config.cluster.kind != "local" else ""
    return f"the controller has not been heard for {seconds(silent)}{ends}"


def _owner(run: RunDir) -> str:
    with suppress(OSError):
        return owned_files.user_name(run.root.stat().st_uid)
    return ""


def cancel(run: RunDir) -> list[str]:
    """Cancel every job of a run whose controller is silent. Return those that Slurm has accepted to cancel."""
    left = [job.name for job in ask_queue({_owner(run)}).live(run)]
    return left if client.cancel(*left) else []


def take_out_of_queue(job: str) -> bool:
    """Cancel a job if it waits in Slurm's queue. Return whether it did wait and is gone."""
    if client.job_state(job)[0] != "PENDING":
        return False
    client.cancel(job, pending_only=True)
    return client.job_state(job)[0] in ("CANCELLED", "")


def in_queue(run: RunDir) -> str | None:
    """Return a line about a job whose controller has not begun: what it waits for, or its state; None: no job."""
    job = run.job()
    if job is None:
        return None
    state, reason = client.job_state(job)
    if state == "PENDING":
        return _waits(job, reason)
    if state == UNKNOWN_STATE:
        return f"Slurm does not answer how job {job} stands"
    return f"Slurm job {job} is {state}" if state else f"Slurm does not know job {job} any more"


def _waits(job: str, reason: str) -> str:
    reason += ": Slurm holds a requeued job for two minutes" if reason == "BeginTime" else ""
    return f"Slurm job {job} is waiting in the queue" + (f" ({visible(reason)})" if reason not in ("", "None") else "")


@lru_cache(maxsize=1)
def _in_queue_at(run: RunDir, moment: int) -> str | None:  # noqa: ARG001 caches the answer for some seconds
    return in_queue(run)


def _lives_here(run: RunDir) -> bool:
    """Return whether the controller of a local run lives here: the one that was started, or that of the journal."""
    begun = _started(run)
    processes = (run.job() or "", str(begun.pid) if begun else "")
    return any(pid.isdecimal() and _process_lives(int(pid)) for pid in processes)


def _process_lives(pid: int) -> bool:
    """Return whether a process of this machine lives."""
    try:
        done, _ = os.waitpid(pid, os.WNOHANG)  # our child, if this process started it
        return done == 0
    except ChildProcessError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
