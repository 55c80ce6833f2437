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

No line grows with the run: a text longer than MOST_TEXT ends with "...", and of a list or an object only as many first
items are written as have MOST_LIST characters; `cut` then has how many there were: {"nodes": 9400}.

A change that old readers would misread raises VERSION. New events and new fields do not: readers ignore what they do
not know.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import MISSING
from itertools import accumulate
from typing import Annotated, Any, ClassVar, TypeAlias, TypedDict

from ftslurm.protocol.causes import Cause
from ftslurm.protocol.value_class import Value, dataclass_transform

VERSION = 1
KEY = "key"
MOST_TEXT = 4000  # characters of a text in a line
MOST_LIST = 32_000  # characters of all items of a list in a line: the names of a thousand nodes

Unit = Annotated[str, KEY]  # lighthouse, group-0003 or standby-000
Group = Annotated[int, KEY]  # the replica group
GroupOfUnit: TypeAlias = int | None  # the replica group; null for the Lighthouse and standbys
Attempt = Annotated[int, KEY]  # number of the attempt, from 0
Allocation = Annotated[str, KEY]  # name of the Slurm job as squeue shows it (81_2); local for a run without Slurm
Node = Annotated[str, KEY]  # the node
Nodes: TypeAlias = tuple[str, ...]  # nodes, in the order of their tasks
Reason: TypeAlias = str  # why, for a person
Pool: TypeAlias = int  # 0: groups outside of cluster.ranges; i + 1: those of cluster.ranges[i]; -1: the controller
CONTROLLER_POOL = -1
By: TypeAlias = str | int | None  # user id of who asked, or what sent it: a signal, srun, faults.plan
CommandId = Annotated[str, KEY]  # id of the command in the inbox
Asked = Annotated[str, KEY]  # scale, restart, drain, undrain, save or stacks
Step: TypeAlias = int | None  # step of training
SlurmStep: TypeAlias = str | None  # id of the Slurm step
Phases: TypeAlias = dict[str, float | None] | None  # seconds of each phase of the recovery; null: not reached


class StuckGroup(TypedDict, total=False):
    """What a group does while no step is committed."""

    group: int
    attempt: int
    stage: str  # as in step_starting


@dataclass_transform(frozen_default=True, kw_only_default=True)
class JournalRecord(Value, kw_only=True):
    """One event."""

    event: ClassVar[str] = ""  # its name in the line: that of the class, as run_started

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "event" not in vars(cls):
            cls.event = re.sub("(?<!^)([A-Z])", r"_\1", cls.__name__).lower()

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of the line, in their order on disk."""
        fields, cut = dict[str, Any](), dict[str, int]()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.default is MISSING or value != field.default:
                fields[field.name] = bounded(value)
                if isinstance(value, tuple | dict) and len(value) > len(fields[field.name]):
                    cut[field.name] = len(value)
        return {**fields, "cut": cut} if cut else fields


def bounded(value: object) -> Any:
    """Return a value for JSON, cut to MOST_TEXT and MOST_LIST."""
    if isinstance(value, str):
        return value if len(value) <= MOST_TEXT else f"{value[: MOST_TEXT - 3]}..."
    if isinstance(value, dict):
        return dict(_first([(key, bounded(one)) for key, one in value.items()]))
    return _first(list(map(bounded, value))) if isinstance(value, tuple) else value


def _first(items: list[Any]) -> list[Any]:
    """Return as many first items as have MOST_LIST characters."""
    sizes = accumulate(len(str(item)) for item in items)
    return [item for item, size in zip(items, sizes, strict=True) if size <= MOST_LIST]


# --- the run and its controllers ---------------------------------------------------------------------------------


class RunEvent(JournalRecord):
    """Of the run and its controllers."""


class RunStarted(RunEvent):
    """A controller begins to lead the run: the first one, or one that takes over."""

    run_id: str  # name of the run directory
    name: str  # run.name
    job_id: str | None  # Slurm job of the controller
    requeues: int | None  # how often Slurm has requeued that job (SLURM_RESTART_COUNT)
    groups: int  # number of replica groups
    workers: int | None  # number of workers of each group
    roles: dict[str, int]  # groups.roles: number of groups of each role
    lighthouse: str  # lighthouse.kind; none: groups without a quorum
    mode: str  # how groups get nodes: steps (of one Slurm job), array (a job for each group), or local
    cluster: str  # cluster.kind
    total_steps: int | None  # job.total_steps
    host: str  # node of the controller
    pid: int | None  # process id of the controller
    leader: int | None  # number of the leader in RUN/leaders
    after: str | None  # how the controller before it crashed; null: it did not
    limits: dict[str, float]  # how long a group may wait: start, join (its first step), first_step (of any group)
    parent: str | None = None  # the directory of the run that this one resumes
    sweep: str | None = None  # the sweep that the run belongs to


class ControllerLeft(RunEvent):
    """A controller makes way for another one. Nothing follows until that one starts."""

    reason: str | None  # why, for a person
    leader: int | None  # its number in RUN/leaders


class ControllerError(RunEvent):
    """An error inside ftslurm. The controller drops what it was handling and goes on."""

    where: str  # what the controller was handling
    error: str  # type and text of the exception


class Command(RunEvent):
    """Somebody has asked for the end of the run: ftslurm stop, a signal, Slurm."""

    what: str  # stop
    by: By
    reason: str | None = None  # why, for a person


class Scaled(RunEvent):
    """`ftslurm scale` has changed the number of groups."""

    groups: int  # the new number of replica groups
    by: By
    command: str | None = None  # the id of the command


class CommandDone(RunEvent):
    """The controller does what `ftslurm restart`, `drain`, `undrain`, `save` or `stacks` asks for."""

    command: CommandId
    what: Asked
    by: By
    text: str  # what is done, for a person
    group: int | None = None  # the replica group of the command
    rank: int | None = None  # the rank of the command
    node: str | None = None  # the node of the command
    step: int | None = None  # step of the checkpoint that was asked for
    path: str | None = None  # where that checkpoint is


class CommandRefused(RunEvent):
    """The controller cannot do what `ftslurm scale`, `restart`, `drain`, `undrain`, `save` or `stacks` asks for."""

    command: CommandId
    what: Asked
    by: By
    reason: Reason
    wrong: bool = False  # it can never be: a word of the command is wrong
    group: int | None = None  # the replica group of the command
    rank: int | None = None  # the rank of the command
    node: str | None = None  # the node of the command


class RollOver(RunEvent):
    """The controller's job ends soon: the groups save a checkpoint, then the job is started again."""

    reason: Reason
    by: By
    seconds: float | None  # time left for the checkpoint


