"""The events of a run's journal (events.jsonl), one dataclass each.

Writers build one of these; `fields` gives the fields of the line in their order on disk, without `seq`, `time` and
`event`. ftslurm/run/journal_lines.py reads a line back into its dataclass. docs/journal.py makes a page and a
JSON Schema of this module.

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
import re
from dataclasses import MISSING
from typing import Annotated, ClassVar, TypedDict

from ftslurm.protocol.causes import Cause
from ftslurm.protocol.value_class import Value, dataclass_transform

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
    stage: str  # as in step_starting
    last: str  # the last line of rank 0's log, or its newest error


@dataclass_transform(frozen_default=True, kw_only_default=True)
class JournalRecord(Value, kw_only=True):
    """One event."""

    event: ClassVar[str] = ""  # its name in the line: that of the class, as run_started

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "event" not in vars(cls):
            cls.event = re.sub("(?<!^)([A-Z])", r"_\1", cls.__name__).lower()

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


class RunStarted(JournalRecord):
    """A controller begins to lead the run: the first one, or one that takes over."""

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


class ControllerLeft(JournalRecord):
    """A controller makes way for another one. Nothing follows until that one starts."""

    reason: Annotated[str | None, "why, for a person"]
    leader: Annotated[int | None, "its number in RUN/leaders"]


class ControllerError(JournalRecord):
    """An error inside ftslurm. The controller drops what it was handling and goes on."""

    where: Annotated[str, "what the controller was handling"]
    error: Annotated[str, "type and text of the exception"]


class Command(JournalRecord):
    """Somebody has asked for something: ftslurm stop or inject, a signal, Slurm."""

    what: Annotated[str, "stop, or inject and the fault"]
    by: By
    reason: Annotated[str | None, "why, for a person; only of stop"] = None
    group: Annotated[int | None, "the replica group of a fault; left out: any"] = None
    rank: Annotated[int | None, "the rank of a fault"] = None


class Scaled(JournalRecord):
    """`ftslurm scale` has changed the number of groups."""

    groups: Annotated[int, "the new number of replica groups"]
    by: By


class ScaleRefused(JournalRecord):
    """`ftslurm scale` is refused."""

    groups: Annotated[int, "the number of replica groups asked for"]
    by: By
    reason: Reason


class CommandDone(JournalRecord):
    """The controller does what `ftslurm restart`, `drain`, `undrain`, `save` or `stacks` asks for."""

    command: CommandId
    what: Asked
    by: By
    text: Annotated[str, "what is done, for a person"]
    group: Annotated[int | None, "the replica group of the command"] = None
    rank: Annotated[int | None, "the rank of the command"] = None
    node: Annotated[str | None, "the node of the command"] = None
    step: Annotated[int | None, "step of the checkpoint that was asked for"] = None
    path: Annotated[str | None, "where that checkpoint is"] = None


class CommandRefused(JournalRecord):
    """The controller cannot do what `ftslurm restart`, `drain`, `undrain`, `save` or `stacks` asks for."""

    command: CommandId
    what: Asked
    by: By
    reason: Reason
    group: Annotated[int | None, "the replica group of the command"] = None
    rank: Annotated[int | None, "the rank of the command"] = None
    node: Annotated[str | None, "the node of the command"] = None


class RollOver(JournalRecord):
    """The controller's job ends soon: the groups save a checkpoint, then the job is started again."""

    reason: Reason
    by: By
    seconds: Annotated[float | None, "time left for the checkpoint"]


class RunRequeued(JournalRecord):
    """The run stops here and goes on in another Slurm job, or in another start of this one."""

    outcome: Annotated[str, "requeued"]
    reason: Reason
    steps: Annotated[int | None, "the last committed step"]
    restarts: Annotated[int | None, "number of restarts of groups so far"]


