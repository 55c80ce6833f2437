"""Determines from outside a run whether its controller still lives and which of its Slurm jobs wait or run.

The verbs of the command line (status, logs, stop) call this in the user's process. The journal of a run does not grow
once its controller is gone, so Slurm is asked, or the process table for a local run.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

from ftslurm.config.schema import Config
from ftslurm.monitor.sentences import seconds
from ftslurm.protocol.records import RunFinished, RunStarted
from ftslurm.run import liveness
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import first_line, last_event, last_line
from ftslurm.run.journal_lines import read
from ftslurm.slurm import client, commands
from ftslurm.slurm.evidence import read_queue

LIVE_STATES = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"} | {
    "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "STAGE_OUT", "UNKNOWN",
}  # fmt: skip
NEVER_RUN = ("", "CANCELLED", "DEADLINE")  # last states of a job that may not have started; "": no longer known
QUEUE_S = 15.0  # how often Slurm is asked about one job


def still_there(config: Config, run: RunDir) -> Callable[[], bool]:
    """Return a function that returns whether a controller may still write this run's journal.

    For a local run it checks the process. For a job it asks Slurm, at most every 15 seconds, because a job can be
    cancelled before its controller has written anything.
    """
    asked, answer = time.monotonic(), True

    def ask() -> bool:
        nonlocal asked, answer
        job = run.job()
        if job is None:
            return True
        if config.cluster.kind == "local":
            return lives_here(run)
        if time.monotonic() - asked >= QUEUE_S:
            asked = time.monotonic()
            array = config.cluster.mode == "array"
            answer = abandoned(config, run) is None if array else job_state(job) in LIVE_STATES
        return answer

    return ask


def job_state(job: str) -> str:
    """Return the state of a job: "" if Slurm does not know it, "UNKNOWN" if Slurm does not answer."""
    return client.job_state(job)[0]


def abandoned(config: Config, run: RunDir) -> str | None:
    """Return why no controller will write the end of this run's journal; None if one may."""
    state = _last_state(config, run)
    if state is None:
        return None
    if not _begun(run):
        return f"it never started: {end_without_start(config, run, state).reason}"
    said = liveness.complaint(run)
    word = f"; its last word: {said}" if said else ""
    if config.cluster.kind == "local":
        return f"its controller is gone; its workers have ended with it{word}"
    if config.cluster.mode == "array":
        return f"none of its Slurm jobs is left{word}"
    return f"its controller is gone: Slurm job {run.job()} is {state or 'unknown to Slurm'}{word}"


def never_started(config: Config, run: RunDir) -> RunFinished | None:
    """Return the end of a run that never started: its journal's only line, or what would be; None: it has, or it may.

    Its controller has written nothing, and none of its jobs is left that could start one.
    """
    first = first_line(run.events)
    if first is not None and isinstance(end := read(first), RunFinished):
        return end if first == last_line(run.events) else None  # a job that Slurm starts once more goes on with it
    state = None if _begun(run) else _last_state(config, run)
    if state is None or _begun(run):  # it may have begun and ended meanwhile
        return None
    return end_without_start(config, run, state)


def end_without_start(config: Config, run: RunDir, state: str) -> RunFinished:
    """Return the end of a run whose controller is gone without a line in the journal.

    Args:
        state: Slurm's last state of the controller's job; "": Slurm does not know the job any more.
    """
    local, job = config.cluster.kind == "local", run.job()
    # Slurm makes a job's log when the job starts.
    if local or state not in NEVER_RUN or any(run.submitit.glob(f"{job}_*_log.*")):
        what = "its controller ended" if local else f"Slurm job {job} ended before its controller began"
        return RunFinished(outcome="failed", reason=f"{what}; see {run.submitit}", steps=0, restarts=0)
    reason = f"Slurm job {job} was cancelled before it started"
    if state == "":
        reason = f"Slurm does not know job {job} any more, and it has left no log"
    return RunFinished(outcome="stopped", reason=reason, steps=0, restarts=0)


