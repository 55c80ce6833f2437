"""The status of a run: RunStatus and its parts. status_fold.py changes them as the journal says.

The journal has no line for a group that stands still, because nothing is written while nothing happens: `aged` adds
that from the clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median

from ftslurm.core.groups.reports import every_s
from ftslurm.core.groups.verdict import describe
from ftslurm.core.state.model import OVER, Phase
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.protocol.causes import is_failure
from ftslurm.protocol.records import HangLimit, StepExited, StepStarting
from ftslurm.run.deliveries import Delivery
from ftslurm.run.journal_writer import TOLD_EVERY_S

NEVER_S = 300 * 86400.0  # Slurm sets the end of a job without a time limit to a year from now
_STILL_S, _STILL_STEPS = 5.0, 5  # a group stands still after this time without a step, and the time of this many steps
_STILL_UNKNOWN_S = 60.0  # the same limit while the step time is unknown; a longer first step raises it


@dataclass
class Recovery:
    """One restart of a group: the new attempt, the cause, and how long the group was away."""

    group: int
    attempt: int
    seconds: float | None  # from the failure to the first committed step; None: it has committed none
    cause: str  # as in the journal: killed, node_lost, ...
    detail: str  # the cause for a person: "killed (signal 9) on n2"


@dataclass
class UnitStatus:
    """The status of the Lighthouse or of a warm standby. PENDING: it has no Slurm step."""

    name: str
    phase: Phase = Phase.PENDING
    attempt: int | None = None
    nodes: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Return whether it does its work; a standby: can replace a group at once."""
        return self.phase is Phase.RUNNING


@dataclass
class GroupStatus:
    """The status of one replica group."""

    group: int
    phase: Phase = Phase.PENDING
    step: int | None = None  # the last committed step it reported, also of an attempt that is over
    participants: int | None = None  # number of groups in its quorum
    quorum_id: int | None = None
    attempt: int | None = None  # None: never launched
    nodes: tuple[str, ...] = ()
    restarts: int = 0  # after failures
    recovery: Recovery | None = None  # the restart that its last attempt is, if it is one
    again: bool = False  # this attempt follows another one of this start of the job
    retried: bool = False  # Slurm refused to launch this attempt before
    steps_per_s: float | None = None  # over the last 10 s
    last: StepExited | None = None  # how its last attempt ended that had worked, or has failed
    given_up: str | None = None  # why it gets no other attempt
    waiting_for: str | None = None  # PENDING: nodes, launch
    since: float | None = None  # when this wait began, which a limit may count from
    backoff_s: float | None = None  # PENDING: how long it waits for its next launch
    starting: StepStarting | None = None  # how far its start has come, if that lasts
    aside: float | None = None  # since when it has been silent, so that quorums are formed without it
    slow: float | None = None  # its own part of a step, in times of the others'; None: not slow
    joined: bool = False  # the current or last attempt has committed a step
    stepped: float | None = None  # when its step last rose
    still_s: float | None = None  # how long it has stood still, filled in by `aged`; None: it does not
    role: str | None = None  # in a run of groups that differ
    start: int = 0  # number of the start of the controller's job in which it was last launched
    job: str | None = None  # the pilot or satellite in which it runs or last ran, or for which it waits
    leaves: bool = False  # `ftslurm scale` has taken it out of the run
    samples: tuple[tuple[float, int], ...] = ()  # (time, step) of this attempt, within the rate's window

    def turn(self, phase: Phase, since: float | None) -> None:
        """Begin or end an attempt: of the last one remain its end, its step and where it ran."""
        self.phase, self.since, self.samples = phase, since, ()
        self.starting = self.aside = self.slow = self.participants = self.quorum_id = None
        self.steps_per_s = self.stepped = self.waiting_for = self.backoff_s = None

    @property
    def stepping(self) -> bool:
        """Return whether the group commits steps, as far as is known."""
        return self.phase is Phase.RUNNING and self.joined and self.still_s is None and self.aside is None

    @property
    def holds_state(self) -> bool:
        """Return whether it has a live attempt that has come to a step."""
        return self.joined and self.step is not None and self.phase not in (Phase.PENDING, Phase.FAILED)

    @property
    def down(self) -> bool:
        """Return whether the last attempt has failed and no other has been launched since."""
        ended = self.phase in (Phase.PENDING, Phase.FAILED)
        return ended and self.last is not None and is_failure(self.last.cause)

    @property
    def error(self) -> str | None:
        """Return how it ended, and why it gets no other attempt; None: neither has happened."""
        return "; ".join(filter(None, (describe(self.last) if self.last is not None else None, self.given_up))) or None


@dataclass
class JobStatus:
    """A Slurm job that gives groups their nodes: a pilot or a satellite."""

    name: str  # as squeue shows it: 81_2
    pool: int = 0  # 0: groups outside of cluster.ranges; i + 1: groups of cluster.ranges[i]
    nodes: tuple[str, ...] = ()  # empty: it waits in Slurm's queue
    reason: str | None = None  # Slurm's reason why it waits
    ends: float | None = None  # end of its time limit, in unix time

    def left(self, now: float) -> float | None:
        """Return the seconds until its time limit; None: it has none (or one beyond NEVER_S)."""
        left = None if self.ends is None else self.ends - now
        return left if left is not None and left <= NEVER_S else None