class RunFinished(JournalRecord):
    """The run is over. Only another start of the run can follow."""

    outcome: Annotated[str, "succeeded, failed or stopped"]
    reason: Reason
    steps: Annotated[int | None, "the last committed step"]
    restarts: Annotated[int | None, "number of restarts of groups"]
    failure: Annotated[str | None, "of a run that has failed: how the last group failed that did not come back"] = None


class Warned(JournalRecord):
    """Something that the user should know, once for each text."""

    event = "warning"
    group: Annotated[int | None, "the first replica group that has reported it"]
    text: Annotated[str, "the warning"]


# --- Slurm jobs and nodes ----------------------------------------------------------------------------------------


class AllocationRequested(JournalRecord):
    """Further Slurm jobs are submitted for groups."""

    pool: Pool
    count: Annotated[int, "number of jobs"]
    exclude: Annotated[tuple[str, ...], "nodes that they must not get"]


class AllocationRefused(JournalRecord):
    """sbatch has refused a job. Written again only if the reason changes."""

    pool: Pool
    reason: Reason
    again_s: Annotated[float | None, "time until the next try"]


class AllocationPending(JournalRecord):
    """A Slurm job waits in the queue. Written again if the reason changes."""

    allocation: Allocation
    reason: Annotated[str | None, "Slurm's reason, e.g. Resources"]
    pool: Annotated[int | None, "as in allocation_requested"]


class AllocationGranted(JournalRecord):
    """Nodes can be used: those of the controller's own allocation (no `pool`), or those of a Slurm job for groups."""

    allocation: Allocation
    nodes: Nodes
    pool: Annotated[int | None, "as in allocation_requested; left out: the controller's own allocation"] = None
    ends: Annotated[float | None, "when its time limit ends it"]


class AllocationEnds(JournalRecord):
    """The time limit of a Slurm job has become known, or has changed."""

    allocation: Allocation
    ends: Annotated[float | None, "when its time limit ends it"]


class AllocationLeaving(JournalRecord):
    """A Slurm job ends soon: its group leaves it."""

    allocation: Allocation
    cause: Annotated[str, "as in step_exited: preempted, time_limit, cancelled"]
    reason: Reason


class AllocationLost(JournalRecord):
    """A Slurm job gives no nodes any more."""

    allocation: Allocation
    nodes: Nodes
    reason: Reason
    state: Annotated[str | None, "its state in Slurm, PENDING if it is requeued; null: the controller cancels it"]


class AllocationRequeued(JournalRecord):
    """The controller has Slurm requeue a job that its group had to leave."""

    allocation: Allocation
    reason: Annotated[str | None, "cause for which the group left"]


class PilotRestarted(JournalRecord):
    """A Slurm job runs although its batch process is gone: another pilot is started in it."""

    allocation: Allocation
    node: Node
    reason: Reason


class NodeSilent(JournalRecord):
    """Nothing is heard from a node: the controller probes it."""

    node: Node
    seconds: Annotated[float | None, "for how long"]
    reason: Annotated[str | None, "what a step there may be busy with, for a person"] = None


class NodeExcluded(JournalRecord):
    """No further step is placed on a node: it is lost, a group keeps failing there, or its hardware is broken."""

    node: Node
    group: Annotated[int | None, "the replica group that has failed there; left out: the node is lost"] = None
    reason: Reason


class NodeRestored(JournalRecord):
    """An excluded node is used again."""

    node: Node
    reason: Reason


class NodeShunned(JournalRecord):
    """Slurm drains a node: it gets a further step only if no other node is free."""

    node: Node
    reason: Reason


class NodeUnshunned(JournalRecord):
    """Slurm no longer drains a node that was shunned."""

    node: Node
    reason: Reason


class NodeCheckPassed(JournalRecord):
    """A node has passed its check (health.preflight)."""

    node: Node
    seconds: Annotated[float | None, "how long the check took"]
    log: Annotated[str | None, "its output, in the run directory"]


class NodeCheckFailed(JournalRecord):
    """A node has failed its check (health.preflight): it is excluded for the rest of the run."""

    node: Node
    reason: Reason
    seconds: Annotated[float | None, "how long the check took"]
    log: Annotated[str | None, "its output, in the run directory"]


