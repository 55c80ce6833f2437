"""The actions that the core asks of the controller, as values.

A JournalRecord is an action too: all records of a decision are on disk before any other action is carried out.
"""

from __future__ import annotations

from dataclasses import field
from math import inf
from typing import ClassVar

from ftslurm.core.state.model import Place, RunOutcome, StepId
from ftslurm.protocol.messages import Order, Rank
from ftslurm.protocol.records import JournalRecord
from ftslurm.protocol.value_class import Value


class Send(Value):
    """Send a message to the guards of a step, or to the Lighthouse, which is a step too."""

    id: StepId
    message: Order


class Launch(Value):
    id: StepId
    group: int | None
    place: Place
    fence: tuple[StepId, ...] = ()  # standby steps that were earlier attempts of this unit: their remains are killed
    check: tuple[str, ...] = ()  # nodes on which health.preflight runs before a worker starts there


class Attach(Value):
    """Connect to the guards of a step that an earlier controller has launched."""

    id: StepId
    place: Place
    slurm_step: str | None = None  # to end the step if the guards do not answer


class Assign(Value):
    """Send every task of a group's step its rank, ranks[task]."""

    id: StepId
    group: int
    ranks: tuple[Rank, ...]
    lighthouse: str
    attempt: int = 0
    slot: int = 0
    fence: tuple[StepId, ...] = ()  # as in Launch, for a standby that takes over
    servers: tuple[str, ...] = ()  # as in messages.Servers


class Kill(Value):
    """Kill all processes of this step at once."""

    id: StepId
    stuck: bool = False  # its srun waits for a node that is gone: do not wait for it


class Cancel(Value):
    """Cancel a step with scancel, as a drill."""

    id: StepId


class Ask(Value):
    """Something asked of the scheduler, in the background (launchers/scheduler.py). The answers are events."""

    share: ClassVar[float] = inf  # it waits while so much of the run's RPCs is used up (state/budget.py); inf: never


class AskNodes(Ask):
    """Ask what Slurm says of nodes. The answer is a NodeFate for each."""

    share = 0.7
    nodes: tuple[str, ...]


class NoteBroken(Value):
    """Tell other runs that a node is broken (cluster.exclude_file); without a reason: that it is not."""

    node: str
    reason: str = ""


class DistrustCheckpoints(Ask):
    """Have nobody restore what a group has saved after a step, in this attempt or one before: it had diverged."""

    group: int
    attempt: int
    after: int


Errand = NoteBroken | DistrustCheckpoints  # carried out until the event ErrandDone says that it is done


class Probe(Ask):
    """Probe a node: whether it answers, and which of the run's processes are there. The answer is Looked."""

    node: str
    allocation: str | None = None  # as in Place


class ProbeLost(Probe):
    """Probe a node that is lost: it may have come back."""

    share = 0.7


class Dial(Ask):
    """Dial slurmd's port on nodes: kernels answer, whatever their processes do. The answer is Looked of the silent."""

    nodes: tuple[str, ...]


class AskJobs(Ask):
    """Ask about all jobs of this run at once. The answer is JobsSeen."""

    share = 0.9
    asked: float = field(default=0.0, compare=False)  # when; a request that is still open serves as well


class RequestJobs(Ask):
    """Submit `count` jobs of a group's size that avoid the nodes in `exclude`. The answer is Submitted."""

    share = 1.0
    pool: int
    count: int
    exclude: tuple[str, ...] = ()


class Exclude(Ask):
    """Change the nodes that a queued job must not get to these and those of cluster.sbatch.exclude."""

    share = 1.0
    name: str
    nodes: tuple[str, ...]


class CancelJobs(Ask):
    names: tuple[str, ...]


class RequeueJob(Ask):
    """Give back a job's nodes, and let it wait in the queue. The answer is RequeueRefused, if it cannot."""

    name: str


class StartNow(Ask):
    """Skip the two minutes that Slurm makes a requeued job wait."""

    name: str


class Finish(Value):
    outcome: RunOutcome
    reason: str


Action = JournalRecord | Send | Ask | Launch | Attach | Assign | Kill | Cancel | NoteBroken | Finish
