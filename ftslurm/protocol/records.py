"""The events of a run's journal (events.jsonl), one dataclass each.

Writers build one of these; `fields` gives the fields of the line in their order on disk, without `seq`, `time` and
`event`. ftslurm/run/journal_lines.py reads a line back into its dataclass. docs/journal.md and
docs/schema/events.schema.json are made from this module by docs/journal.py.

Conventions:
    `T | None` without a default: always written, null if unknown.
    A field with a default: left out of the line while it has that value.
    A key (`KEY`): without it, a reader treats the line as an unknown event. Any other missing field, or one of the
    wrong type, reads as None, "", 0 or empty.
    Units are in the names: `_s` is seconds; moments (`time`, `due`, `ends`, ...) are unix seconds.

A change that old readers would misread raises VERSION. New events and new fields do not: readers ignore what they do
not know.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING
from typing import Annotated, ClassVar, TypedDict

from ftslurm.protocol.causes import Cause
from ftslurm.protocol.value_class import dataclass

VERSION = 1
KEY = "key"

Unit = Annotated[str, "lighthouse, group-0003 or standby-000", KEY]
Group = Annotated[int, "the replica group", KEY]
GroupOfUnit = Annotated[int | None, "the replica group; null for the Lighthouse and standbys"]
Attempt = Annotated[int, "number of the attempt, from 0", KEY]
Allocation = Annotated[str, "name of the Slurm job as squeue shows it (81_2); local for a run without Slurm", KEY]
Node = Annotated[str, "the node", KEY]
Nodes = Annotated[tuple[str, ...], "nodes, in the order of their tasks"]
Reason = Annotated[str, "why, for a person"]
Pool = Annotated[int, "0: groups outside of cluster.ranges; i + 1: those of cluster.ranges[i]"]
By = Annotated[str | int | None, "user id of who asked, or what sent it: a signal, srun, faults.plan"]
CommandId = Annotated[str, "id of the command in the inbox", KEY]
Asked = Annotated[str, "restart, drain, undrain, save or stacks", KEY]
Step = Annotated[int | None, "step of training"]
SlurmStep = Annotated[str | None, "id of the Slurm step"]
Phases = Annotated[dict[str, float | None] | None, "seconds of each phase of the recovery; null: not reached"]


class RankRow(TypedDict):
    """One row of a rank table: where a task of the Slurm step runs."""

    rank: int
    node: str
    local_rank: int
    node_rank: int


class StuckGroup(TypedDict, total=False):
    """What a group does while no step is committed."""

    group: int
    attempt: int
    stage: int | None  # as in hang_found; null: it has not asked for a quorum
    last: str  # the last line of rank 0's log, or its newest error


@dataclass(frozen=True, kw_only=True)
class JournalRecord:
    """One event. `event` is its name in the line."""

    event: ClassVar[str] = ""

    @property
    def fields(self) -> dict[str, object]:
        """Return the fields of the line, in their order on disk."""
        values = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {
            field.name: list(value) if isinstance(value, tuple) else value
            for field, value in values
            if field.default is MISSING or value != field.default
        }


# --- the run and its controllers ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunStarted(JournalRecord):
    """A controller begins to lead the run: the first one, or one that takes over."""

    event: ClassVar[str] = "run_started"
    run_id: Annotated[str, "name of the run directory"]
    name: Annotated[str, "run.name"]
    job_id: Annotated[str | None, "Slurm job of the controller"]
    requeues: Annotated[int | None, "how often Slurm has requeued that job (SLURM_RESTART_COUNT)"]
    versions: Annotated[dict[str, str], "versions of Python and of the packages"]
    groups: Annotated[int, "number of replica groups"]
    workers: Annotated[int | None, "number of workers of each group"]
    min_groups: Annotated[int | None, "groups.min"]
    roles: Annotated[dict[str, int], "groups.roles: number of groups of each role"]
    lighthouse: Annotated[str, "lighthouse.kind; none: groups without a quorum"]
    mode: Annotated[str, "how groups get nodes: steps (of one Slurm job), array (a job for each group), or local"]
    cluster: Annotated[str, "cluster.kind"]
    total_steps: Annotated[int | None, "job.total_steps"]
    host: Annotated[str, "node of the controller"]
    pid: Annotated[int | None, "process id of the controller"]
    leader: Annotated[int | None, "number of the leader in RUN/leaders"]
    after: Annotated[str | None, "how the controller before it crashed; null: it did not"]
    limits: Annotated[
        dict[str, float], "how long a group may wait: start, join (its first step), first_step (of any group)"
    ]
    parent: Annotated[str | None, "the directory of the run that this one resumes"] = None
    sweep: Annotated[str | None, "the sweep that the run belongs to"] = None


@dataclass(frozen=True, kw_only=True)
class ControllerLeft(JournalRecord):
    """A controller makes way for another one. Nothing follows until that one starts."""

    event: ClassVar[str] = "controller_left"
    reason: Annotated[str | None, "why, for a person"]
    leader: Annotated[int | None, "its number in RUN/leaders"]


@dataclass(frozen=True, kw_only=True)
class ControllerError(JournalRecord):
    """An error inside ftslurm. The controller drops what it was handling and goes on."""

    event: ClassVar[str] = "controller_error"
    where: Annotated[str, "what the controller was handling"]
    error: Annotated[str, "type and text of the exception"]


@dataclass(frozen=True, kw_only=True)
class Command(JournalRecord):
    """Somebody has asked for something: ftslurm stop or inject, a signal, Slurm."""

    event: ClassVar[str] = "command"
    what: Annotated[str, "stop, or inject and the fault"]
    by: By
    reason: Annotated[str | None, "why, for a person; only of stop"] = None
    group: Annotated[int | None, "the replica group of a fault; left out: any"] = None
    rank: Annotated[int | None, "the rank of a fault"] = None


@dataclass(frozen=True, kw_only=True)
class Scaled(JournalRecord):
    """`ftslurm scale` has changed the number of groups."""

    event: ClassVar[str] = "scaled"
    groups: Annotated[int, "the new number of replica groups"]
    by: By


@dataclass(frozen=True, kw_only=True)
class ScaleRefused(JournalRecord):
    """`ftslurm scale` is refused."""

    event: ClassVar[str] = "scale_refused"
    groups: Annotated[int, "the number of replica groups asked for"]
    by: By
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class CommandDone(JournalRecord):
    """The controller does what `ftslurm restart`, `drain`, `undrain`, `save` or `stacks` asks for."""

    event: ClassVar[str] = "command_done"
    command: CommandId
    what: Asked
    by: By
    text: Annotated[str, "what is done, for a person"]
    group: Annotated[int | None, "the replica group of the command"] = None
    rank: Annotated[int | None, "the rank of the command"] = None
    node: Annotated[str | None, "the node of the command"] = None
    step: Annotated[int | None, "step of the checkpoint that was asked for"] = None
    path: Annotated[str | None, "where that checkpoint is"] = None


@dataclass(frozen=True, kw_only=True)
class CommandRefused(JournalRecord):
    """The controller cannot do what `ftslurm restart`, `drain`, `undrain`, `save` or `stacks` asks for."""

    event: ClassVar[str] = "command_refused"
    command: CommandId
    what: Asked
    by: By
    reason: Reason
    group: Annotated[int | None, "the replica group of the command"] = None
    rank: Annotated[int | None, "the rank of the command"] = None
    node: Annotated[str | None, "the node of the command"] = None


@dataclass(frozen=True, kw_only=True)
class RollOver(JournalRecord):
    """The controller's job ends soon: the groups save a checkpoint, then the job is started again."""

    event: ClassVar[str] = "roll_over"
    reason: Reason
    by: By
    seconds: Annotated[float | None, "time left for the checkpoint"]


