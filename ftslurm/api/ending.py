"""Ends a run that has no controller to ask: its jobs are cancelled, its journal gets the end that is missing."""

from __future__ import annotations

import os

from ftslurm.config.schema import Config
from ftslurm.protocol import job_states
from ftslurm.run import facts, inbox
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import first_line
from ftslurm.run.standing import Standing
from ftslurm.slurm import client
from ftslurm.submission import observing, requeue


def without_controller(config: Config, run: RunDir, found: Standing) -> str | None:
    """End a run whose controller cannot. Return a message for the user, or None if the controller must be asked.

    Args:
        found: how the run stands; Slurm was asked also if it is over.
    """
    name, job = run.root.name, run.job()
    if found.state in ("waiting", "unknown", "silent") and not config.local and job and _take_out_of_queue(job):
        _cancel(run)
        requeue.end_journal(run, f"stopped in the queue: Slurm job {job} was cancelled", by=os.getuid())
        return f"{name} was waiting in the queue: Slurm job {job} is cancelled"
    if found.over:
        return f"{name} is over already: {found.state}"
    if found.never:
        inbox.put(run.inbox, "stop")  # Slurm may know the job after all: that of another cluster, or one it requeues
        requeue.end_journal(run, found.why or "", found.state, os.getuid())
        return f"{name} never started: {found.why}"
    if (found.state == "lost" or (found.state == "silent" and config.local)) and run.events.exists():
        requeue.end_journal(run, f"stopped without a controller: {found.why}", by=os.getuid())
        return f"{name} had lost its controller and counts as stopped now: {found.why}"
    if found.state == "silent" and (cancelled := _cancel(run)):
        inbox.put(run.inbox, "stop")  # for a controller that Slurm starts again
        observing.tell_the_end(run)
        return f"{name} is stopped: {found.why}. Cancelled: Slurm job {', '.join(cancelled)}"
    return None


def _cancel(run: RunDir) -> list[str]:
    """Cancel every job of a run. Return those that Slurm has accepted to cancel."""
    jobs = facts.ask_queue({facts.owner(run)}).of(run, facts.job_of(run))
    left = [job.name for job in jobs if not job_states.state(job.state).ends]
    return left if client.cancel(*left) else []


def _take_out_of_queue(job: str) -> bool:
    """Cancel a job if it waits in Slurm's queue. Return whether it did wait and is gone."""
    if not job_states.state(client.job_state(job)[0]).waits:
        return False
    client.cancel(job, pending_only=True)
    return client.job_state(job)[0] in ("CANCELLED", "")


def by_hand(config: Config, run: RunDir) -> str:
    """Return the command that ends a run whose controller reads no inbox."""
    job = None if config.local else run.job()
    return f"scancel {job}" if job is not None else f"kill {(first_line(run.events) or {}).get('pid')}"