class NodeDrained(JournalRecord):
    """`ftslurm drain`: nothing of the run is placed on a node, and what runs there moves away while there is room."""

    node: Node
    by: By


class NodeUndrained(JournalRecord):
    """`ftslurm undrain`: a drained node is used again."""

    node: Node
    by: By


# --- Slurm steps of the Lighthouse, the groups and the standbys ----------------------------------------------------


class StepLaunched(JournalRecord):
    """A Slurm step is launched as the next attempt of a unit, or a group takes over a warm standby's step."""

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


class LaunchRefused(JournalRecord):
    """Slurm has refused to start a step. It is no attempt: the next launch has the same number."""

    unit: Unit
    group: GroupOfUnit
    attempt: Attempt
    reason: Reason
    again_s: Annotated[float | None, "time until the next try; null: none"]


class StepReady(JournalRecord):
    """All tasks of a step are up: a group's workers, a warm standby, or the Lighthouse."""

    unit: Unit
    group: GroupOfUnit
    attempt: Attempt
    seconds: Annotated[float | None, "time since the launch"]
    url: Annotated[str | None, "address of the Lighthouse"] = None
    slurm_step: SlurmStep
    ranks: Annotated[tuple[RankRow, ...], "the rank table, if it is not the expected one"] = ()


class StepStarting(JournalRecord):
    """What an attempt that has not committed a step waits for, if that lasts: at most a line in five seconds."""

    unit: Unit
    group: Group
    attempt: Attempt
    stage: Annotated[
        str,
        "launch, check, import, lighthouse, store, others, eviction; of a running script: script, quorum, peers, step",
    ]
    since: Annotated[float | None, "since when the limit of this stage counts"]
    tasks: Annotated[int, "number of tasks of the step"]
    missing: Annotated[tuple[int, ...], "launch and import: the first tasks that it waits for"] = ()
    lacks: Annotated[int, "launch and import: number of tasks that it waits for"] = 0
    other: Annotated[int | None, "others: a group that has to be there first"] = None


class ScriptBegun(JournalRecord):
    """All ranks of a group run their script."""

    unit: Unit
    group: Group
    attempt: Attempt


class StepAdopted(JournalRecord):
    """A controller that has taken over has reached a step that still runs."""

    unit: Unit
    group: GroupOfUnit
    attempt: Attempt
    nodes: Nodes
    step: Step
    slurm_step: SlurmStep
    allocation: Annotated[str | None, "the Slurm job; null: the controller's own allocation"]
    seconds: Annotated[float | None, "how long it took"]
    standby: Annotated[str | None, "the standby's step that had become this attempt"]


class StepExited(JournalRecord):
    """An attempt has ended."""

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
    longest_gap_s: Annotated[float | None, "longest time without a commit, of an attempt that has joined"] = None


class StepRecalled(JournalRecord):
    """A user's command ends a step: its unit runs again, as its next attempt. It is no failure."""

    unit: Unit
    group: GroupOfUnit
    attempt: Attempt
    reason: Reason


class StacksTaken(JournalRecord):
    """The stacks of a rank, as `ftslurm stacks` has asked for them, are in a file beside its log."""

    command: CommandId
    group: Group
    attempt: Attempt
    rank: Annotated[int, "the rank", KEY]
    node: Annotated[str | None, "its node"]
    file: Annotated[str, "name of the file in the log folder of the attempt"]
    error: Annotated[str | None, "why there is no file"] = None


class RestartScheduled(JournalRecord):
    """A group gets another attempt."""

    group: Group
    attempt: Annotated[int | None, "the next attempt"]
    due: Annotated[float, "not before this moment (backoff)"]
    reason: Reason


class GroupWaits(JournalRecord):
    """The next attempt of a group waits for a node."""

    group: Group
    reason: Annotated[str, "what it waits for"]
    allocation: Annotated[str | None, "the Slurm job that will bring the node"]