@dataclass(frozen=True, kw_only=True)
class RunRequeued(JournalRecord):
    """The run stops here and goes on in another Slurm job, or in another start of this one."""

    event: ClassVar[str] = "run_requeued"
    outcome: Annotated[str, "requeued"]
    reason: Reason
    steps: Annotated[int | None, "the last committed step"]
    restarts: Annotated[int | None, "number of restarts of groups so far"]


@dataclass(frozen=True, kw_only=True)
class RunFinished(JournalRecord):
    """The run is over. Only another start of the run can follow."""

    event: ClassVar[str] = "run_finished"
    outcome: Annotated[str, "succeeded, failed or stopped"]
    reason: Reason
    steps: Annotated[int | None, "the last committed step"]
    restarts: Annotated[int | None, "number of restarts of groups"]


@dataclass(frozen=True, kw_only=True)
class Warned(JournalRecord):
    """Something that the user should know, once for each text."""

    event: ClassVar[str] = "warning"
    group: Annotated[int | None, "the first replica group that has reported it"]
    text: Annotated[str, "the warning"]


# --- Slurm jobs and nodes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AllocationRequested(JournalRecord):
    """Further Slurm jobs are submitted for groups."""

    event: ClassVar[str] = "allocation_requested"
    pool: Pool
    count: Annotated[int, "number of jobs"]
    exclude: Annotated[tuple[str, ...], "nodes that they must not get"]


