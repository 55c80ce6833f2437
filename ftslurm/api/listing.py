"""Lists runs: those below a folder, or those of a user's Slurm jobs, wherever they lie."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from ftslurm.api.brief import Brief, brief
from ftslurm.errors import EnvironmentProblem
from ftslurm.protocol.job_states import state as job_state
from ftslurm.run import leadership, liveness
from ftslurm.run.by_job import run_of
from ftslurm.run.entries import Entry, entries, entry_of, not_readable
from ftslurm.run.facts import Queue, ask_queue, read_queue
from ftslurm.security.terminal import visible
from ftslurm.slurm import client, commands
from ftslurm.slurm.parse import QueuedJob


def under(root: Path) -> list[Brief]:
    """Return all runs below a folder, the newest first. Slurm is asked once, if a run needs it.

    Raises:
        RunNotFound: the folder cannot be read.
    """
    found, watch = entries(root), liveness.Watch()
    for entry in found:  # so that silent ones are waited for together
        watch.silent_s(entry.run.alive)
    queue = queue_of(found)
    return [brief(entry, queue, watch) for entry in found]


def queue_of(found: Iterable[Entry]) -> Queue:
    """Return what Slurm says of the jobs of these runs; it is asked if one of them is not over."""
    open_ones = {entry.user for entry in found if entry.readable and not leadership.is_over(entry.run)}
    return ask_queue(open_ones) if open_ones else Queue()


def of_user(user: str) -> list[Brief]:
    """Return the runs whose jobs squeue shows for a user, the newest first.

    Raises:
        EnvironmentProblem: Slurm does not answer, or knows no such user.
    """
    asked, answer = time.time(), client.call(commands.jobs_of_users(user))
    if not answer.ok:
        raise EnvironmentProblem(f"squeue cannot show the jobs of {user}: {answer.text}")
    queue = read_queue([user], answer.out, asked)
    of_run: dict[str, list[QueuedJob]] = defaultdict(list)
    for job in queue.jobs:
        if job.mark is not None:
            of_run[job.mark].append(job)
    rows = [_row(mark, found, queue) for mark, found in of_run.items()]
    return sorted(rows, key=lambda row: row.created, reverse=True)


def _row(mark: str, jobs: Sequence[QueuedJob], queue: Queue) -> Brief:
    """Return the row of the run with these jobs; of one that cannot be read, only what squeue says."""
    folder = run_of(jobs)
    entry = None if folder is None else entry_of(folder)
    if entry is not None and entry.readable:
        return brief(entry, queue)
    name = folder.name if folder is not None else mark.removeprefix("ftslurm:").rpartition("-")[0]
    live = [job for job in jobs if not job_state(job.state).ends]
    note = not_readable(entry) if entry is not None else "its folder is not here"
    states = ", ".join(sorted({job.state for job in live or jobs}))
    job = min(job.name for job in jobs)
    created = 0.0 if entry is None else entry.created
    told = f"{note}; Slurm says {states}"
    return Brief(visible(name), str(folder or ""), jobs[0].user, "unreadable", created, job=job, note=visible(told))
