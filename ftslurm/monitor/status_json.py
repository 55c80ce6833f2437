"""The JSON of `status --json` for other programs.

The keys are stable; new ones may be added. docs/journal.py makes a JSON Schema of these types. Moments are unix
seconds; a name that ends in `_s` is a duration in seconds.
"""

from __future__ import annotations

from typing import Annotated, TypedDict

from ftslurm.core.state.model import Phase
from ftslurm.monitor.packing import packed
from ftslurm.monitor.starting import Wait, wait_of
from ftslurm.monitor.status import GroupStatus, RunStatus, aged

PhaseOfUnit = Annotated[Phase, "phase of its current or last attempt"]
AttemptOrNone = Annotated[int | None, "number of the attempt, from 0; null: never launched"]
Nodes = Annotated[list[str], "nodes, in the order of their tasks"]


class LighthouseJson(TypedDict):
    """The Lighthouse."""

    phase: PhaseOfUnit
    attempt: AttemptOrNone
    nodes: Nodes


class StandbyJson(TypedDict):
    """A warm standby."""

    name: Annotated[str, "standby-000"]
    phase: PhaseOfUnit
    attempt: AttemptOrNone
    nodes: Nodes
    ready: Annotated[bool, "it can replace a group at once"]


class JobJson(TypedDict):
    """A Slurm job that gives groups their nodes."""

    name: Annotated[str, "as squeue shows it: 81_2"]
    pool: Annotated[int, "0: groups outside of cluster.ranges; i + 1: those of cluster.ranges[i]"]
    nodes: Annotated[list[str], "empty: the job waits in Slurm's queue"]
    reason: Annotated[str | None, "Slurm's reason why it waits"]
    ends: Annotated[float | None, "when its time limit ends it"]
    leaving: Annotated[str | None, "why its group leaves it: preempted, time_limit, cancelled"]


class GroupJson(TypedDict):
    """A replica group."""

    group: Annotated[int, "number of the group, from 0"]
    role: Annotated[str | None, "its role, in a run with groups.roles"]
    phase: PhaseOfUnit
    step: Annotated[int | None, "the last committed step that it reported"]
    participants: Annotated[int | None, "number of groups in its quorum"]
    quorum_id: Annotated[int | None, "id of its quorum"]
    attempt: AttemptOrNone
    nodes: Nodes
    restarts: Annotated[int, "number of its restarts"]
    steps_per_s: Annotated[float | None, "over the last 10 s; null: not known, or it commits no step"]
    still_s: Annotated[float | None, "how long it has committed no step; null: it commits steps"]
    longest_gap_s: Annotated[float | None, "longest time between two committed steps of one attempt"]
    slow: Annotated[float | None, "its own part of a step, in times of the other groups'; null: it is not slow"]
    last_error: Annotated[str | None, "its last failure, for a person"]
    last_evidence: Annotated[list[str], "signs by which the cause of that failure was decided"]
    last_traceback: Annotated[str | None, "end of the traceback of that failure"]
    waits_for: Annotated[str | None, "what it waits for before it steps, for a person; null: it steps, or is over"]
    since: Annotated[float | None, "since when it waits for that"]
    limit_s: Annotated[float | None, "how long it may, counted from `since`; null: as long as it takes"]
    setting: Annotated[str | None, "the setting of that limit: health.start_timeout_s"]
    last_line: Annotated[str | None, "the last line that it has printed, while it starts"]
    waiting_for: Annotated[str | None, "waits_for in short"]
    job: Annotated[str | None, "the Slurm job of its nodes, or that it waits for; null: the controller's"]


class RecoveryJson(TypedDict):
    """A restart of a group."""

    group: Annotated[int, "number of the group"]
    attempt: Annotated[int, "number of the new attempt"]
    seconds: Annotated[float | None, "from the failure to the first committed step; null: none is committed"]
    cause: Annotated[str, "as in step_exited of the journal"]
    detail: Annotated[str, "the cause, for a person"]
    phases: Annotated[
        dict[str, float | None] | None,
        "seconds of detect, end, wait, start, import, assign, join and commit; null: not reached, or not known",
    ]