@dataclass(frozen=True, kw_only=True)
class AllocationRefused(JournalRecord):
    """sbatch has refused a job. Written again only if the reason changes."""

    event: ClassVar[str] = "allocation_refused"
    pool: Pool
    reason: Reason
    again_s: Annotated[float | None, "time until the next try"]


@dataclass(frozen=True, kw_only=True)
class AllocationPending(JournalRecord):
    """A Slurm job waits in the queue. Written again if the reason changes."""

    event: ClassVar[str] = "allocation_pending"
    allocation: Allocation
    reason: Annotated[str | None, "Slurm's reason, e.g. Resources"]
    pool: Annotated[int | None, "as in allocation_requested"]


@dataclass(frozen=True, kw_only=True)
class AllocationGranted(JournalRecord):
    """Nodes can be used: those of the controller's own allocation (no `pool`), or those of a Slurm job for groups."""

    event: ClassVar[str] = "allocation_granted"
    allocation: Allocation
    nodes: Nodes
    pool: Annotated[int | None, "as in allocation_requested; left out: the controller's own allocation"] = None
    ends: Annotated[float | None, "when its time limit ends it"]


@dataclass(frozen=True, kw_only=True)
class AllocationEnds(JournalRecord):
    """The time limit of a Slurm job has become known, or has changed."""

    event: ClassVar[str] = "allocation_ends"
    allocation: Allocation
    ends: Annotated[float | None, "when its time limit ends it"]


@dataclass(frozen=True, kw_only=True)
class AllocationLeaving(JournalRecord):
    """A Slurm job ends soon: its group leaves it."""

    event: ClassVar[str] = "allocation_leaving"
    allocation: Allocation
    cause: Annotated[str, "as in step_exited: preempted, time_limit, cancelled"]
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class AllocationLost(JournalRecord):
    """A Slurm job gives no nodes any more."""

    event: ClassVar[str] = "allocation_lost"
    allocation: Allocation
    nodes: Nodes
    reason: Reason
    state: Annotated[str | None, "its state in Slurm, PENDING if it is requeued; null: the controller cancels it"]


@dataclass(frozen=True, kw_only=True)
class AllocationRequeued(JournalRecord):
    """The controller has Slurm requeue a job that its group had to leave."""

    event: ClassVar[str] = "allocation_requeued"
    allocation: Allocation
    reason: Annotated[str | None, "cause for which the group left"]


@dataclass(frozen=True, kw_only=True)
class PilotRestarted(JournalRecord):
    """A Slurm job runs although its batch process is gone: another pilot is started in it."""

    event: ClassVar[str] = "pilot_restarted"
    allocation: Allocation
    node: Node
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class NodeSilent(JournalRecord):
    """Nothing is heard from a node: the controller probes it."""

    event: ClassVar[str] = "node_silent"
    node: Node
    seconds: Annotated[float | None, "for how long"]
    reason: Annotated[str | None, "what a step there may be busy with, for a person"] = None


@dataclass(frozen=True, kw_only=True)
class NodeExcluded(JournalRecord):
    """No further step is placed on a node: it is lost, a group keeps failing there, or its hardware is broken."""

    event: ClassVar[str] = "node_excluded"
    node: Node
    group: Annotated[int | None, "the replica group that has failed there; left out: the node is lost"] = None
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class NodeRestored(JournalRecord):
    """An excluded node is used again."""

    event: ClassVar[str] = "node_restored"
    node: Node
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class NodeShunned(JournalRecord):
    """Slurm drains a node: it gets a further step only if no other node is free."""

    event: ClassVar[str] = "node_shunned"
    node: Node
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class NodeUnshunned(JournalRecord):
    """Slurm no longer drains a node that was shunned."""

    event: ClassVar[str] = "node_unshunned"
    node: Node
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class NodeChecksStarted(JournalRecord):
    """Nodes are checked (health.preflight): nothing is placed on one before it has passed."""

    event: ClassVar[str] = "node_checks_started"
    nodes: Nodes