@dataclass
class RunStatus:
    """The status of a whole run. `RunStatus()`: nothing is known yet."""

    run_id: str = ""
    name: str = ""
    parent: str | None = None  # directory of the run that this one resumes
    outcome: str = "running"  # or succeeded, failed, stopped
    missing: tuple[int, ...] = ()  # of a run that has succeeded: the groups without which it has
    reason: str = ""
    mode: str = ""
    job_id: str | None = None
    starts: int = 0  # number of Slurm jobs, or starts of one, that its controller has had
    groups: list[GroupStatus] = field(default_factory=list)  # by number
    # By name: the Lighthouse, unless groups have no quorum, and the standbys.
    units: dict[str, UnitStatus] = field(default_factory=lambda: {LIGHTHOUSE: UnitStatus(LIGHTHOUSE)})
    jobs: dict[str, JobStatus] = field(default_factory=dict)  # by name: those that give groups their nodes
    jobs_refused: dict[int, str] = field(default_factory=dict)  # pool -> why sbatch refuses its jobs
    step: int = 0
    first_step: int | None = None  # the first step that any group committed
    total_steps: int | None = None
    limits: dict[str, float] = field(default_factory=dict)  # start, join, first_step -> how long a group may wait
    started: float | None = None
    updated: float | None = None  # the time of the last line
    finished: float | None = None
    restarts: int = 0
    recoveries: list[Recovery] = field(default_factory=list)
    full_restarts: int = 0
    excluded_nodes: dict[str, str] = field(default_factory=dict)  # they get no Slurm step -> why
    drained_nodes: dict[str, str] = field(default_factory=dict)  # a user or Slurm drains them -> why
    checkpoint: int | None = None  # step of the newest saved checkpoint, or of the one all groups started from
    warnings: list[str] = field(default_factory=list)
    # What hooks, callbacks and metrics have got: the observer writes it, not the journal.
    hooks: tuple[Delivery, ...] = ()
    slurm_rpcs: int = 0  # number of RPCs to slurmctld, as of the last line about them
    slurm_rpcs_a_minute: int = 0  # the most in a minute
    hang_limit: HangLimit | None = None  # None: it is not learnt, or not yet
    no_step: str | None = None  # the warning that no step is committed although all scripts run

    @property
    def lighthouse(self) -> UnitStatus | None:
        """Return the Lighthouse; None: groups without a quorum."""
        return self.units.get(LIGHTHOUSE)

    @property
    def standbys(self) -> list[UnitStatus]:
        """Return the warm standbys, by name."""
        return [unit for name, unit in sorted(self.units.items()) if name != LIGHTHOUSE]

    @property
    def waiting_jobs(self) -> list[JobStatus]:
        """Return the jobs in Slurm's queue."""
        return [job for job in self.jobs.values() if not job.nodes]

    @property
    def steps_per_s(self) -> float | None:
        """Return the median rate of the groups. They step together, and a group that is just back has a poor rate."""
        rates = [g.steps_per_s for g in self.groups if g.steps_per_s is not None]
        return median(rates) if rates else None

    @property
    def left_s(self) -> float | None:
        """Return in how many seconds the last step is committed at the present rate; None: not known."""
        rate = self.steps_per_s
        return max(0, self.total_steps - self.step) / rate if rate and self.total_steps else None

    @property
    def cautions(self) -> list[str]:
        """Return all warnings, with the temporary one of `no_step`."""
        return [*self.warnings, *filter(None, (self.no_step,))]

    @property
    def at_work(self) -> int:
        """Return the number of groups that commit steps; without a quorum, of those that run."""
        return sum(g.phase is Phase.RUNNING if self.lighthouse is None else g.stepping for g in self.groups)


def lose_controller(status: RunStatus, outcome: str, reason: str) -> None:
    """Note that the controller of a run is gone: its steps have ended with it."""
    status.outcome, status.reason = outcome, reason
    for unit in status.units.values():
        unit.phase = Phase.PENDING
    for group in status.groups:
        group.phase, group.steps_per_s = group.phase if group.phase in OVER else Phase.PENDING, None


def aged(status: RunStatus, now: float) -> RunStatus:
    """Return the status as of `now` for a journal without newer lines: groups that stand still get `still_s`."""
    if status.outcome != "running":
        return status
    heard = now - every_s(len(status.groups)) + TOLD_EVERY_S  # the groups' next lines may not be due yet
    return replace(status, groups=[_aged(g, now, heard, status.started) for g in status.groups])


def _aged(group: GroupStatus, now: float, heard: float, started: float | None) -> GroupStatus:
    group = replace(group, still_s=None)
    if not group.stepping or group.stepped is None:
        return replace(group, steps_per_s=None)
    if rate := group.steps_per_s:
        limit = max(_STILL_S, _STILL_STEPS / rate)
    else:
        limit = max(_STILL_UNKNOWN_S, group.stepped - (started or group.stepped))
    if heard - group.stepped > limit:
        group = replace(group, steps_per_s=None, still_s=now - group.stepped)
    return group
