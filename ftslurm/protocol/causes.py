"""Why an attempt ends: one row for each cause. All that follows from a cause is read here, and nowhere else decided.

docs/causes.md says what each means; tests/unit/protocol/test_causes.py walks each cause through all readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ftslurm.protocol.value_class import Value


class Cause(str, Enum):
    """Why a step ended, decided from evidence; the value is what the journal has."""

    OK = "ok"
    USER_ERROR = "user_error"
    KILLED = "killed"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_LOST = "node_lost"
    HANG = "hang"
    START_FAILED = "start_failed"
    START_TIMEOUT = "start_timeout"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    LIGHTHOUSE_LOST = "lighthouse_lost"
    HARDWARE = "hardware"
    DIVERGED = "diverged"
    NETWORK = "network"
    OTHER_VERSION = "other_version"
    LEFT_EARLY = "left_early"
    LEFT_ON_SIGTERM = "left_on_sigterm"
    REQUESTED = "requested"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def row(self) -> Row:
        """Return what follows from this cause."""
        return ROWS[self]


class Says(Enum):
    """What the words of a sign say. The core does not read them: run/log_signs.py and slurm/evidence.py have."""

    BROKEN = "only broken hardware causes this"
    NETWORK = "NCCL reports a network error"
    ECHO = "a connection is lost: something else has failed"
    LIGHTHOUSE = "the Lighthouse does not answer"
    TIMEOUT = "a wait of the Manager for others has timed out"
    ABORT = "srun aborts the step, because its connection to a node has broken"
    PRINTED = "they are only a line of the script's output"


class Blame(Enum):
    """What a cause says about the node on which the attempt ended."""

    NOTHING = 0
    IF_AGAIN = 1  # a group that fails twice there, and none elsewhere, makes it suspect
    AT_ONCE = 2  # it is left out already
    BROKEN = 3  # it is left out for the rest of the run, if there are others


class Again(Enum):
    """When the next attempt follows."""

    BY_BUDGET = 0  # restart.max_per_group, restart.backoff_s
    AT_ONCE = 1  # whatever the policy
    NEVER = 2


class Row(Value):
    """What follows from a cause.

    Attributes:
        words: for status, summary and report.
        orderly: what the group did, for a sentence ("was preempted"), if the end is no failure: it costs no budget,
            pages nobody and is no restart. Empty: a failure.
        blame: what it says about the node.
        again: when the next attempt follows.
        with_job: the step's whole Slurm job may be gone.
        hopeless: if it ends every group alike before its first step, another attempt would not help.
    """

    words: str
    orderly: str = ""
    blame: Blame = Blame.IF_AGAIN
    again: Again = Again.BY_BUDGET
    with_job: bool = False
    hopeless: bool = False

    @property
    def failure(self) -> bool:
        """Return whether the group has failed: it counts in the budget, and people are told."""
        return not self.orderly


ROWS: Mapping[Cause, Row] = {
    Cause.OK: Row("finished", orderly="has finished", blame=Blame.NOTHING),
    Cause.USER_ERROR: Row("the script failed", hopeless=True),
    Cause.KILLED: Row("killed"),
    Cause.OUT_OF_MEMORY: Row("out of memory"),
    Cause.HARDWARE: Row("broken hardware", blame=Blame.BROKEN, hopeless=True),
    Cause.DIVERGED: Row("other weights than the rest", blame=Blame.BROKEN),
    Cause.NETWORK: Row("network error"),
    Cause.NODE_LOST: Row("node lost", blame=Blame.AT_ONCE, with_job=True),
    Cause.HANG: Row("hung"),
    Cause.START_FAILED: Row("could not start", hopeless=True),
    Cause.START_TIMEOUT: Row("took too long to start"),
    Cause.LIGHTHOUSE_LOST: Row("lost the Lighthouse", blame=Blame.NOTHING),
    Cause.OTHER_VERSION: Row("another torchft", blame=Blame.NOTHING, again=Again.NEVER),
    Cause.LEFT_EARLY: Row("left early", blame=Blame.NOTHING),
    Cause.LEFT_ON_SIGTERM: Row("left after SIGTERM", blame=Blame.NOTHING, with_job=True),
    Cause.PREEMPTED: Row("preempted", orderly="was preempted", blame=Blame.NOTHING, with_job=True),
    Cause.TIME_LIMIT: Row("time limit", orderly="was stopped: time limit", blame=Blame.NOTHING, with_job=True),
    Cause.REQUESTED: Row("moved on request", orderly="has left its nodes", blame=Blame.NOTHING, again=Again.AT_ONCE),
    Cause.CANCELLED: Row("ended from outside", orderly="was stopped", blame=Blame.NOTHING, with_job=True),
    Cause.UNKNOWN: Row("ended for no known reason", with_job=True),
}


def cause_of(name: str | None) -> Cause:
    """Return the cause with this name in a journal; UNKNOWN: there is none."""
    return next((cause for cause in Cause if cause.value == name), Cause.UNKNOWN)


def is_failure(name: str | None) -> bool:
    """Return whether an attempt that ended for the cause with this name has failed."""
    return cause_of(name).row.failure