@dataclass(frozen=True, kw_only=True)
class NodeCheckPassed(JournalRecord):
    """A node has passed its check (health.preflight)."""

    event: ClassVar[str] = "node_check_passed"
    node: Node
    seconds: Annotated[float | None, "how long the check took"]
    log: Annotated[str | None, "its output, in the run directory"]


@dataclass(frozen=True, kw_only=True)
class NodeCheckFailed(JournalRecord):
    """A node has failed its check (health.preflight): it is excluded for the rest of the run."""

    event: ClassVar[str] = "node_check_failed"
    node: Node
    reason: Reason
    seconds: Annotated[float | None, "how long the check took"]
    log: Annotated[str | None, "its output, in the run directory"]


@dataclass(frozen=True, kw_only=True)
class NodeDrained(JournalRecord):
    """`ftslurm drain`: nothing of the run is placed on a node, and what runs there moves away while there is room."""

    event: ClassVar[str] = "node_drained"
    node: Node
    by: By


@dataclass(frozen=True, kw_only=True)
class NodeUndrained(JournalRecord):
    """`ftslurm undrain`: a drained node is used again."""

    event: ClassVar[str] = "node_undrained"
    node: Node
    by: By


# --- Slurm steps of the Lighthouse, the groups and the standbys ----------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StepLaunched(JournalRecord):
    """A Slurm step is launched as the next attempt of a unit, or a group takes over a warm standby's step."""

    event: ClassVar[str] = "step_launched"
    unit: Unit
    group: GroupOfUnit
    attempt: Attempt
    nodes: Nodes
    slot: Annotated[int | None, "which of the places on these nodes (groups.per_node)"]
    allocation: Annotated[str | None, "the Slurm job; local for a run without Slurm"]
    ranks: Annotated[tuple[RankRow, ...], "the rank table as expected"]
    reason: Reason
    standby: Annotated[str | None, "the standby's step that becomes this attempt: standby-000/1"]
    down_s: Annotated[float | None, "time since the failure that this answers"]
    leaves: Annotated[tuple[str, ...], "leaf switches or blocks of a group's nodes, if Slurm has a topology"] = ()


@dataclass(frozen=True, kw_only=True)
class LaunchRefused(JournalRecord):
    """Slurm has refused to start a step. It is no attempt: the next launch has the same number."""

    event: ClassVar[str] = "launch_refused"
    unit: Unit
    group: GroupOfUnit
    attempt: Attempt
    reason: Reason
    again_s: Annotated[float | None, "time until the next try; null: none"]


@dataclass(frozen=True, kw_only=True)
class StepReady(JournalRecord):
    """All tasks of a step are up: a group's workers, a warm standby, or the Lighthouse."""

    event: ClassVar[str] = "step_ready"
    unit: Unit
    group: GroupOfUnit
    attempt: Attempt
    seconds: Annotated[float | None, "time since the launch"]
    url: Annotated[str | None, "address of the Lighthouse"] = None
    slurm_step: SlurmStep
    ranks: Annotated[tuple[RankRow, ...], "the rank table, if it is not the expected one"] = ()


@dataclass(frozen=True, kw_only=True)
class StepStarting(JournalRecord):
    """What an attempt that has not committed a step waits for, if that lasts: at most a line in five seconds."""

    event: ClassVar[str] = "step_starting"
    unit: Unit
    group: Group
    attempt: Attempt
    stage: Annotated[
        str,
        "launch, import, lighthouse, store, others, eviction; once its script has begun: script, quorum, step",
    ]
    since: Annotated[float | None, "since when the limit of this stage counts"]
    tasks: Annotated[int, "number of tasks of the step"]
    missing: Annotated[tuple[int, ...], "launch and import: the first tasks that it waits for"] = ()
    lacks: Annotated[int, "launch and import: number of tasks that it waits for"] = 0
    other: Annotated[int | None, "others: a group that has to be there first"] = None


@dataclass(frozen=True, kw_only=True)
class ScriptBegun(JournalRecord):
    """All ranks of a group run their script."""

    event: ClassVar[str] = "script_begun"
    unit: Unit
    group: Group
    attempt: Attempt


