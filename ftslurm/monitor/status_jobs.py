"""How do the jobs stand that give groups their nodes? A fold over their lines of the journal, for status.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ftslurm.run.journal import Event, integer, names, number, text

NEVER_S = 300 * 86400.0  # Slurm gives a job without a time limit an end in a year


@dataclass(frozen=True)
class JobStatus:
    """A pilot or a satellite, as the journal knows it."""

    name: str  # as squeue shows it: 81_2
    pool: int = 0  # which groups it is for: 0 those of no range, i + 1 those of cluster.ranges[i]
    nodes: tuple[str, ...] = ()  # none: it waits in Slurm's queue
    reason: str | None = None  # why it waits, in Slurm's word
    ends: float | None = None  # its time limit, in unix time
    leaving: str | None = None  # why its group leaves it: preempted, time_limit

    def left(self, now: float) -> float | None:
        """Seconds until its time limit; None: it has none, as far as a person would say."""
        left = None if self.ends is None else self.ends - now
        return left if left is not None and left <= NEVER_S else None


@dataclass(frozen=True)
class JobsStatus:
    """All of them."""

    there: tuple[JobStatus, ...] = ()  # oldest first
    refused: Mapping[int, str] = field(default_factory=dict)  # pool -> why sbatch refuses its jobs
    asked: int = 0  # how many have been asked for
    lost: int = 0  # how many of them were taken away, or had to be left

    def named(self, name: str | None) -> JobStatus | None:
        return next((job for job in self.there if job.name == name), None)

    @property
    def running(self) -> list[JobStatus]:
        return [job for job in self.there if job.nodes]

    @property
    def waiting(self) -> list[JobStatus]:
        return [job for job in self.there if not job.nodes]


def after(jobs: JobsStatus, event: Event) -> JobsStatus:
    """The jobs after a line about them."""
    name, pool = text(event, "allocation") or "?", integer(event, "pool")
    old = jobs.named(name) or JobStatus(name, pool or 0)
    match event.get("event"):
        case "allocation_requested":
            return replace(jobs, asked=jobs.asked + (integer(event, "count") or 0))
        case "allocation_refused":
            return replace(jobs, refused={**jobs.refused, pool or 0: text(event, "reason") or "no reason given"})
        case "allocation_pending":
            return _put(jobs, replace(old, reason=text(event, "reason"), nodes=(), ends=None, leaving=None))
        case "allocation_granted":
            return _put(jobs, JobStatus(name, old.pool, names(event, "nodes"), ends=number(event, "ends")))
        case "allocation_ends" if jobs.named(name):
            return _put(jobs, replace(old, ends=number(event, "ends")))
        case "allocation_leaving":
            return _put(jobs, replace(old, leaving=text(event, "cause")))
        case "allocation_lost" if text(event, "state") == "PENDING":  # Slurm has requeued it
            return replace(_put(jobs, JobStatus(name, old.pool)), lost=jobs.lost + 1)
        case "allocation_lost":
            there = tuple(job for job in jobs.there if job.name != name)
            return replace(jobs, there=there, lost=jobs.lost + bool(old.nodes and text(event, "state")))
    return jobs


def _put(jobs: JobsStatus, job: JobStatus) -> JobsStatus:
    there = tuple(job if one.name == job.name else one for one in jobs.there)
    refused = {pool: why for pool, why in jobs.refused.items() if pool != job.pool or jobs.named(job.name)}
    return replace(jobs, there=there if jobs.named(job.name) else (*there, job), refused=refused)