class HookJson(TypedDict):
    """A hook or callback, or an output of metrics."""

    name: Annotated[str, "hook PROGRAM, callback CLASS, or metrics PLACE"]
    done: Annotated[int, "number of events that it has got; of metrics: of times that they were written"]
    failed: Annotated[int, "number of these at which it has failed"]
    dropped: Annotated[int, "number of events that it has not got because too many waited"]
    last_error: Annotated[str | None, "how it has failed last"]


class StatusJson(TypedDict):
    """The status of a run."""

    run_id: Annotated[str, "name of the run directory"]
    name: Annotated[str, "run.name"]
    parent: Annotated[str | None, "directory of the run that this one resumes"]
    mode: Annotated[str, "steps, array or local; empty: not started yet"]
    job_id: Annotated[str | None, "Slurm job of the controller"]
    job_starts: Annotated[int, "how many Slurm jobs, or starts of one, the controller has had"]
    state: Annotated[str, "as in `ftslurm list`: beside the outcomes waiting, silent and unknown, which may go on"]
    outcome: Annotated[str, "running, succeeded, failed, stopped or lost (without a controller)"]
    reason: Annotated[str, "why, for a person"]
    step: Annotated[int, "the last committed step of the run"]
    total_steps: Annotated[int | None, "job.total_steps"]
    steps_per_s: Annotated[float | None, "median of the groups; null: not known, or no group commits steps"]
    left_s: Annotated[float | None, "until total_steps at this rate; null: not known"]
    started: Annotated[float | None, "when the run started"]
    updated: Annotated[float | None, "time of the journal's last line"]
    finished: Annotated[float | None, "when the run finished"]
    restarts: Annotated[int, "number of restarts of groups"]
    longest_gap_s: Annotated[float | None, "longest time between two committed steps of one attempt of a group"]
    excluded_nodes: Annotated[list[str], "nodes that get no step for now"]
    unfit_nodes: Annotated[dict[str, str], "those of them that have failed health.preflight -> why"]
    drained_nodes: Annotated[list[str], "nodes that a user drains (`ftslurm drain`): they get no step"]
    draining_nodes: Annotated[list[str], "nodes that Slurm drains: they get a step only if no other node is free"]
    warnings: Annotated[list[str], "warnings, for a person"]
    checkpoint: Annotated[int | None, "step of the newest checkpoint"]
    lighthouse: Annotated[LighthouseJson | None, "the Lighthouse; null: lighthouse=none"]
    standbys: Annotated[list[StandbyJson], "the warm standbys, by name"]
    jobs: Annotated[list[JobJson], "Slurm jobs that give groups their nodes, without the controller's"]
    jobs_refused: Annotated[dict[str, str], "pool -> why sbatch refuses its jobs"]
    jobs_asked: Annotated[int, "number of jobs that were asked for"]
    jobs_lost: Annotated[int, "number of those that were taken away, or had to be left"]
    groups: Annotated[list[GroupJson], "the replica groups, by number"]
    recoveries: Annotated[list[RecoveryJson], "restarts of groups, oldest first"]
    hang_limit_s: Annotated[float | None, "learnt limit for a group that stands still in a step; null: not learnt"]
    hang_limit_between_s: Annotated[float | None, "the same between two steps"]
    hooks: Annotated[list[HookJson], "the hooks, callbacks and outputs of metrics"]
    note: Annotated[str | None, "why the run has not started, or its controller is not heard, for a person"]


def to_json(status: RunStatus, now: float, note: str | None = None, state: str | None = None) -> StatusJson:
    """Return the status as `status --json` prints it.

    Args:
        now: the time, in unix seconds; for a silent controller, the time of its last sign of life.
        note: why the run has not started, or that its controller is silent.
        state: how the run stands, as in a list of runs; None: as the journal says.
    """
    status = aged(status, now)
    limit, gap = status.hang_limit, status.longest_gap
    return packed(
        StatusJson,
        status,
        state=state or status.outcome,
        job_starts=status.starts,
        longest_gap_s=None if gap is None else gap[0],
        warnings=status.cautions,
        jobs=status.jobs.there,
        jobs_refused=status.jobs.refused,
        jobs_asked=status.jobs.asked,
        jobs_lost=status.jobs.lost,
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