@dataclass(frozen=True, kw_only=True)
class StepAdopted(JournalRecord):
    """A controller that has taken over has reached a step that still runs."""

    event: ClassVar[str] = "step_adopted"
    unit: Unit
    group: GroupOfUnit
    attempt: Attempt
    nodes: Nodes
    step: Step
    slurm_step: SlurmStep
    allocation: Annotated[str | None, "the Slurm job; null: the controller's own allocation"]
    seconds: Annotated[float | None, "how long it took"]
    standby: Annotated[str | None, "the standby's step that had become this attempt"]


@dataclass(frozen=True, kw_only=True)
class StepExited(JournalRecord):
    """An attempt has ended."""

    event: ClassVar[str] = "step_exited"
    unit: Unit
    group: GroupOfUnit
    attempt: Attempt
    code: Annotated[int | None, "exit code"]
    signal: Annotated[int | None, "number of the signal"]
    cause: Annotated[str, ", ".join(cause.value for cause in Cause)]
    node: Annotated[str | None, "node of the rank that failed first"]
    rank: Annotated[int | None, "rank that failed first"]
    error: Annotated[str | None, "the error, for a person"]
    step: Annotated[int | None, "last committed step of this attempt"]
    launched: Annotated[bool | None, "false: no process of it has run"]
    healthy_s: Annotated[float | None, "how long it ran well"]
    noticed: Annotated[float | None, "when the failure was noticed"]
    with_job: Annotated[bool, "true: it ended with its Slurm job, while no controller led"] = False
    away_since: Annotated[float | None, "when the group was last at work"]
    evidence: Annotated[tuple[str, ...], "the signs by which the cause was decided"]
    traceback: Annotated[str | None, "the end of the script's traceback; of several ranks, each below `rank N:`"]
    phases: Annotated[Phases, "as in group_joined, of an attempt that never committed a step; else null"]
    log: Annotated[str | None, "log of the rank that failed first"] = None


@dataclass(frozen=True, kw_only=True)
class StepRecalled(JournalRecord):
    """A user's command ends a step: its unit runs again, as its next attempt. It is no failure."""

    event: ClassVar[str] = "step_recalled"
    unit: Unit
    group: GroupOfUnit
    attempt: Attempt
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class StacksTaken(JournalRecord):
    """The stacks of a rank, as `ftslurm stacks` has asked for them, are in a file beside its log."""

    event: ClassVar[str] = "stacks_taken"
    command: CommandId
    group: Group
    attempt: Attempt
    rank: Annotated[int, "the rank", KEY]
    node: Annotated[str | None, "its node"]
    file: Annotated[str, "name of the file in the log folder of the attempt"]
    error: Annotated[str | None, "why there is no file"] = None


@dataclass(frozen=True, kw_only=True)
class RestartScheduled(JournalRecord):
    """A group gets another attempt."""

    event: ClassVar[str] = "restart_scheduled"
    group: Group
    attempt: Annotated[int | None, "the next attempt"]
    due: Annotated[float, "not before this moment (backoff)"]
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class GroupWaits(JournalRecord):
    """The next attempt of a group waits for a node."""

    event: ClassVar[str] = "group_waits"
    group: Group
    reason: Annotated[str, "what it waits for"]
    allocation: Annotated[str | None, "the Slurm job that will bring the node"]


@dataclass(frozen=True, kw_only=True)
class GroupGivenUp(JournalRecord):
    """A group gets no further attempt."""

    event: ClassVar[str] = "group_given_up"
    group: Group
    reason: Annotated[str, "why, with the setting to change"]


@dataclass(frozen=True, kw_only=True)
class StandbyGivenUp(JournalRecord):
    """A standby gets no further attempt."""

    event: ClassVar[str] = "standby_given_up"
    unit: Unit
    reason: Annotated[str, "why, with the setting to change"]


# --- the training ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GroupJoined(JournalRecord):
    """A group has committed the first step of its attempt."""

    event: ClassVar[str] = "group_joined"
    group: Group
    attempt: Attempt
    step: Step
    quorum_id: Annotated[int | None, "id of the quorum"]
    participants: Annotated[int | None, "number of groups in the quorum"]
    seconds: Annotated[float | None, "time since the launch"]
    recovery_s: Annotated[float | None, "time since the failure, or the move, that this attempt answers"]
    phases: Phases


