"""Reads in a few lines how a run stands, without its whole journal: one row of a list of many runs."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ftslurm.config import compose
from ftslurm.config.schema import ClusterConfig, Config
from ftslurm.controller.resume_state import Story
from ftslurm.errors import FtslurmError
from ftslurm.monitor.status import aged
from ftslurm.protocol import records
from ftslurm.run import liveness, results
from ftslurm.run.directory import RunDir
from ftslurm.run.entries import Entry, not_readable
from ftslurm.run.journal import first_line, last_line, number
from ftslurm.run.journal_lines import read
from ftslurm.security.terminal import visible
from ftslurm.slurm.parse import QueuedJob
from ftslurm.submission.jobs_of_run import LIVE_STATES, end_without_start, lives_here, never_started

# What a run's state may be in a list. waiting: its job is in Slurm's queue. silent: it should run, and its controller
# is not heard. lost: its controller is gone, and nobody has written an end.
STATES = ("running", "waiting", "silent", "lost", "succeeded", "failed", "stopped", "unreadable")


@dataclass(frozen=True)
class Brief:
    """One run, in short."""

    id: str
    dir: str
    user: str
    state: str  # one of STATES
    created: float  # in unix seconds
    name: str | None = None
    step: int | None = None
    total_steps: int | None = None
    steps_per_s: float | None = None
    groups: int | None = None
    groups_at_work: int | None = None  # that commit steps; without a quorum, that run
    restarts: int | None = None
    cluster: str | None = None  # cluster.kind: slurm or local
    job: str | None = None  # Slurm job of the controller; of a local run, its process
    finished: float | None = None
    note: str | None = None  # why it waits, has ended or cannot be read
    sweep: str | None = None  # the sweep that it belongs to (run.sweep)
    value: list[float | None] | None = None  # what its script has reported, a number for each objective; null: NaN


@dataclass(frozen=True)
class Queue:
    """What squeue says of some users' jobs. Without an answer nothing is concluded from a job that is not in it."""

    users: frozenset[str] = frozenset()  # whose jobs are known, all of them
    by_mark: Mapping[str, Sequence[QueuedJob]] = field(default_factory=dict)
    by_name: Mapping[str, QueuedJob] = field(default_factory=dict)
    asked: float = math.inf  # when, in unix seconds; a job that was submitted later may be missing

    def live(self, run: RunDir) -> list[QueuedJob]:
        """Return the jobs of a run that wait or run."""
        job = self.by_name.get(run.job() or "")
        known = dict.fromkeys([*self.by_mark.get(run.mark(), ()), *([] if job is None else [job])])
        return [job for job in known if job.state in LIVE_STATES]

    def covers(self, entry: Entry) -> bool:
        """Return whether a job of this run that is missing has left Slurm."""
        with suppress(OSError):
            return entry.user in self.users and entry.run.job_id.stat().st_mtime <= self.asked
        return entry.user in self.users


