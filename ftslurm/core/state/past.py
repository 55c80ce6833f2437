"""The state that an earlier controller of the same run has left in the journal, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from ftslurm.core.state.model import Evidence, Exit, Nodes, Pace, Place, StepId
from ftslurm.protocol.value_class import Value


class Live(Value):
    """A step that ran when an earlier controller wrote its last line."""

    unit: str
    id: StepId
    attempt: int
    place: Place
    hosts: tuple[str, ...]  # of each task
    launched: float
    slurm_step: str | None = None
    noticed: float | None = None  # time of the failure or move that led to it
    joined: float | None = None  # when it committed its first step, if the journal has it
    home: str | None = None  # the only place where it can still run (Past.home); None: it has a Slurm job of its own
    away: float | None = None  # as in Marks
    recalled: str | None = None  # as in Attempt
    diverged: Evidence | None = None  # why it has been brought down, if it differs from a majority
    step: int | None = None  # the last committed one that it has reported
    pace: Pace | None = None  # when it was last told that it is slow, or no longer


class Scheduled(Value):
    """A restart that the earlier controller had scheduled but not launched."""

    unit: str
    due: float
    reason: str
    noticed: float | None  # time of the failure that led to it
    away: float | None = None  # as in Marks


@dataclass
class Past:
    """The state of the run when the earlier controller wrote its last line."""

    attempts: dict[str, int] = field(default_factory=dict)  # unit -> its last attempt
    step: int = 0  # the highest that any group had committed
    live: dict[str, Live] = field(default_factory=dict)
    stopped: tuple[str, int] | None = None  # the reason and the user, if one has asked for the end of the run
    over: dict[str, str | None] = field(default_factory=dict)  # unit -> why it was given up; None: it has finished
    history: int = 0  # as in Lineage
    resuming: int | None = None  # all groups were starting over, from the checkpoint of this step
    saved: bool = False  # a group had reported a checkpoint
    equal: int = 0  # the last step after which groups were equal, as known at the last checkpoint
    drilled: int = 0  # how many of the planned drills were done
    groups: int | None = None  # number of groups set by `ftslurm scale`
    restarts: int = 0  # of groups that had failed
    exits: dict[str, tuple[Exit, ...]] = field(default_factory=dict)  # of a group's or standby's attempts, oldest first
    nodes: Nodes = field(default=Nodes())
    scheduled: dict[str, Scheduled] = field(default_factory=dict)
    home: str = ""  # where the last controller ran: its Slurm job, and how often that had been requeued
    host: str = ""  # the machine where the last controller ran
    node: str = ""  # the first node of its allocation, where it ran, if it had one
    longest_s: float = 0.0  # as in Standstill
    seen: int = 0
    time: float | None = None  # of that line, or of the last progress