@dataclass(frozen=True, kw_only=True)
class Progress(JournalRecord):
    """How far a group is: at most one line a second of each, and about eight a second of all."""

    event: ClassVar[str] = "progress"
    group: Group
    attempt: Attempt
    step: Step
    quorum_id: Annotated[int | None, "id of the quorum"]
    participants: Annotated[int | None, "number of groups in the quorum"]
    committed: Annotated[int | None, "steps committed since the last line"]
    aborted: Annotated[int | None, "steps aborted since the last line"]
    gap_s: Annotated[float | None, "longest time between two commits since the last line"]
    sessions: Annotated[int | None, "open sessions of a parameter server"] = None
    at: Annotated[float | None, "when the group has reported it, if that was before `time`"] = None


@dataclass(frozen=True, kw_only=True)
class Serving(JournalRecord):
    """A parameter server is up."""

    event: ClassVar[str] = "serving"
    unit: Unit
    group: Group
    attempt: Attempt
    url: Annotated[str | None, "its address"]
    seconds: Annotated[float | None, "time since the launch"] = None
    recovery_s: Annotated[float | None, "as in group_joined"] = None
    phases: Phases = None


@dataclass(frozen=True, kw_only=True)
class SessionOpened(JournalRecord):
    """A group has a session with a parameter server."""

    event: ClassVar[str] = "session_opened"
    group: Group
    attempt: Attempt
    sessions: Annotated[int | None, "number of sessions of this attempt so far"]
    seconds: Annotated[float | None, "time since the launch; only of the first session"] = None
    recovery_s: Annotated[float | None, "as in group_joined; only of the first session"] = None
    phases: Phases = None


@dataclass(frozen=True, kw_only=True)
class NoFirstStep(JournalRecord):
    """All scripts run, but no step has been committed for a long time."""

    event: ClassVar[str] = "no_first_step"
    seconds: Annotated[float | None, "time since all scripts have begun"]
    reason: Reason
    groups: Annotated[tuple[StuckGroup, ...], "what the first groups do"]


@dataclass(frozen=True, kw_only=True)
class GroupSetAside(JournalRecord):
    """A group's guards and its manager are silent: quorums are formed without it for now. Its attempt is not ended."""

    event: ClassVar[str] = "group_set_aside"
    group: Group
    attempt: Attempt
    node: Annotated[str | None, "the node that is silent for the longest time"]
    seconds: Annotated[float | None, "how long its manager has been silent"]


@dataclass(frozen=True, kw_only=True)
class GroupHeardAgain(JournalRecord):
    """A group that was set aside is heard again: it takes part in the next quorum, and heals if it is behind."""

    event: ClassVar[str] = "group_heard_again"
    group: Group
    attempt: Attempt
    seconds: Annotated[float | None, "how long it was set aside"]


@dataclass(frozen=True, kw_only=True)
class HangFound(JournalRecord):
    """A rank makes no progress: its stacks are dumped, then its group is restarted."""

    event: ClassVar[str] = "hang_found"
    group: Group
    attempt: Attempt
    rank: Annotated[int | None, "the rank"]
    step: Annotated[int | None, "its last committed step"]
    stage: Annotated[
        int | None,
        "0 computing, 1 asking for a quorum, 2 with its quorum, 3 in a collective, 4 voting on the commit",
    ]
    silent_s: Annotated[float | None, "for how long"]
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class HangLimit(JournalRecord):
    """How long a group may stand still before it counts as hung, learnt from this run's steps. Written when it is first
    known and when it changes much."""

    event: ClassVar[str] = "hang_limit"
    in_step_s: Annotated[float | None, "the limit inside a step, from the request for a quorum to the vote"]
    between_s: Annotated[float | None, "the limit between two steps, where evaluations and checkpoints are"]
    steps: Annotated[int | None, "from how many times between two commits it was learnt"] = None
    common_s: Annotated[float | None, "99 of 100 recent ones are no longer than this"] = None
    longest_s: Annotated[float | None, "the longest one"] = None