def _begun(run: RunDir) -> bool:
    """Return whether the journal has a line; a damaged first one is one, too."""
    return first_line(run.events) is not None or last_event(run.events) is not None


def _last_state(config: Config, run: RunDir) -> str | None:
    """Return the last state of the job of a controller that is gone, "" if that is not known; None: it may live."""
    job = run.job()
    if job is None:
        return None  # cluster.controller=here: the job of its allocation is not known
    if config.cluster.kind == "local":
        return None if lives_here(run) else ""
    if config.cluster.mode == "array":  # the leader's job may be a pilot's
        age = liveness.age_s(run.alive)
        # A live leader spares asking Slurm.
        left = live_jobs(config, run) if age is None or age > liveness.SILENT_S else None
        return "" if left == [] else None
    state = job_state(job)
    return None if state in LIVE_STATES else state


def silence(config: Config, run: RunDir, watch: liveness.Watch | None = None) -> str | None:
    """Return a note that the controller is silent, and what to do, or what it complains of; None if all is well.

    Args:
        watch: see liveness.silent_s.
    """
    if config.cluster.kind == "slurm" and last_event(run.events) == "run_requeued":
        return f"the run goes on in its next job: {_in_queue_at(run, int(time.monotonic() / QUEUE_S))}"
    silent, job = liveness.silent_s(config, run, watch), run.job()
    if silent is None:
        return liveness.complaint(run)
    ends = f"; ftslurm stop cancels Slurm job {job}" if job is not None and config.cluster.kind == "slurm" else ""
    return f"the controller has not been heard for {seconds(silent)}{ends}"


def live_jobs(config: Config, run: RunDir) -> list[str] | None:
    """Return the jobs of this run that wait or run, its controller's and its groups'; None if Slurm does not answer."""
    answer = client.call(commands.queue(_owner(run)))
    if not answer.ok:
        return None
    own = run.job()
    known = run.pools() | ({own: 0} if own else {})
    jobs = read_queue(answer.out, run.mark(), config.cluster.pilots, known)
    return [job.name for job in jobs if job.state in LIVE_STATES]


def _owner(run: RunDir) -> int | None:
    with suppress(OSError):
        return run.root.stat().st_uid
    return None


def cancel(config: Config, run: RunDir) -> list[str]:
    """Cancel every job of a run whose controller is silent. Return those that Slurm has accepted to cancel."""
    left = live_jobs(config, run) or []
    return left if client.cancel(*left) else []


def take_out_of_queue(job: str) -> bool:
    """Cancel a job if it waits in Slurm's queue. Return whether it did wait and is gone."""
    if job_state(job) != "PENDING":
        return False
    client.cancel(job, pending_only=True)
    return job_state(job) in ("CANCELLED", "")


def in_queue(run: RunDir) -> str | None:
    """Return a line about a job whose controller has not begun: what it waits for, or its state; None: no job."""
    job = run.job()
    if job is None:
        return None
    state, reason = client.job_state(job)
    if state == "PENDING":
        reason += ": Slurm holds a requeued job for two minutes" if reason == "BeginTime" else ""
        return f"Slurm job {job} is waiting in the queue" + (f" ({reason})" if reason not in ("", "None") else "")
    if state == "UNKNOWN":
        return f"Slurm does not answer how job {job} stands"
    return f"Slurm job {job} is {state}" if state else f"Slurm does not know job {job} any more"


@lru_cache(maxsize=1)
def _in_queue_at(run: RunDir, moment: int) -> str | None:  # noqa: ARG001 caches the answer for some seconds
    return in_queue(run)


def lives_here(run: RunDir) -> bool:
    """Return whether the controller of a local run lives here: submitit's process, or the one that this has started.

    A signal to both (a closed terminal, `timeout`) ends submitit's at once, and the controller ends the run first.
    """
    job = run.job() or ""
    if job.isdecimal() and _process_lives(int(job)):
        return True
    begun = read(first_line(run.events) or {})
    if not isinstance(begun, RunStarted) or begun.pid is None:
        return False
    return begun.host == platform.node() and _process_lives(begun.pid)


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