class RunRequeued(RunEvent):
    """The run stops here and goes on in another Slurm job, or in another start of this one."""

    outcome: str  # requeued
    reason: Reason
    steps: int | None  # the last committed step
    restarts: int | None  # number of restarts of groups so far


class RunFinished(RunEvent):
    """The run is over. Only another start of the run can follow."""

    outcome: str  # succeeded, failed or stopped
    reason: Reason
    steps: int | None  # the last committed step
    restarts: int | None  # number of restarts of groups
    failure: str | None = None  # of a run that has failed: how the last group failed that did not come back
    by: By = None  # who asked for it; a run that a user has stopped is never started again
    missing: tuple[int, ...] = ()  # of one that has succeeded: groups that were given up, or have never taken a step


class Warned(RunEvent):
    """Something that the user should know, once for each text; or that an earlier warning is over."""

    event = "warning"
    group: int | None  # the first replica group that has reported it
    text: str  # the warning
    over: str = ""  # the text of the earlier warning


# --- Slurm jobs and nodes ----------------------------------------------------------------------------------------


class ClusterEvent(JournalRecord):
    """Of Slurm jobs and nodes."""


class SlurmAsked(ClusterEvent):
    """The RPCs to slurmctld since the last such line, for questions, orders and launches. Written each five minutes and
    at the end of a controller, if there were any."""

    rpcs: int  # number of RPCs
    most: int  # the most of them in a minute


class AllocationRequested(ClusterEvent):
    """Further Slurm jobs are submitted for groups."""

    pool: Pool
    count: int  # number of jobs
    exclude: tuple[str, ...]  # nodes that they must not get


class AllocationRefused(ClusterEvent):
    """sbatch has refused a job. Written again only if the reason changes."""

    pool: Pool
    reason: Reason
    again_s: float | None  # time until the next try


class AllocationPending(ClusterEvent):
    """A Slurm job waits in the queue. Written again if the reason changes."""

    allocation: Allocation
    reason: str | None  # Slurm's reason, e.g. Resources
    pool: int | None  # as in allocation_requested


class AllocationGranted(ClusterEvent):
    """Nodes can be used: those of the controller's own allocation (no `pool`), or those of a Slurm job for groups."""

    allocation: Allocation
    nodes: Nodes
    pool: int | None = None  # as in allocation_requested; left out: the controller's own allocation
    ends: float | None  # when its time limit ends it


