"""The states of a Slurm job, as squeue names them, and what follows from each: the one table."""

from __future__ import annotations

from typing import NamedTuple

from ftslurm.protocol.causes import Cause


class JobState(NamedTuple):
    """What follows from a state. Nothing follows from one that is not in the table: the job stays what it was."""

    ends: bool = False  # it is the last one
    cause: Cause | None = None  # why its steps have ended
    waits: bool = False  # in the queue; then it goes on by itself
    provides: bool = False  # nodes, now or later
    between: bool = False  # two states, soon to change
    lives: bool = False  # its steps live, stopped or not
    runs: bool = False  # steps may be started in it


_ROWS = (
    ("COMPLETED FAILED REVOKED", JobState(ends=True)),
    ("CANCELLED", JobState(ends=True, cause=Cause.CANCELLED)),
    ("TIMEOUT DEADLINE", JobState(ends=True, cause=Cause.TIME_LIMIT)),
    ("PREEMPTED", JobState(ends=True, cause=Cause.PREEMPTED)),
    ("NODE_FAIL BOOT_FAIL", JobState(ends=True, cause=Cause.NODE_LOST)),
    ("OUT_OF_MEMORY", JobState(ends=True, cause=Cause.OUT_OF_MEMORY)),
    ("PENDING", JobState(waits=True, provides=True)),
    ("REQUEUED EXPEDITING", JobState(waits=True, provides=True, between=True)),
    ("REQUEUE_HOLD", JobState(waits=True, provides=True, between=True)),
    ("REQUEUE_FED SPECIAL_EXIT", JobState(waits=True)),
    ("CONFIGURING", JobState(provides=True, between=True)),
    ("RUNNING", JobState(provides=True, lives=True, runs=True)),
    ("SUSPENDED", JobState(cause=Cause.PREEMPTED, provides=True, lives=True)),
    ("SIGNALING RESIZING STAGE_OUT COMPLETING", JobState(between=True)),
    ("RESV_DEL_HOLD STOPPED", JobState()),
)
TABLE = {name: row for names, row in _ROWS for name in names.split()}
SUBMITTED = "PENDING"
GONE = "GONE"  # no state of Slurm's: it shows the job no more
HELD_BACK = "BeginTime"  # the reason of a job that has been requeued a moment ago


def state(name: str) -> JobState:
    """Return what follows from a state."""
    return TABLE.get(name, JobState())