class GroupGivenUp(JournalRecord):
    """A group gets no further attempt."""

    group: Group
    reason: Annotated[str, "why, with the setting to change"]


class StandbyGivenUp(JournalRecord):
    """A standby gets no further attempt."""

    unit: Unit
    reason: Annotated[str, "why, with the setting to change"]


# --- the training ------------------------------------------------------------------------------------------------


class GroupJoined(JournalRecord):
    """A group has committed the first step of its attempt."""

    group: Group
    attempt: Attempt
    step: Step
    quorum_id: Annotated[int | None, "id of the quorum"]
    participants: Annotated[int | None, "number of groups in the quorum"]
    seconds: Annotated[float | None, "time since the launch"]
    recovery_s: Annotated[float | None, "time since the failure, or the move, that this attempt answers"]
    phases: Phases


class Progress(JournalRecord):
    """How far a group is: in progress.jsonl, at most one line a second of each, and about eight a second of all."""

    group: Group
    attempt: Attempt
    step: Step
    quorum_id: Annotated[int | None, "id of the quorum"]
    participants: Annotated[int | None, "number of groups in the quorum"]
    committed: Annotated[int | None, "steps committed since the last line"]
    aborted: Annotated[int | None, "steps aborted since the last line"]
    gap_s: Annotated[float | None, "longest time between two commits since the last line"]
    at: Annotated[float | None, "when the group has reported it, if that was before `time`"] = None
    longest_gap_s: Annotated[float | None, "longest time between two commits of the attempt so far"] = None


class Serving(JournalRecord):
    """A parameter server is up."""

    unit: Unit
    group: Group
    attempt: Attempt
    url: Annotated[str | None, "its address"]
    seconds: Annotated[float | None, "time since the launch"] = None
    recovery_s: Annotated[float | None, "as in group_joined"] = None
    phases: Phases = None


class SessionOpened(JournalRecord):
    """A group has its first session with a parameter server."""

    group: Group
    attempt: Attempt
    seconds: Annotated[float | None, "time since the launch"] = None
    recovery_s: Annotated[float | None, "as in group_joined"] = None
    phases: Phases = None


class NoFirstStep(JournalRecord):
    """All scripts run, but no step has been committed for a long time."""

    seconds: Annotated[float | None, "time since all scripts have begun"]
    aborted: Annotated[int, "number of steps that were tried and not committed"] = 0
    least: Annotated[int, "groups.min"] = 0
    stages: Annotated[dict[str, int], "how many groups are at each stage, as in step_starting"]
    groups: Annotated[tuple[StuckGroup, ...], "what the first groups do"]


class GroupSetAside(JournalRecord):
    """A group's guards and its manager are silent: quorums are formed without it for now. Its attempt is not ended."""

    group: Group
    attempt: Attempt
    node: Annotated[str | None, "the node that is silent for the longest time"]
    seconds: Annotated[float | None, "how long its manager has been silent"]


class GroupHeardAgain(JournalRecord):
    """A group that was set aside is heard again: it takes part in the next quorum, and heals if it is behind."""

    group: Group
    attempt: Attempt
    seconds: Annotated[float | None, "how long it was set aside"]


class HangFound(JournalRecord):
    """A rank makes no progress: its stacks are dumped, then its group is restarted."""

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


class GroupSlow(JournalRecord):
    """A group makes the others wait in each step, or does so no longer. The times are medians of 50 steps."""

    group: Group
    attempt: Attempt
    nodes: Annotated[tuple[str, ...], "where it runs"]
    slow: Annotated[bool, "false: it is no longer slow"]
    step: Annotated[int | None, "its last committed step"]
    own_s: Annotated[float | None, "its own part of a step, before it waits for the others"]
    others_s: Annotated[float | None, "the median of the other groups' own parts"]
    step_s: Annotated[float | None, "a whole step"]


