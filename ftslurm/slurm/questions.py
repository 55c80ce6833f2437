"""The controller's background requests to Slurm, one type per question or command. An answer carries its question.

Two equal questions never run at the same time (launchers/background.py).
"""

from __future__ import annotations

from dataclasses import field

from ftslurm.protocol.value_class import dataclass


@dataclass(frozen=True)
class AskOwnState:
    """Ask for the state of the controller's own job, to learn why Slurm ends it."""


@dataclass(frozen=True)
class AskOwnNodes:
    """Ask which nodes the controller's own job still has."""


@dataclass(frozen=True)
class AskQueue:
    """Ask for the jobs of this run and their states."""

    asked: float = field(compare=False)  # by the controller's clock
    asked_monotonic: float = field(compare=False)


@dataclass(frozen=True)
class AskNodeRecords:
    """Ask for the states of nodes, the administrators' reasons, and since when they are up."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class ProbeNode:
    """Start a probe on a node, which shows whether it is reachable and which processes of the run it has."""

    node: str


@dataclass(frozen=True)
class RunNodeChecks:
    """Run the commands of health.preflight on these nodes."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class SubmitPilots:
    """Submit jobs for groups."""

    pool: int


@dataclass(frozen=True)
class SubmitSuccessor:
    """Submit another job for the controller (array mode)."""


@dataclass(frozen=True)
class RunPilot:
    """Run a pilot in a job that has lost its own. `number` makes each attempt a separate question."""

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
    """Requeue a job."""

    name: str


@dataclass(frozen=True)
class StartAtOnce:
    """Start a requeued job without Slurm's delay."""

    name: str


@dataclass(frozen=True)
class ExcludeNodes:
    """Set the nodes that a pending job must not get."""

    name: str


Question = (
    AskOwnState
    | AskOwnNodes
    | AskQueue
    | AskNodeRecords
    | ProbeNode
    | RunNodeChecks
    | SubmitPilots
    | SubmitSuccessor
    | RunPilot
    | CancelStep
    | CancelNamed
    | Requeue
    | StartAtOnce
    | ExcludeNodes
)
