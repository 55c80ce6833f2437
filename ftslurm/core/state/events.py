"""The events of a run, as values. reduce.py folds them into the state."""

from __future__ import annotations

from typing import Any

from immutables import Map

from ftslurm.core.state.actions import Errand
from ftslurm.core.state.model import Allocation, Evidence, Job, Requester, RunOutcome, Saved, StepId
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.messages import Exited, Report
from ftslurm.protocol.stages import Stage
from ftslurm.protocol.value_class import Value


class Granted(Value):
    """Slurm has granted the allocation: the first event of each controller."""

    allocation: Allocation
    checkpoint: Saved | None = None  # the newest; of a controller that resumes None: the one that the state has
    refused: str | None = None  # why the run must not go on
    home: str = ""  # as in RunState
    leaf_of: Map[str, str] = Map()  # the leaf switch or block of each node, if Slurm has a topology
    resumed: float | None = None  # this controller goes on with the state of another one, which wrote last at this time
    unmade: frozenset[StepId] = frozenset()  # steps that the other one was about to launch, and had not begun to


class Leaving(Value):
    """This controller hands over to another one, which goes on with all that runs."""

    reason: str
    leader: int | None  # its number


class ErrandDone(Value):
    """An errand was done, perhaps by an earlier controller."""

    errand: Errand


class NodesLeft(Value):
    """The nodes that the controller's allocation still has, according to Slurm."""

    nodes: tuple[str, ...]


class JobsSeen(Value):
    """The jobs of this run that give groups their nodes, as squeue shows them."""

    jobs: tuple[Job, ...]
    asked: float  # when squeue was called
    took_s: float = 0.0  # how long squeue took
    whole: bool = True  # False: squeue has not answered, or not all can be read: jobs that are not here may exist


class Submitted(Value):
    """sbatch has accepted jobs for a pool, or has refused."""

    pool: int
    names: tuple[str, ...]
    error: str = ""


class JobLeaving(Value):
    """A pilot reports that Slurm ends its job."""

    name: str
    cause: Cause
    why: str


class RequeueRefused(Value):
    """scontrol requeue has failed."""

    name: str
    error: str


class Heard(Value):
    """A message of a step: of a worker, its guard, or the Lighthouse. What tells of a failure comes as TaskFailed."""

    id: StepId
    message: Report


class Alive(Value):
    """A heartbeat of a task's guard, with the position of its worker; see Pulse."""

    id: StepId
    task: int
    time: float  # when it was received; events of this kind may be handed in late
    state: str = "?"
    step: int | None = None
    stage: Stage = Stage.COMPUTING
    since_s: float = 0.0  # how long the worker has been at this stage


class TaskFailed(Value):
    """A sign that a task failed; the step is brought down at once."""

    id: StepId
    evidence: Evidence
    exited: Exited | None = None  # what its guard has said of the end of its process


class Ended(Value):
    """All processes of a step are gone.

    code and signal are the launcher's: srun's own, or the first failing local process's. `checkpoint` is the newest
    at this moment, `launcher_failed` means that the step never started, `error` is the launcher's text, `no_job` means
    that it cannot start because its job has ended.
    """

    id: StepId
    code: int | None
    signal: int | None = None
    error: str | None = None
    launcher_failed: bool = False
    no_job: bool = False
    checkpoint: Saved | None = None


class Looked(Value):
    """The result of a node's probe, or that it has not answered when it was dialled."""

    node: str
    reachable: bool
    steps: tuple[tuple[str, str], ...] | None = None  # see Look
    refused: bool = False  # Slurm did not start the probe (slurmctld has just restarted): nothing is known of the node
    silent: bool = False  # nothing has answered at its slurmd's port, while slurmctld has


class NodesNoted(Value):
    """The nodes that other runs have found broken (cluster.exclude_file), and what a person is told of the file."""

    nodes: frozenset[str]
    text: str


class NodeFate(Value):
    """What Slurm says of a node: whether it is down or does not respond, and whether it is drained (None: unclear)."""

    node: str
    down: bool
    drained: bool | None = None
    why: str = ""  # its state in Slurm's words, and an administrator's reason


class Asked(Value):
    """A user asks for something of the running training; reduce.REQUESTS has what. The journal has the answer."""

    what: str
    by: Requester
    command: str  # the id of the command in the inbox
    group: int | None = None
    rank: int | None = None  # of stacks
    node: str = ""
    fault: str = ""
    groups: int = 0  # of scale

    @property
    def about(self) -> dict[str, Any]:
        """What the answer in the journal repeats of it."""
        about = {"command": self.command, "what": self.what, "by": self.by}
        return about | {"group": self.group, "rank": self.rank, "node": self.node or None}


class StopAsked(Value):
    """The run must end: because of a command, a signal from Slurm, or the time limit."""

    reason: str
    by: Requester
    cause: Cause = Cause.CANCELLED
    outcome: RunOutcome = RunOutcome.STOPPED
    wait_s: float = 0.0  # how long the end may wait for Slurm's reason
    command: str = ""  # the id of the command in the inbox; "": it comes from elsewhere


class JobEnds(Value):
    """Slurm's job ends soon, and the run continues in another one."""

    reason: str
    by: Requester
    cause: Cause
    left_s: float  # longest wait for a checkpoint


class Explained(Value):
    """Slurm has given the reason for the end of the controller's job, or will not give one."""

    signalled: bool  # it was asked after its signal: a run that it ends waits for no other answer
    answered: bool = True


StepEvent = Heard | TaskFailed | Ended
JobEvent = JobsSeen | Submitted | JobLeaving | RequeueRefused
NodeEvent = NodesLeft | Looked | NodesNoted | NodeFate
RunEvent = Granted | Leaving | ErrandDone | Asked | StopAsked | JobEnds | Explained
Event = Alive | StepEvent | JobEvent | NodeEvent | RunEvent
