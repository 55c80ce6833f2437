"""Why an attempt ends: one row for each cause. All that follows from a cause is read here, and nowhere else decided.

docs/causes.md has the same rows; tests/unit/protocol/test_causes.py walks each cause through all readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


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
    ABORT = "srun aborts the step, because its connection to a node has broken"
    PRINTED = "they are only a line of the script's output"


class Blame(Enum):
    """What a cause says about the node on which the attempt ended."""

    NOTHING = 0
    IF_AGAIN = 1  # a group that fails twice there, and nowhere else, makes it suspect
    AT_ONCE = 2  # it is left out already
    BROKEN = 3  # it is left out for the rest of the run, if there are others


class Again(Enum):
    """When the next attempt follows."""

    BY_BUDGET = 0  # restart.max_per_group, restart.backoff_s
    AT_ONCE = 1  # whatever the policy
    NEVER = 2


@dataclass(frozen=True)
class Row:
    """What follows from a cause.

    Attributes:
        words: for status, summary and report.
        meaning, follows: what has happened, and what ftslurm does; docs/causes.md has it.
        orderly: what the group did, for a sentence ("was preempted"), if the end is no failure: it costs no budget,
            pages nobody and is no restart. Empty: a failure.
        blame: what it says about the node.
        again: when the next attempt follows.
        telling: Slurm may know more about the node, and an earlier check of it (health.preflight) is no longer valid.
        with_job: the step's whole Slurm job may be gone.
        hopeless: if it ends every group before its first step, with the same error, another attempt would not help.
    """

    words: str
    meaning: str
    follows: str = "another attempt"
    orderly: str = ""
    blame: Blame = Blame.IF_AGAIN
    again: Again = Again.BY_BUDGET
    telling: bool = False
    with_job: bool = False
    hopeless: bool = False

    @property
    def failure(self) -> bool:
        """Return whether the group has failed: it counts in the budget, and people are told."""
        return not self.orderly


ROWS: Mapping[Cause, Row] = {
    Cause.OK: Row("finished", "every rank has ended with exit code 0", "nothing", "has finished", Blame.NOTHING),
    Cause.USER_ERROR: Row(
        "the script failed",
        "the script has raised an exception, or ended with an exit code",
        "another attempt, unless the same error comes at the same step",
        hopeless=True,
    ),
    Cause.KILLED: Row("killed", "a signal has ended a rank, or something has killed its slurmstepd", telling=True),
    Cause.OUT_OF_MEMORY: Row(
        "out of memory",
        "a rank has used too much memory, or has raised `MemoryError`",
        telling=True,
    ),
    Cause.HARDWARE: Row(
        "broken hardware",
        "the node's hardware is broken, see below",
        "the node is left out; the next attempt starts elsewhere at once",
        blame=Blame.BROKEN,
        telling=True,
        hopeless=True,
    ),
    Cause.DIVERGED: Row(
        "other weights than the rest",
        "its weights or optimizer differ from those of most groups",
        "the node is left out; the next attempt heals elsewhere, at once",
        blame=Blame.BROKEN,
        telling=True,
    ),
    Cause.NETWORK: Row("network error", "NCCL reports a network error, and no other rank has failed", telling=True),
    Cause.NODE_LOST: Row(
        "node lost",
        "nothing is heard of a node, or Slurm says it is down",
        "the node is left out until a probe reaches it; no wait",
        blame=Blame.AT_ONCE,
        telling=True,
        with_job=True,
    ),
    Cause.HANG: Row("hung", "the group takes no step", "another attempt; the stacks are in the logs", telling=True),
    Cause.START_FAILED: Row("could not start", "the script was not reached", hopeless=True),
    Cause.START_TIMEOUT: Row("took too long to start", "the script was not reached in time", telling=True),
    Cause.LIGHTHOUSE_LOST: Row(
        "lost the Lighthouse",
        "the script has raised an error while the Lighthouse was away",
        blame=Blame.NOTHING,
    ),
    Cause.OTHER_VERSION: Row(
        "another torchft",
        "its torchft is of another version than that of the others",
        "no attempt: `ftslurm resume` goes on once all nodes have one version",
        blame=Blame.NOTHING,
        again=Again.NEVER,
    ),
    Cause.PREEMPTED: Row(
        "preempted",
        "Slurm has taken the nodes for another job",
        "another attempt as soon as there are nodes",
        orderly="was preempted",
        blame=Blame.NOTHING,
        with_job=True,
    ),
    Cause.TIME_LIMIT: Row(
        "time limit",
        "the time limit of the job was reached, or is near",
        "another attempt in the next job",
        orderly="was stopped: time limit",
        blame=Blame.NOTHING,
        with_job=True,
    ),
    Cause.REQUESTED: Row(
        "moved on request",
        "a user's command (`ftslurm restart`, `drain`) has ended it",
        "another attempt at once",
        orderly="has left its nodes",
        blame=Blame.NOTHING,
        again=Again.AT_ONCE,
    ),
    Cause.CANCELLED: Row(
        "ended from outside",
        "somebody has ended it (`scancel`), or the run ends",
        "another attempt, unless the run ends",
        orderly="was stopped",
        blame=Blame.NOTHING,
        with_job=True,
    ),
    Cause.UNKNOWN: Row("ended for no known reason", "no sign says why it has ended", telling=True, with_job=True),
}


def cause_of(name: str | None) -> Cause:
    """Return the cause with this name in a journal; UNKNOWN: there is none."""
    return next((cause for cause in Cause if cause.value == name), Cause.UNKNOWN)


def is_failure(name: str | None) -> bool:
    """Return whether an attempt that ended for the cause with this name has failed."""
    return cause_of(name).row.failure
