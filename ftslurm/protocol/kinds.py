"""The names under which hooks and callbacks are told what happens. Each stands for some records of the journal."""

from __future__ import annotations

from ftslurm.protocol import records
from ftslurm.protocol.causes import is_failure

_DETAILS = ("group_starting", "group_started", "group_shut_down")
DEFAULT_EVENTS = (
    "run_started", "run_requeued", "run_finished", "group_restarted", "group_failed", "group_given_up",
    "full_restart", "checkpoint_saved", "node_excluded", "replicas_differ", "group_slow", "warning",
)  # fmt: skip
KINDS = DEFAULT_EVENTS + _DETAILS
_OTHERS = (record.event for record in records.EVENTS if record is not records.Progress)  # which is no event
EVENTS = tuple(dict.fromkeys((*KINDS, *_OTHERS)))


def kind(record: records.JournalRecord) -> str | None:
    """Return the name for a record of the journal; None: there is none."""
    match record:
        case records.RunStarted(after=None) | records.RunRequeued() | records.RunFinished() | records.FullRestart():
            return record.event
        case records.GroupGivenUp() | records.CheckpointSaved() | records.NodeExcluded() | records.Warned():
            return record.event
        case records.NodeCheckFailed():
            return "node_excluded"
        case records.GroupSlow(slow=True) | records.ReplicasDiffer(equal=0):  # else groups fail for it
            return record.event
        case records.StepLaunched(group=int(), standby=None):
            return "group_starting"
        case records.StepLaunched(group=int()) | records.StepReady(group=int()):
            return "group_started"
        case records.GroupJoined() | records.Serving() | records.SessionOpened() if record.recovery_s is not None:
            return "group_restarted"
        case records.StepExited(group=int()):
            return "group_failed" if is_failure(record.cause) else "group_shut_down"
    return None