class HangLimit(JournalRecord):
    """How long a group may stand still before it counts as hung, learnt from this run's steps. Written when it is first
    known and when it changes much."""

    in_step_s: Annotated[float | None, "the limit inside a step, from the request for a quorum to the vote"]
    between_s: Annotated[float | None, "the limit between two steps, where evaluations and checkpoints are"]
    steps: Annotated[int | None, "from how many times between two commits it was learnt"] = None
    longest_s: Annotated[float | None, "the longest one"] = None


class ReplicasDiffer(JournalRecord):
    """Groups that must have the same weights after a step have not (health.compare_every)."""

    step: Annotated[int, "the step", KEY]
    rank: Annotated[int | None, "the rank in each of these groups"]
    groups: Annotated[tuple[int, ...], "those that differ from the majority; without one, all that were compared"]
    nodes: Annotated[tuple[str, ...], "the node of the rank in each of these groups"]
    equal: Annotated[int, "how many groups are the majority; 0: there is none"]
    reason: Annotated[str, "what has happened, for a person"]


class CheckpointsDistrusted(JournalRecord):
    """What an attempt has saved after this step is not restored: the group had diverged."""

    group: Group
    attempt: Attempt
    step: Annotated[int, "the last step after which it was equal to the others", KEY]


class QuorumRefused(JournalRecord):
    """The Lighthouse forms no quorum for now, or refuses a manager. Written when the reason changes."""

    reason: Reason


class CheckpointSaved(JournalRecord):
    """A checkpoint is complete."""

    group: Group
    attempt: Attempt
    step: Step
    path: Annotated[str | None, "where"]
    seconds: Annotated[float | None, "how long it took"]


class CheckpointFailed(JournalRecord):
    """A checkpoint could not be saved. The training goes on."""

    group: Group
    attempt: Attempt
    step: Step
    path: Annotated[str | None, "where"]
    seconds: Annotated[float | None, "how long it took"]
    error: Annotated[str, "the error"]


class CheckpointRestored(JournalRecord):
    """A group resumes from a checkpoint."""

    group: Group
    attempt: Attempt
    step: Step
    path: Annotated[str | None, "where"]


class FullRestart(JournalRecord):
    """No group holds the training's state any more: all start again, from a checkpoint."""

    reason: Annotated[str | None, "why, for a person"]
    step: Annotated[int | None, "the last committed step"]
    checkpoint: Annotated[str | None, "path of the checkpoint"]
    checkpoint_step: Annotated[int | None, "step of the checkpoint; null: only the script knows"]


# --- drills --------------------------------------------------------------------------------------------------------


class FaultInjected(JournalRecord):
    """A drill: a fault is injected."""

    kind: Annotated[str, "kill, term, stop, corrupt, cancel, node or lighthouse"]
    group: GroupOfUnit
    attempt: Annotated[int | None, "number of the attempt"]
    rank: Annotated[int | None, "the rank"]
    node: Annotated[str | None, "its node"]
    step: Step
    by: By
    reason: Annotated[None, "always null"]


class FaultRefused(JournalRecord):
    """A drill that cannot be done."""

    kind: Annotated[str, "as in fault_injected"]
    group: GroupOfUnit
    attempt: Annotated[int | None, "number of the attempt"] = None
    rank: Annotated[int | None, "the rank"]
    node: Annotated[str | None, "its node"] = None
    step: Step = None
    by: By = None
    reason: Reason


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
    | GroupSlow
    | HangLimit
    | ReplicasDiffer
    | CheckpointsDistrusted
    | QuorumRefused
    | CheckpointSaved
    | CheckpointFailed
    | CheckpointRestored
    | FullRestart
)
DrillEvent = FaultInjected | FaultRefused
JournalEvent = RunEvent | ClusterEvent | StepEvent | TrainingEvent | DrillEvent | UnknownEvent
EVENTS: tuple[type[JournalRecord], ...] = tuple(JournalRecord.__subclasses__())[:-1]  # without UnknownEvent
