"""How a run stands, as values: RunStatus and its parts. status_fold.py reads them out of the journal.

The journal cannot say that a group stands still, because nothing is written while nothing happens: `aged` adds that
from the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

from ftslurm.core.groups.progress_lines import every_s
from ftslurm.core.state.model import Phase
from ftslurm.monitor.event_text import ORDERLY

PHASES = ("detect", "end", "wait", "start", "import", "assign", "join", "commit")  # of a recovery, in their order
NEVER_S = 300 * 86400.0  # Slurm gives a job without a time limit an end in a year
TOLD_EVERY_S = 1.0  # groups report their steps once a second (large runs write fewer lines)
_STILL_S, _STILL_STEPS = 5.0, 5  # a group stands still when it has not stepped for so long, and for so many steps
_STILL_UNKNOWN_S = 60.0  # the same while the time of a step is not known; a longer first step raises it


class Recovery(NamedTuple):
    """One restart of a group: the new attempt, what it answers, and how long the group was away."""

    group: int
    attempt: int
    seconds: float | None  # from the failure to the first committed step; None: it has committed none
    cause: str  # as in the journal: killed, node_lost, ...
    detail: str  # the same for a person: "killed (signal 9) on n2"
    phases: Mapping[str, float | None] | None = None  # what the seconds went into: detect, end, wait, start, ...


@dataclass(frozen=True)
class LighthouseStatus:
    """The Lighthouse."""

    phase: Phase = Phase.PENDING
    attempt: int | None = None
    nodes: tuple[str, ...] = ()
    ended: float | None = None  # when its last attempt ended


@dataclass(frozen=True)
class GroupStatus:
    """One replica group."""

    group: int
    phase: Phase = Phase.PENDING
    step: int | None = None  # the last committed step it reported, also of an attempt that is over
    participants: int | None = None  # how many groups its quorum has
    quorum_id: int | None = None
    sessions: int | None = None  # with a parameter server: of a server those open, of another group all so far
    attempt: int | None = None  # None: never launched
    nodes: tuple[str, ...] = ()
    restarts: int = 0
    steps_per_s: float | None = None  # over the last 10 s
    last_error: str | None = None
    waiting_for: str | None = None
    joined: bool = False  # the current or last attempt has committed a step
    longest_gap_s: float | None = None  # between two of its own commits, within one attempt
    last_cause: str | None = None
    last_log: str | None = None  # of the attempt that ended with last_error
    last_evidence: tuple[str, ...] = ()  # the signs by which last_cause was decided
    last_traceback: str | None = None  # its end
    ended: float | None = None  # when its last attempt ended
    stepped: float | None = None  # when its step last rose
    still_s: float | None = None  # how long it has stood still, if it has: filled in by `aged`
    role: str | None = None  # in a run of groups that differ
    start: int = 0  # in which start of the controller's job it was launched last
    job: str | None = None  # the pilot or satellite in which it runs, ran last, or for which it waits
    leaves: bool = False  # `ftslurm scale` has taken it out of the run
    samples: tuple[tuple[float, int], ...] = ()  # (time, step) of this attempt, as far back as the rate needs

    @property
    def stepping(self) -> bool:
        """Whether it commits steps, as far as is known."""
        return self.phase is Phase.RUNNING and self.joined and self.still_s is None

    @property
    def live_step(self) -> int | None:
        """Its step, if its attempt lives; None: it holds no state of the training."""
        lives = self.joined and self.phase is not Phase.PENDING and self.phase is not Phase.FAILED
        return self.step if lives else None

    @property
    def down(self) -> bool:
        """Whether its last attempt has failed and no other has been launched since."""
        ended = self.phase in (Phase.PENDING, Phase.FAILED)
        return ended and self.last_error is not None and self.last_cause not in ORDERLY


@dataclass(frozen=True)
class StandbyStatus:
    """One warm standby. PENDING: it has no step, because its last one became a group's or has ended."""

    name: str
    phase: Phase = Phase.PENDING
    attempt: int | None = None
    nodes: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether it could take over at once."""
        return self.phase is Phase.RUNNING


@dataclass(frozen=True)
class JobStatus:
    """A Slurm job that gives groups their nodes: a pilot or a satellite."""

    name: str  # as squeue shows it: 81_2
    pool: int = 0  # which groups it is for: 0 those outside of cluster.ranges, i + 1 those of cluster.ranges[i]
    nodes: tuple[str, ...] = ()  # none: it waits in Slurm's queue
    reason: str | None = None  # Slurm's reason why it waits
    ends: float | None = None  # when its time limit ends it, in unix time
    leaving: str | None = None  # why its group leaves it: preempted, time_limit

    def left(self, now: float) -> float | None:
        """Seconds until its time limit; None: it has none, or a year."""
        left = None if self.ends is None else self.ends - now
        return left if left is not None and left <= NEVER_S else None


@dataclass(frozen=True)
class JobsStatus:
    """All jobs that give groups their nodes."""

    there: tuple[JobStatus, ...] = ()  # oldest first
    refused: Mapping[int, str] = field(default_factory=dict)  # pool -> why sbatch refuses its jobs
    asked: int = 0  # how many have been asked for
    lost: int = 0  # how many of them were taken away, or had to be left

    def named(self, name: str | None) -> JobStatus | None:
        """Return the job of this name; None: there is none."""
        return next((job for job in self.there if job.name == name), None)

    @property
    def running(self) -> list[JobStatus]:
        """Those that have nodes."""
        return [job for job in self.there if job.nodes]

    @property
    def waiting(self) -> list[JobStatus]:
        """Those in Slurm's queue."""
        return [job for job in self.there if not job.nodes]


