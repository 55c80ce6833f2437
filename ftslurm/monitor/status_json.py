"""The JSON of `status --json` for other programs.

The keys are stable; new ones may be added. docs/journal.py makes a JSON Schema of these types and of the comments
beside them. Moments are unix seconds; a name that ends in `_s` is a duration in seconds.
"""

from __future__ import annotations

from typing import TypedDict

from ftslurm.core.state.model import Phase
from ftslurm.monitor.packing import packed
from ftslurm.monitor.starting import Wait, wait_of
from ftslurm.monitor.status import GroupStatus, RunStatus, aged

PhaseOfUnit = Phase  # phase of its current or last attempt
AttemptOrNone = int | None  # number of the attempt, from 0; null: never launched
Nodes = list[str]  # nodes, in the order of their tasks


class LighthouseJson(TypedDict):
    """The Lighthouse."""

    phase: PhaseOfUnit
    attempt: AttemptOrNone
    nodes: Nodes


class StandbyJson(LighthouseJson):
    """A warm standby."""

    name: str  # standby-000
    ready: bool  # it can replace a group at once


class JobJson(TypedDict):
    """A Slurm job that gives groups their nodes."""

    name: str  # as squeue shows it: 81_2
    pool: int  # 0: groups outside of cluster.ranges; i + 1: those of cluster.ranges[i]
    nodes: list[str]  # empty: the job waits in Slurm's queue
    reason: str | None  # Slurm's reason why it waits
    ends: float | None  # when its time limit ends it


class GroupJson(TypedDict):
    """A replica group."""

    group: int  # number of the group, from 0
    role: str | None  # its role, in a run with groups.roles
    phase: PhaseOfUnit
    step: int | None  # the last committed step that it reported
    participants: int | None  # number of groups in its quorum
    quorum_id: int | None  # id of its quorum
    attempt: AttemptOrNone
    nodes: Nodes
    restarts: int  # number of its restarts
    steps_per_s: float | None  # over the last 10 s; null: not known, or it commits no step
    still_s: float | None  # how long it has committed no step; null: it commits steps
    slow: float | None  # its own part of a step, in times of the other groups'; null: it is not slow
    last_error: str | None  # its last failure, for a person
    last_evidence: list[str]  # signs by which the cause of that failure was decided
    last_traceback: str | None  # end of the traceback of that failure
    waits_for: str | None  # what it waits for before it steps, for a person; null: it steps, or is over
    since: float | None  # since when it waits for that
    limit_s: float | None  # how long it may, counted from `since`; null: as long as it takes
    setting: str | None  # the setting of that limit: health.start_timeout_s
    job: str | None  # the Slurm job of its nodes, or that it waits for; null: the controller's


class RecoveryJson(TypedDict):
    """A restart of a group."""

    group: int  # number of the group
    attempt: int  # number of the new attempt
    seconds: float | None  # from the failure to the first committed step; null: none is committed
    cause: str  # as in step_exited of the journal
    detail: str  # the cause, for a person


class HookJson(TypedDict):
    """A hook or callback, or an output of metrics."""

    name: str  # hook PROGRAM, callback CLASS, or metrics PLACE
    done: int  # number of events that it has got; of metrics: of times that they were written
    failed: int  # number of these at which it has failed
    dropped: int  # number of events that it has not got because too many waited
    last_error: str | None  # how it has failed last


class StatusJson(TypedDict):
    """The status of a run."""

    run_id: str  # name of the run directory
    name: str  # run.name
    parent: str | None  # directory of the run that this one resumes
    mode: str  # steps, array or local; empty: not started yet
    job_id: str | None  # Slurm job of the controller
    job_starts: int  # how many Slurm jobs, or starts of one, the controller has had
    state: str  # as in `ftslurm list`: beside the outcomes waiting, silent and unknown, which may go on
    outcome: str  # running, succeeded, failed, stopped or lost (without a controller)
    missing: list[int]  # of a run that has succeeded: groups that were given up, or have never taken a step
    reason: str  # why, for a person
    step: int  # the last committed step of the run
    total_steps: int | None  # job.total_steps
    steps_per_s: float | None  # median of the groups; null: not known, or no group commits steps
    left_s: float | None  # until total_steps at this rate; null: not known
    started: float | None  # when the run started
    updated: float | None  # time of the journal's last line
    finished: float | None  # when the run finished
    restarts: int  # number of restarts of groups
    excluded_nodes: dict[str, str]  # nodes that get no step for now -> why
    drained_nodes: dict[str, str]  # nodes that a user (`ftslurm drain`) or Slurm drains -> why
    warnings: list[str]  # warnings, for a person
    checkpoint: int | None  # step of the newest checkpoint
    lighthouse: LighthouseJson | None  # the Lighthouse; null: lighthouse=none
    standbys: list[StandbyJson]  # the warm standbys, by name
    jobs: list[JobJson]  # Slurm jobs that give groups their nodes, without the controller's
    jobs_refused: dict[str, str]  # pool -> why sbatch refuses its jobs
    groups: list[GroupJson]  # the replica groups, by number
    recoveries: list[RecoveryJson]  # restarts of groups, oldest first
    hang_limit_s: float | None  # learnt limit for a group that stands still in a step; null: not learnt
    hang_limit_between_s: float | None  # the same between two steps
    slurm_rpcs: int  # number of RPCs to slurmctld, as of up to five minutes ago
    slurm_rpcs_a_minute: int  # the most of them in a minute
    hooks: list[HookJson]  # the hooks, callbacks and outputs of metrics
    note: str | None  # why the run has not started, or its controller is not heard, for a person


def to_json(status: RunStatus, now: float, note: str | None = None, state: str | None = None) -> StatusJson:
    """Return the status as `status --json` prints it.

    Args:
        now: the time, in unix seconds; for a silent controller, the time of its last sign of life.
        note: why the run has not started, or that its controller is silent.
        state: how the run stands, as in a list of runs; None: as the journal says.
    """
    status = aged(status, now)
    limit = status.hang_limit
    return packed(
        StatusJson,
        status,
        state=state or status.outcome,
        job_starts=status.starts,
        warnings=status.cautions,
        jobs=status.jobs.values(),
        groups=[_group(group, status) for group in status.groups],
        hang_limit_s=None if limit is None else limit.in_step_s,
        hang_limit_between_s=None if limit is None else limit.between_s,
        note=note,
    )


def _group(group: GroupStatus, status: RunStatus) -> GroupJson:
    last, wait = group.last, wait_of(group, status) or Wait("", None)
    return packed(
        GroupJson,
        wait,
        group,
        last_error=group.error,
        last_evidence=() if last is None else last.evidence,
        last_traceback=None if last is None else last.traceback,
        waits_for=wait.what or None,
    )