class AllocationEnds(ClusterEvent):
    """The time limit of a Slurm job has become known, or has changed."""

    allocation: Allocation
    ends: float | None  # when its time limit ends it


class AllocationLeaving(ClusterEvent):
    """A Slurm job ends soon: its group leaves it."""

    allocation: Allocation
    cause: str  # as in step_exited: preempted, time_limit, cancelled
    reason: Reason


class AllocationLost(ClusterEvent):
    """A Slurm job gives no nodes any more."""

    allocation: Allocation
    nodes: Nodes
    reason: Reason
    state: str | None  # its state in Slurm, PENDING if it is requeued; null: the controller cancels it


class AllocationRequeued(ClusterEvent):
    """The controller has Slurm requeue a job that its group had to leave."""

    allocation: Allocation
    reason: str | None  # cause for which the group left


class NodeSilent(ClusterEvent):
    """Nothing is heard from a node: the controller probes it."""

    node: Node
    seconds: float | None  # for how long


class NodeExcluded(ClusterEvent):
    """No further step is placed on a node: it is lost, cut off or broken, or groups keep failing there."""

    node: Node
    group: int | None = None  # the replica group that has failed there; left out: the node is lost or cut off
    reason: Reason


class NodeRestored(ClusterEvent):
    """An excluded node is used again."""

    node: Node
    reason: Reason


class NodeShunned(ClusterEvent):
    """Slurm drains a node: it gets a further step only if no other node is free."""

    node: Node
    reason: Reason


class NodeUnshunned(ClusterEvent):
    """Slurm no longer drains a node that was shunned."""

    node: Node
    reason: Reason


class NodeCheckPassed(ClusterEvent):
    """A node has passed its check (health.preflight)."""

    node: Node
    seconds: float | None  # how long the check took
    log: str | None  # its output, in the run directory


class NodeCheckFailed(ClusterEvent):
    """A node has failed its check (health.preflight): it is excluded for the rest of the run."""

    node: Node
    reason: Reason
    seconds: float | None  # how long the check took
    log: str | None  # its output, in the run directory


class NodeDrained(ClusterEvent):
    """`ftslurm drain`: nothing of the run is placed on a node, and what runs there moves away while there is room."""

    node: Node
    by: By


class NodeUndrained(ClusterEvent):
    """`ftslurm undrain`: a drained node is used again."""

    node: Node
    by: By


# --- Slurm steps of the Lighthouse, the groups and the standbys ----------------------------------------------------


class StepEvent(JournalRecord):
    """Of the Slurm steps of the Lighthouse, the groups and the standbys."""


class OfUnit(StepEvent):
    """Of an attempt of the Lighthouse, a group or a standby."""

    unit: Unit
    group: GroupOfUnit
    attempt: Attempt


class StepLaunched(OfUnit):
    """A Slurm step is launched as the next attempt of a unit, or a group takes over a warm standby's step."""

    nodes: Nodes
    slot: int | None  # which of the places on these nodes (groups.per_node)
    allocation: str | None  # the Slurm job; local for a run without Slurm
    hosts: tuple[str, ...]  # the node of each task, as expected
    reason: Reason
    standby: str | None  # the standby's step that becomes this attempt: standby-000/1
    down_s: float | None  # time since the death that this answers, as far as known; else since it was noticed


class LaunchRefused(OfUnit):
    """Slurm has refused to start a step. It is no attempt: the next launch has the same number."""

    reason: Reason


class StepReady(OfUnit):
    """All tasks of a step are up: a group's workers, a warm standby, or the Lighthouse."""

    seconds: float | None  # time since the launch
    url: str | None = None  # address of the Lighthouse
    slurm_step: SlurmStep
    hosts: tuple[str, ...] = ()  # the node of each task, if not as expected


class StepStarting(StepEvent):
    """What an attempt that has not committed a step waits for, if that lasts: at most a line in five seconds."""

    unit: Unit
    group: Group
    attempt: Attempt
    # launch, check, import, lighthouse, store, others; of a running script: script, quorum, peers, step
    stage: str
    since: float | None  # since when the limit of this stage counts
    tasks: int  # number of tasks of the step
    missing: tuple[int, ...] = ()  # launch and import: the first tasks that it waits for
    lacks: int = 0  # launch and import: number of tasks that it waits for
    other: int | None = None  # others: a group that has to be there first