@dataclass(frozen=True, kw_only=True)
class QuorumRefused(JournalRecord):
    """The Lighthouse forms no quorum for now, or refuses a manager. Written when the reason changes."""

    event: ClassVar[str] = "quorum_refused"
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(JournalRecord):
    """A checkpoint is complete."""

    event: ClassVar[str] = "checkpoint_saved"
    group: Group
    attempt: Attempt
    step: Step
    path: Annotated[str | None, "where"]
    seconds: Annotated[float | None, "how long it took"]


@dataclass(frozen=True, kw_only=True)
class CheckpointFailed(JournalRecord):
    """A checkpoint could not be saved. The training goes on."""

    event: ClassVar[str] = "checkpoint_failed"
    group: Group
    attempt: Attempt
    step: Step
    path: Annotated[str | None, "where"]
    seconds: Annotated[float | None, "how long it took"]
    error: Annotated[str, "the error"]


@dataclass(frozen=True, kw_only=True)
class CheckpointRestored(JournalRecord):
    """A group resumes from a checkpoint."""

    event: ClassVar[str] = "checkpoint_restored"
    group: Group
    attempt: Attempt
    step: Step
    path: Annotated[str | None, "where"]


@dataclass(frozen=True, kw_only=True)
class FullRestart(JournalRecord):
    """No group holds the training's state any more: all start again, from a checkpoint."""

    event: ClassVar[str] = "full_restart"
    reason: Annotated[str | None, "why, for a person"]
    step: Annotated[int | None, "the last committed step"]
    checkpoint: Annotated[str | None, "path of the checkpoint"]
    checkpoint_step: Annotated[int | None, "step of the checkpoint; null: only the script knows"]


# --- drills --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FaultInjected(JournalRecord):
    """A drill: a fault is injected."""

    event: ClassVar[str] = "fault_injected"
    kind: Annotated[str, "kill, term, stop, exit, oom, hang, cancel, node or lighthouse"]
    group: GroupOfUnit
    attempt: Annotated[int | None, "number of the attempt"]
    rank: Annotated[int | None, "the rank"]
    node: Annotated[str | None, "its node"]
    step: Step
    by: By
    reason: Annotated[None, "always null"]


@dataclass(frozen=True, kw_only=True)
class FaultRefused(JournalRecord):
    """A drill that cannot be done."""

    event: ClassVar[str] = "fault_refused"
    kind: Annotated[str, "as in fault_injected"]
    group: GroupOfUnit
    attempt: Annotated[int | None, "number of the attempt"] = None
    rank: Annotated[int | None, "the rank"]
    node: Annotated[str | None, "its node"] = None
    step: Step = None
    by: By = None
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class UnknownEvent(JournalRecord):
    """A line of another version, or one without its key fields. Never written."""


RunEvent = (
    RunStarted
    | ControllerLeft
    | ControllerError
    | Command
    | Scaled
    | ScaleRefused
    | CommandDone
    | CommandRefused
    | RollOver
    | RunRequeued
    | RunFinished
    | Warned
)
ClusterEvent = (
    AllocationRequested
    | AllocationRefused
    | AllocationPending
    | AllocationGranted
    | AllocationEnds
    | AllocationLeaving
    | AllocationLost
    | AllocationRequeued
    | PilotRestarted
    | NodeSilent
    | NodeExcluded
    | NodeRestored
    | NodeShunned
    | NodeUnshunned
    | NodeChecksStarted
    | NodeCheckPassed
    | NodeCheckFailed
    | NodeDrained
    | NodeUndrained
)
StepEvent = (
    StepLaunched
    | LaunchRefused
    | StepReady
    | StepStarting
    | ScriptBegun
    | StepAdopted
    | StepExited
    | StepRecalled
    | StacksTaken
    | RestartScheduled
    | GroupWaits
    | GroupGivenUp
    | StandbyGivenUp
)
TrainingEvent = (
    GroupJoined
    | Progress
    | Serving
    | SessionOpened
    | NoFirstStep
    | GroupSetAside
    | GroupHeardAgain
    | HangFound
    | HangLimit
    | QuorumRefused
    | CheckpointSaved
    | CheckpointFailed
    | CheckpointRestored
    | FullRestart
)
DrillEvent = FaultInjected | FaultRefused
JournalEvent = RunEvent | ClusterEvent | StepEvent | TrainingEvent | DrillEvent | UnknownEvent
EVENTS: tuple[type[JournalRecord], ...] = tuple(JournalRecord.__subclasses__())[:-1]  # without UnknownEvent
