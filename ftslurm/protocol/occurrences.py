"""What happens in a run, for programs of users: hooks get it as JSON, callbacks (ftslurm.RunCallback) as these classes.

Each is made of one record of the journal; most records lead to none. `kind` is the name in `events` of hooks.on_event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ftslurm.protocol import records
from ftslurm.protocol.causes import cause_of
from ftslurm.protocol.value_class import Value, dataclass_transform


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Occurrence(Value, kw_only=True):
    """Something that happened in a run."""

    kind: ClassVar[str] = ""


class RunBegins(Occurrence):
    """The run starts, or goes on in its next Slurm job."""

    kind: ClassVar[str] = "run_started"
    job: str | None  # Slurm job of the controller
    groups: int


class RunPauses(Occurrence):
    """The run stops here and goes on in another Slurm job, after a time limit or preemption."""

    kind: ClassVar[str] = "run_requeued"
    reason: str
    step: int | None


class RunEnds(Occurrence):
    """The run is over."""

    kind: ClassVar[str] = "run_finished"
    outcome: str  # succeeded, failed or stopped
    reason: str
    step: int | None
    restarts: int | None


class OfGroup(Occurrence):
    """Something that happened to a replica group."""

    group: int


class GroupStarting(OfGroup):
    """An attempt of a group is launched."""

    kind: ClassVar[str] = "group_starting"
    attempt: int
    nodes: tuple[str, ...]
    reason: str


class GroupStarted(OfGroup):
    """All workers of an attempt are up."""

    kind: ClassVar[str] = "group_started"
    attempt: int
    seconds: float | None  # since the launch; None: a warm standby has become this attempt


class GroupRestarted(OfGroup):
    """A group that failed, or had to move, is back at work."""

    kind: ClassVar[str] = "group_restarted"
    attempt: int
    step: int | None  # the first one it has committed
    recovery_s: float  # since it failed


class GroupFailed(OfGroup):
    """An attempt of a group has failed."""

    kind: ClassVar[str] = "group_failed"
    attempt: int
    cause: str  # as in step_exited of the journal
    error: str | None
    node: str | None
    rank: int | None
    step: int | None  # the last committed step of the attempt
    log: str | None


class GroupShutDown(OfGroup):
    """An attempt of a group has ended in order: it has finished, was stopped, or leaves its nodes."""

    kind: ClassVar[str] = "group_shut_down"
    attempt: int
    cause: str  # as in step_exited of the journal
    step: int | None


class GroupGivenUp(OfGroup):
    """A group gets no further attempt."""

    kind: ClassVar[str] = "group_given_up"
    reason: str


class GroupsDiffer(Occurrence):
    """Groups have other weights than each other, and no majority shows which are wrong."""

    kind: ClassVar[str] = "replicas_differ"
    step: int
    groups: tuple[int, ...]
    nodes: tuple[str, ...]  # of each of these groups
    reason: str


class AllRestart(Occurrence):
    """No group holds the training's state any more: all start again from a checkpoint."""

    kind: ClassVar[str] = "full_restart"
    step: int | None  # the last committed step
    checkpoint_step: int | None


class SavedCheckpoint(OfGroup):
    """A checkpoint is complete."""

    kind: ClassVar[str] = "checkpoint_saved"
    step: int | None
    path: str | None


class NodeLeftOut(Occurrence):
    """No further step is placed on a node: it is lost, has failed its check, or a group keeps failing there."""

    kind: ClassVar[str] = "node_excluded"
    node: str
    reason: str


class Caution(Occurrence):
    """Something that the user should know."""

    kind: ClassVar[str] = "warning"
    text: str


OCCURRENCES: Mapping[str, type[Occurrence]] = {
    one.kind: one
    for one in (
        *(RunBegins, RunPauses, RunEnds, GroupStarting, GroupStarted, GroupRestarted, GroupFailed, GroupShutDown),
        *(GroupGivenUp, GroupsDiffer, AllRestart, SavedCheckpoint, NodeLeftOut, Caution),
    )
}
_OTHERS = (record.event for record in records.EVENTS if record is not records.Progress)  # which is no event
EVENTS = tuple(dict.fromkeys((*OCCURRENCES, *_OTHERS)))
DEFAULT_EVENTS = tuple(
    kind for kind in OCCURRENCES if kind not in ("group_starting", "group_started", "group_shut_down")
)


def of(record: records.JournalRecord) -> Occurrence | None:
    """Return what a record of the journal tells; None: nothing that has a class here."""
    match record:
        case records.RunStarted(after=None):
            return RunBegins(job=record.job_id, groups=record.groups)
        case records.RunRequeued():
            return RunPauses(reason=record.reason, step=record.steps)
        case records.RunFinished():
            reason = f"{record.reason}: {record.failure}" if record.failure else record.reason
            return RunEnds(outcome=record.outcome, reason=reason, step=record.steps, restarts=record.restarts)
        case records.FullRestart():
            return AllRestart(step=record.step, checkpoint_step=record.checkpoint_step)
        case records.ReplicasDiffer(equal=0):  # else groups fail for it
            return GroupsDiffer(step=record.step, groups=record.groups, nodes=record.nodes, reason=record.reason)
        case records.CheckpointSaved():
            return SavedCheckpoint(group=record.group, step=record.step, path=record.path)
        case records.NodeExcluded() | records.NodeCheckFailed():
            return NodeLeftOut(node=record.node, reason=record.reason)
        case records.Warned():
            return Caution(text=record.text)
        case records.GroupGivenUp():
            return GroupGivenUp(group=record.group, reason=record.reason)
        case _:
            return _of_attempt(record)


def _of_attempt(record: records.JournalRecord) -> Occurrence | None:
    match record:
        case records.StepLaunched(group=int(group), standby=str()):
            return GroupStarted(group=group, attempt=record.attempt, seconds=None)
        case records.StepLaunched(group=int(group)):
            return GroupStarting(group=group, attempt=record.attempt, nodes=record.nodes, reason=record.reason)
        case records.StepReady(group=int(group)):
            return GroupStarted(group=group, attempt=record.attempt, seconds=record.seconds)
        case records.GroupJoined(recovery_s=float(took)):
            return GroupRestarted(group=record.group, attempt=record.attempt, step=record.step, recovery_s=took)
        case records.Serving(recovery_s=float(took)) | records.SessionOpened(recovery_s=float(took)):
            return GroupRestarted(group=record.group, attempt=record.attempt, step=None, recovery_s=took)
        case records.StepExited(group=int(group)) if not cause_of(record.cause).row.failure:
            return GroupShutDown(group=group, attempt=record.attempt, cause=record.cause, step=record.step)
        case records.StepExited(group=int(group)):
            return GroupFailed(
                group=group,
                attempt=record.attempt,
                cause=record.cause,
                error=record.error,
                node=record.node,
                rank=record.rank,
                step=record.step,
                log=record.log,
            )
        case _:
            return None