class ScriptBegun(StepEvent):
    """All ranks of a group run their script."""

    unit: Unit
    group: Group
    attempt: Attempt


class StepAdopted(OfUnit):
    """A controller that has taken over has reached a step that still runs."""

    step: Step
    slurm_step: SlurmStep


class StepExited(OfUnit):
    """An attempt has ended. With `left_early` it may follow one with `ok`: the others were seen to train on."""

    code: int | None  # exit code
    signal: int | None  # number of the signal
    cause: Annotated[str, ", ".join(cause.value for cause in Cause)]
    node: str | None  # node of the rank that failed first
    rank: int | None  # rank that failed first
    error: str | None  # the error, for a person
    step: int | None  # last committed step of this attempt
    launched: bool | None  # false: no process of it has run
    healthy_s: float | None  # how long it ran well
    noticed: float | None  # when the failure was noticed
    # when it was last at work: before an earlier failure, if this attempt never was; else until its death (known of
    # drills, hangs and silence) or, if that is not known, until it was noticed
    away_since: float | None
    evidence: tuple[str, ...]  # the signs by which the cause was decided
    traceback: str | None  # the end of the script's traceback in that rank
    log: str | None = None  # log of the rank that failed first


class CauseCorrected(StepEvent):
    """Slurm has said why an attempt ended, after its `step_exited`: from now on it counts with this cause."""

    group: Group
    attempt: Attempt
    was: str  # the cause so far
    cause: str  # as in step_exited
    reason: Reason


class StepRecalled(OfUnit):
    """A user's command ends a step: its unit runs again, as its next attempt. It is no failure."""

    reason: Reason


class StacksTaken(StepEvent):
    """The stacks of a rank, as `ftslurm stacks` has asked for them, are in its log."""

    command: CommandId
    group: Group
    attempt: Attempt
    rank: Annotated[int, KEY]  # the rank
    node: str | None  # its node
    size: int | None  # how many bytes of the log they are; null: the log cannot be written


class RestartScheduled(StepEvent):
    """A group gets another attempt."""

    group: Group
    attempt: int | None  # the next attempt
    due: float  # not before this moment (backoff)
    reason: Reason


class GroupWaits(StepEvent):
    """The next attempt of a group waits for a node."""

    group: Group
    reason: str  # what it waits for
    allocation: str | None  # the Slurm job that will bring the node


class GroupGivenUp(StepEvent):
    """A group gets no further attempt."""

    group: Group
    reason: str  # why, with the setting to change


class StandbyGivenUp(StepEvent):
    """A standby gets no further attempt."""

    unit: Unit
    reason: str  # why, with the setting to change


# --- the training ------------------------------------------------------------------------------------------------


class TrainingEvent(JournalRecord):
    """Of the training."""


class OfGroup(TrainingEvent):
    """Of an attempt of a group."""

    group: Group
    attempt: Attempt


class GroupJoined(OfGroup):
    """A group has committed the first step of its attempt."""

    step: Step
    quorum_id: int | None  # id of the quorum
    participants: int | None  # number of groups in the quorum
    seconds: float | None  # time since the launch
    recovery_s: float | None  # time since the group was last at work (away_since); null: its first start
    phases: Phases


class Progress(OfGroup):
    """How far a group is: in progress.jsonl, at most one line a second of each, and about eight a second of all."""

    step: Step
    quorum_id: int | None  # id of the quorum
    participants: int | None  # number of groups in the quorum
    committed: int | None  # steps that this attempt has committed
    aborted: int | None  # steps that it has tried and not committed
    gap_s: float | None  # longest time between two commits since the last line
    at: float | None = None  # when the group has reported it, if that was before `time`


class Serving(OfGroup):
    """A parameter server is up."""

    unit: Unit
    url: str | None  # its address
    seconds: float | None = None  # time since the launch
    recovery_s: float | None = None  # as in group_joined
    phases: Phases = None


class SessionOpened(OfGroup):
    """A group has its first session with a parameter server."""

    seconds: float | None = None  # time since the launch
    recovery_s: float | None = None  # as in group_joined
    phases: Phases = None


class NoFirstStep(TrainingEvent):
    """All scripts run, but no step has been committed for a long time."""

    seconds: float | None  # time since all scripts have begun
    aborted: int = 0  # number of steps that were tried and not committed
    least: int = 0  # groups.min
    stages: dict[str, int]  # how many groups are at each stage, as in step_starting
    groups: tuple[StuckGroup, ...]  # what the first groups do


