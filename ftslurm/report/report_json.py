"""The JSON of `report --json` for other programs; report.html has the same and draws it.

The keys are stable; new ones may be added. docs/journal.py makes a JSON Schema of these types and of the comments
beside them. Moments are unix seconds; a name that ends in `_s` is a duration in seconds; docs/causes.md has the
formulas.
"""

from __future__ import annotations

from typing import TypedDict

from ftslurm.monitor.packing import packed
from ftslurm.monitor.status import RunStatus
from ftslurm.report.accounting import Accounts, times
from ftslurm.report.history import GroupHistory, History

Ratio = float | None  # from 0 to 1; null: there is nothing to divide by


class AccountJson(TypedDict):
    """Time that was lost to one thing."""

    name: str  # the cause, phase, node or group; empty: no node
    seconds: float  # seconds of groups
    failures: int


class FailureJson(TypedDict):
    """A failure, or a move that is none."""

    time: float  # when it was noticed
    died: float  # when the group was last at work, as far as known
    group: int | None  # null: the Lighthouse
    attempt: int
    cause: str  # as in step_exited
    detail: str  # the cause, for a person
    node: str | None
    log: str | None
    step: int | None  # the last committed step of the attempt
    moved: bool  # true: no failure, but preempted, at a time limit or on request
    drill: str | None  # the fault, if it was inflicted on purpose
    back: float | None  # when the group committed its next step
    recovery_s: float | None  # from `died` to `back`
    phases: dict[str, float | None] | None  # seconds of each phase of the recovery, as in group_joined


class GroupReportJson(TypedDict):
    """One group."""

    group: int
    attempts: int  # number of attempts
    committed: int  # steps that it reported as committed
    aborted: int
    trained_s: float
    lost_s: float
    queued_s: float
    finished_s: float


class SlowJson(TypedDict):
    """A time in which all groups waited for one that was slow by itself."""

    group: int
    nodes: list[str]
    begin: float
    end: float
    own_s: float  # its own part of a step, a median of 50
    others_s: float  # that of the other groups
    step_s: float  # a whole step
    lost_s: float  # how long the run waited for it in all


class ReportJson(TypedDict):
    """The report of a run."""

    run_id: str
    name: str
    parent: str | None  # directory of the run that this one resumes
    outcome: str  # running, succeeded, failed, stopped or lost (without a controller)
    reason: str
    begin: float  # when it was submitted
    end: float  # the end of the run, or of the report
    starts: int  # starts of the controller's job
    steps: int  # the last committed step
    first_step: int | None  # the first step that the run committed
    total_steps: int | None  # job.total_steps
    undone_steps: int  # steps that full restarts from a checkpoint have undone
    goodput: Ratio
    effective: float | None  # goodput with the time in Slurm's queue (ETTR)
    step_efficiency: Ratio  # of the steps that were tried, those that were committed
    mttf_s: float | None  # mean time to failure; null: nothing has failed, or no group has trained
    recovery_median_s: float | None  # median time from a failure to the group's next committed step
    recovery_worst_s: float | None  # the longest such time
    total_s: float  # seconds of groups, the sum of the next four
    trained_s: float
    lost_s: float
    queued_s: float  # waited for the nodes of a Slurm job
    finished_s: float  # after its script had ended
    by_cause: list[AccountJson]  # the lost time, split in four ways; each has the same sum
    by_phase: list[AccountJson]
    by_node: list[AccountJson]
    by_group: list[AccountJson]
    failures: list[FailureJson]
    groups: list[GroupReportJson]
    slow: list[SlowJson]
    slurm_rpcs: int  # number of RPCs to slurmctld, as of up to five minutes ago
    slurm_rpcs_a_minute: int  # the most of them in a minute
    warnings: list[str]  # warnings, for a person


def to_json(status: RunStatus, history: History, accounts: Accounts) -> ReportJson:
    """Return the report for `json.dumps`."""
    groups = [_group(group) for group in history.groups]
    return packed(ReportJson, accounts, history, status, failures=history.failures, groups=groups, steps=status.step)


def _group(group: GroupHistory) -> GroupReportJson:
    attempts = len({span.attempt for span in group.spans} - {-1})
    return packed(GroupReportJson, group, times(group.spans), attempts=attempts)