def brief(entry: Entry, queue: Queue | None = None) -> Brief:
    """Return how a run stands. A run that is over costs two reads.

    Args:
        entry: the run.
        queue: what Slurm says; None: Slurm is not asked.
    """
    run, head = entry.run, first_line(entry.run.events)
    known = Brief(run.root.name, str(run.root), entry.user, "unreadable", entry.created)
    if not entry.readable:
        return replace(known, note=not_readable(entry))
    started = None if head is None else read(head)
    if isinstance(started, records.RunStarted):
        known = replace(known, groups=started.groups, total_steps=started.total_steps, name=started.name)
        known = replace(known, sweep=started.sweep, cluster=started.cluster)
    elif head is None:  # it waits
        config = _config(run)
        known = replace(known, sweep=config.run.sweep, cluster=config.cluster.kind)
    if known.sweep is not None:
        with suppress(ValueError):
            numbers = results.read(run)
            known = replace(known, value=[one if math.isfinite(one) else None for one in numbers or ()] or None)
    known = replace(known, job=run.job() or (started.job_id if isinstance(started, records.RunStarted) else None))
    line = last_line(run.events)
    last = None if line is None else read(line)
    if line is not None and isinstance(last, records.RunFinished):
        state = last.outcome if last.outcome in STATES else "failed"
        over = replace(known, state=state, step=last.steps, restarts=last.restarts, finished=number(line, "time"))
        return replace(over, note=visible(last.reason) if last.reason else None)
    try:
        known = _unfinished(known, run)
    except FtslurmError as error:
        return replace(known, note=str(error))
    kind = known.cluster or _config(run).cluster.kind
    goes_on = isinstance(last, records.RunRequeued)
    if head is None and (never := _never_started(entry, queue or Queue())) is not None:
        return replace(known, state=never.outcome, note=f"never started: {never.reason}")
    state, note = _local_state(run, started) if kind == "local" else _slurm_state(entry, started, goes_on, queue)
    return replace(known, state=state, note=note, steps_per_s=known.steps_per_s if state == "running" else None)


def _config(run: RunDir) -> Config:
    """Return the run's settings, or the defaults if they cannot be read."""
    try:
        return compose.load(run.config, own=False)
    except FtslurmError:
        return Config(cluster=ClusterConfig(kind="slurm"))


def _silent(run: RunDir) -> bool:
    age = liveness.age_s(run.alive)
    return age is None or age > liveness.SILENT_S


def _local_state(run: RunDir, started: records.JournalEvent | None) -> tuple[str, str | None]:
    """Return the state of a local run that is not over, and a note for a person."""
    if not isinstance(started, records.RunStarted):
        return ("waiting", "its controller starts") if lives_here(run) else ("lost", "its controller is gone")
    if started.host == platform.node():
        return ("running", None) if lives_here(run) else ("lost", "its controller is gone")
    if _silent(run):
        return "silent", f"its controller on {visible(started.host or '?')} is not heard"
    return "running", None


def _never_started(entry: Entry, queue: Queue) -> records.RunFinished | None:
    """Return the end of a run without a journal whose jobs have left Slurm; None: they have not, or may not have."""
    run, job, config = entry.run, entry.run.job(), _config(entry.run)
    if config.cluster.kind == "local":
        return never_started(config, run)
    if job is None or queue.live(run) or not queue.covers(entry):
        return None
    known = queue.by_name.get(job)
    return end_without_start(config, run, "" if known is None else known.state)


def _slurm_state(
    entry: Entry, started: records.JournalEvent | None, goes_on: bool, queue: Queue | None
) -> tuple[str, str | None]:
    """Return the state of a run on Slurm that is not over, and a note for a person.

    Args:
        goes_on: its last controller has left it to the next job.
    """
    queue, run = queue or Queue(), entry.run
    jobs = queue.live(run)
    if jobs and (started is None or goes_on or all(job.state == "PENDING" for job in jobs)):
        waiting = next((job for job in jobs if job.state == "PENDING"), None)
        why = f" ({visible(waiting.reason)})" if waiting is not None and waiting.reason not in ("", "None") else ""
        note = "its controller starts" if waiting is None else f"Slurm job {waiting.name} is waiting in the queue{why}"
        return "waiting", note
    if not jobs and queue.covers(entry):
        return "lost", "none of its Slurm jobs is left"
    if not _silent(run):
        return "running", None
    return "silent", "its controller is not heard"


def _unfinished(known: Brief, run: RunDir) -> Brief:
    """Add what the journal of a run that is not over says; raise FtslurmError if it cannot be read."""
    story = Story(run)
    story.read()
    status = aged(story.status, time.time())
    if status.started is None:
        return known
    return replace(
        known,
        step=status.step,
        groups=len([group for group in status.groups if not group.leaves]) or known.groups,
        groups_at_work=status.at_work,
        steps_per_s=status.steps_per_s,
        restarts=status.restarts,
    )