@dataclass(frozen=True)
class RunStatus:
    """The whole run. `RunStatus()` is a run of which nothing is known yet."""

    run_id: str = ""
    name: str = ""
    outcome: str = "running"  # or succeeded, failed, stopped
    reason: str = ""
    mode: str = ""
    job_id: str | None = None
    starts: int = 0  # how many Slurm jobs, or starts of one, its controller has had
    groups: tuple[GroupStatus, ...] = ()
    lighthouse: LighthouseStatus | None = field(default_factory=LighthouseStatus)  # None: groups without a quorum
    standbys: tuple[StandbyStatus, ...] = ()  # by name
    jobs: JobsStatus = field(default_factory=JobsStatus)  # those that give groups their nodes
    scaled: bool = False  # `ftslurm scale` has changed the number of groups; attempts do not count restarts any more
    step: int = 0
    first_step: int | None = None  # the first step any group committed
    total_steps: int | None = None
    started: float | None = None
    updated: float | None = None  # the time of the last line
    finished: float | None = None
    restarts: int = 0
    recoveries: tuple[Recovery, ...] = ()
    full_restarts: tuple[tuple[int, int | None], ...] = ()  # of all groups: from which step back to which checkpoint's
    excluded_nodes: tuple[str, ...] = ()  # they get no step
    draining_nodes: tuple[str, ...] = ()  # Slurm drains them: they get a step only if no other node is free
    checkpoint: int | None = None  # the step of the newest that was saved, or that all groups started from
    warnings: tuple[str, ...] = ()
    no_step: str | None = None  # the warning that no step is committed although all scripts run

    @property
    def steps_per_s(self) -> float | None:
        """The median rate of the groups. (They step together; the rate of one that is just back is imprecise.)"""
        rates = [g.steps_per_s for g in self.groups if g.steps_per_s is not None]
        return median(rates) if rates else None

    @property
    def cautions(self) -> tuple[str, ...]:
        """All warnings, with those that hold only for now."""
        return self.warnings if self.no_step is None else (*self.warnings, self.no_step)

    @property
    def stepping(self) -> int:
        """Number of groups that commit steps."""
        return sum(g.stepping for g in self.groups)

    @property
    def at_work(self) -> int:
        """Number of groups that commit steps; without a quorum, of those that run."""
        return self.stepping if self.lighthouse is not None else sum(g.phase is Phase.RUNNING for g in self.groups)

    @property
    def still_s(self) -> float | None:
        """How long no group has stepped; None: one steps, or none was to."""
        still = [g.still_s for g in self.groups if g.still_s is not None]
        return min(still) if still and not any(g.stepping and g.step is not None for g in self.groups) else None

    @property
    def longest_gap(self) -> tuple[float, int] | None:
        """The longest time between two commits of one attempt, and its group."""
        return max(((g.longest_gap_s, g.group) for g in self.groups if g.longest_gap_s is not None), default=None)


def aged(status: RunStatus, now: float) -> RunStatus:
    """Return the status as of `now`, if the journal has no newer lines: groups that stand still get `still_s`."""
    if status.outcome != "running":
        return status
    heard = now - every_s(len(status.groups)) + TOLD_EVERY_S  # their next lines may not be due yet
    return replace(status, groups=tuple(_aged(g, now, heard, status.started) for g in status.groups))


def _aged(group: GroupStatus, now: float, heard: float, started: float | None) -> GroupStatus:
    group = replace(group, still_s=None)
    if not group.stepping or group.stepped is None:
        return group
    rate, still = group.steps_per_s, now - group.stepped
    if rate:
        limit = max(_STILL_S, _STILL_STEPS / rate)
    else:
        limit = max(_STILL_UNKNOWN_S, group.stepped - (group.stepped if started is None else started))
    return replace(group, steps_per_s=None, still_s=still) if heard - group.stepped > limit else group