class GroupSetAside(OfGroup):
    """The manager of a group, in its rank 0, is silent: quorums are formed without it. Its attempt is not ended."""

    seconds: float | None  # how long its manager has been silent


class GroupHeardAgain(OfGroup):
    """A group that was set aside is heard for a second: it takes part in the next quorum, and heals if it is behind."""

    seconds: float | None  # how long it was set aside


class GroupSlow(OfGroup):
    """A group makes the others wait in each step, or does so no longer. The times are medians of 50 steps."""

    nodes: tuple[str, ...]  # where it runs
    slow: bool  # false: it is no longer slow
    step: int | None  # its last committed step
    own_s: float | None  # its own part of a step, before it waits for the others
    others_s: float | None  # the median of all groups' own parts; of two, that of the other one
    step_s: float | None  # a whole step


class HangLimit(TrainingEvent):
    """How long a group may stand still before it counts as hung, learnt from this run's steps. Written when it is first
    known and when it changes much."""

    in_step_s: float | None  # the limit inside a step, from the request for a quorum to the vote
    between_s: float | None  # the limit between two steps, where evaluations and checkpoints are
    steps: int | None = None  # from how many times between two commits it was learnt
    longest_s: float | None = None  # the longest one


class ReplicasDiffer(TrainingEvent):
    """Groups that must have the same weights after a step have not (health.compare_every)."""

    step: Annotated[int, KEY]  # the step
    rank: int | None  # the rank in each of these groups
    groups: tuple[int, ...]  # those that differ from the majority; without one, all that were compared
    nodes: tuple[str, ...]  # the node of the rank in each of these groups
    equal: int  # how many groups are the majority; 0: there is none
    since: int  # the last step after which this rank was equal in all groups
    reason: str  # what has happened, for a person


class CheckpointsDistrusted(OfGroup):
    """What a group has saved after this step, in this attempt or one before, is not restored: it had diverged."""

    step: Annotated[int, KEY]  # the last step after which it was equal to the others


class QuorumRefused(TrainingEvent):
    """The Lighthouse forms no quorum for now, or refuses a manager. Written when the reason changes."""

    reason: Reason


class CheckpointSaved(OfGroup):
    """A checkpoint is complete."""

    step: Step
    path: str | None  # where
    seconds: float | None  # how long it took
    equal: int = 0  # the last step after which all groups were equal (health.compare_every)


class CheckpointFailed(OfGroup):
    """A checkpoint could not be saved. The training goes on."""

    step: Step
    path: str | None  # where
    seconds: float | None  # how long it took
    error: str  # the error


class CheckpointRestored(OfGroup):
    """A group resumes from a checkpoint."""

    step: Step
    path: str | None  # where


class GroupHealed(OfGroup):
    """A group has fetched the state of a live one."""

    event = "group_healed"
    step: Step
    size: int  # in bytes, of rank 0
    seconds: float  # how long that took
    donor: str | None  # the node from which it came
    interface: str | None  # by which it came


class FullRestart(TrainingEvent):
    """No group holds the training's state any more: all start again, from a checkpoint."""

    reason: str | None  # why, for a person
    step: int | None  # the last committed step
    checkpoint: str | None  # path of the checkpoint
    checkpoint_step: int | None  # step of the checkpoint; null: only the script knows


# --- drills --------------------------------------------------------------------------------------------------------


class DrillEvent(JournalRecord):
    """Of drills."""


class FaultInjected(DrillEvent):
    """A drill: a fault is injected."""

    kind: str  # kill, term, stop, corrupt, cancel, node or lighthouse
    group: GroupOfUnit
    attempt: int | None  # number of the attempt
    rank: int | None  # the rank
    node: str | None  # its node
    step: Step
    by: By


class FaultRefused(DrillEvent):
    """A drill that cannot be done."""

    kind: str  # as in fault_injected
    group: GroupOfUnit
    attempt: int | None = None  # number of the attempt
    rank: int | None  # the rank
    node: str | None = None  # its node
    step: Step = None
    by: By = None
    reason: Reason


class UnknownEvent(JournalRecord):
    """A line of another version, or one without its key fields. Never written."""


_KINDS = (RunEvent, ClusterEvent, StepEvent, OfUnit, TrainingEvent, OfGroup, DrillEvent)
EVENTS: tuple[type[JournalRecord], ...] = tuple(
    record for kind in _KINDS for record in kind.__subclasses__() if record not in _KINDS
)
