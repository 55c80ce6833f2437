"""The controller's background requests to Slurm, one type per question or command. An answer carries its question.

Two equal questions never run at the same time (launchers/background.py).
"""

from __future__ import annotations

from dataclasses import field

from ftslurm.protocol.value_class import Value


class AskOwnState(Value):
    """Ask for the state of the controller's own job, to learn why Slurm ends it."""


class AskOwnNodes(Value):
    """Ask which nodes the controller's own job still has."""


class AskQueue(Value):
    """Ask for the jobs of this run and their states."""

    asked: float = field(compare=False)  # by the controller's clock
    asked_monotonic: float = field(compare=False)


class AskNodeRecords(Value):
    """Ask for the states of nodes and the administrators' reasons."""

    nodes: tuple[str, ...]


class ProbeNode(Value):
    """Start a probe on a node, which shows whether it is reachable and which processes of the run it has."""

    node: str


class RunNodeChecks(Value):
    """Run the commands of health.preflight on these nodes."""

    nodes: tuple[str, ...]


class SubmitPilots(Value):
    """Submit jobs for groups."""

    pool: int


class SubmitSuccessor(Value):
    """Submit another job for the controller (array mode)."""


class RunPilot(Value):
    """Run a pilot in a job that has lost its own. `number` makes each attempt a separate question."""

    name: str
    number: int


class CancelStep(Value):
    """Cancel a Slurm step."""

    slurm_step: str


class CancelNamed(Value):
    """Cancel jobs."""

    names: tuple[str, ...]


class Requeue(Value):
    """Requeue a job."""

    name: str


class StartAtOnce(Value):
    """Start a requeued job without Slurm's delay."""

    name: str


class ExcludeNodes(Value):
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
