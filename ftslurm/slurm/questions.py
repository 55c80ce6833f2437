"""What the controller asks of Slurm in the background, one type per question or order. An answer carries its question.

Two equal questions are never asked at the same time (launchers/background.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class AskOwnState:
    """Why does Slurm end the controller's own job?"""


@dataclass(frozen=True)
class AskOwnNodes:
    """Which nodes does the controller's own job still have?"""


@dataclass(frozen=True)
class AskQueue:
    """Which jobs of this run are there, and in which state?"""

    asked: float = field(compare=False)  # by the controller's clock
    asked_monotonic: float = field(compare=False)


@dataclass(frozen=True)
class AskNodeState:
    """Which state does Slurm show for a node, and which reason did an administrator give?"""

    node: str


@dataclass(frozen=True)
class AskNodeRecord:
    """Is a node down, and since when is it up?"""

    node: str


@dataclass(frozen=True)
class ProbeNode:
    """Start a probe on a node: can it be reached, and which processes of the run does it have?"""

    node: str


@dataclass(frozen=True)
class SubmitPilots:
    """Submit jobs for groups."""

    pool: int


@dataclass(frozen=True)
class SubmitSuccessor:
    """Submit another job for the controller (array mode)."""


@dataclass(frozen=True)
class RunPilot:
    """Run a pilot in a job that has lost its own. `number` makes each try a question of its own."""

    name: str
    number: int


@dataclass(frozen=True)
class CancelStep:
    """Cancel a Slurm step."""

    slurm_step: str


@dataclass(frozen=True)
class CancelNamed:
    """Cancel jobs."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Requeue:
    """Put a job back into the queue."""

    name: str


@dataclass(frozen=True)
class StartAtOnce:
    """Let a requeued job start without Slurm's delay."""

    name: str


@dataclass(frozen=True)
class ExcludeNodes:
    """Set the nodes that a pending job must not get."""

    name: str


Question = (
    AskOwnState
    | AskOwnNodes
    | AskQueue
    | AskNodeState
    | AskNodeRecord
    | ProbeNode
    | SubmitPilots
    | SubmitSuccessor
    | RunPilot
    | CancelStep
    | CancelNamed
    | Requeue
    | StartAtOnce
    | ExcludeNodes
)
