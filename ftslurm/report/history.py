"""The history of a run as values: what each group did at every moment, and what failed. history_fold.py computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from ftslurm.protocol.value_class import Value

# What a group does during a span. The names of a recovery's phases are those of the journal (core/groups/reports.py).
QUEUED = "queued"  # it waits for the nodes of a Slurm job that has not started (again)
TRAINING = "training"  # its steps count
UNDONE = "undone"  # it trained, but a full restart from a checkpoint has undone these steps
STALLED = "stalled"  # it trains, but a step takes far longer than usual
GIVEN_UP = "given_up"  # it gets no further attempt
FINISHED = "finished"  # its script has ended, or `ftslurm scale` has taken it out
EARLIER = "earlier"  # an attempt that ended before its first step
# The phases in which time is lost.
PHASES = (
    *("detect", "end", "wait", EARLIER, "start", "import", "assign", "join", "commit"),
    *(STALLED, UNDONE, GIVEN_UP),
)
# Causes that are no cause of an exit
FIRST_START = "first_start"  # the group has not trained yet
SLOW_STEP = "slow_step"  # no failure: a checkpoint, an evaluation, slow data
FULL_RESTART = "full_restart"
STOPPED = "stopped"  # the end of the run


class Span(NamedTuple):
    """A time during which a group did one thing."""

    begin: float
    end: float
    phase: str
    cause: str = ""  # of a lost time: as in step_exited, or one of the causes above
    node: str | None = None  # of a lost time: the node that caused it
    attempt: int = -1
    nodes: tuple[str, ...] = ()  # on which it ran

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class GroupHistory(Value):
    """What one group did, without a gap from when it became part of the run until the end of the report."""

    group: int
    spans: tuple[Span, ...]
    committed: int  # steps, over all attempts
    aborted: int


@dataclass(eq=False)
class Failure:
    """The unexpected end of a group's attempt, of the Lighthouse or of the controller; or a move (`moved`)."""

    time: float  # when it was noticed
    died: float  # when the group was last at work, as far as known
    group: int | None  # None: the Lighthouse
    attempt: int
    cause: str
    detail: str  # the cause for a person: "killed (signal 9) on n2"
    node: str | None
    log: str | None = None
    moved: bool = False  # no failure: preempted, at a time limit, or on request
    drill: str | None = None  # the fault that was inflicted: kill
    step: int | None = None  # the last committed step of the attempt
    back: float | None = None  # when the group committed its next step; None: it has not
    recovery_s: float | None = None  # from its death until then
    phases: Mapping[str, float | None] | None = None  # seconds of each phase of the recovery


@dataclass(eq=False)
class Slow:
    """A time in which all groups waited for one that was slow by itself. Times of steps are medians of 50."""

    group: int
    nodes: tuple[str, ...]
    begin: float
    own_s: float  # its own part of a step
    others_s: float  # that of the other groups
    step_s: float  # a whole step
    end: float = inf  # until the end of the history it stays slow

    @property
    def lost_s(self) -> float:
        """How long the run waited for it in all."""
        return (self.own_s - self.others_s) / self.step_s * (self.end - self.begin) if self.step_s else 0.0


class History(Value):
    """What the groups of a run have done."""

    begin: float  # when it was submitted
    end: float  # the end of the run; of one that goes on: the moment of the report
    undone_steps: int
    groups: tuple[GroupHistory, ...]  # none: it has not started
    failures: tuple[Failure, ...]  # in the order of time, with moves
    slow: tuple[Slow, ...]  # in the order of time
