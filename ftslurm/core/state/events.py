"""The events of a run, as values. reduce.py folds them into the state."""

from __future__ import annotations

from immutables import Map

from ftslurm.core.state.model import Allocation, Evidence, GuardReport, Job, Requester, RunOutcome, Saved, StepId
from ftslurm.core.state.past import Past
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.stages import Stage
from ftslurm.protocol.value_class import dataclass


@dataclass(frozen=True)
class Granted:
    """Slurm has granted the allocation. Carries the newest checkpoint and the state left by an earlier controller."""

    allocation: Allocation
    checkpoint: Saved | None = None
    past: Past | None = None
    refused: str | None = None  # why the run must not go on
    homes: frozenset[str] = frozenset()  # where this controller runs: its Slurm job, its node; see Live.home
    leaf_of: Map[str, str] = Map()  # the leaf switch or block of each node, if Slurm has a topology


@dataclass(frozen=True)
class NodesLeft:
    """The nodes that the controller's allocation still has, according to Slurm."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class JobsSeen:
    """The jobs of this run that give groups their nodes, as squeue shows them."""

    jobs: tuple[Job, ...]
    asked: float  # when squeue was called
    took_s: float = 0.0  # how long squeue took
    whole: bool = True  # False: the list is partial; jobs that are not in it may still exist


@dataclass(frozen=True)
class JobsUnknown:
    """squeue has not answered, or its answer is unusable."""

    took_s: float = 0.0


@dataclass(frozen=True)
class Submitted:
    """sbatch has accepted jobs for a pool, or has refused."""

    pool: int
    names: tuple[str, ...]
    error: str = ""


@dataclass(frozen=True)
class JobLeaving:
    """A pilot reports that Slurm ends its job."""

    name: str
    cause: Cause
    why: str


@dataclass(frozen=True)
class RequeueRefused:
    """scontrol requeue has failed."""

    name: str
    error: str


@dataclass(frozen=True)
class ScaleAsked:
    """A user requests this number of groups (`ftslurm scale`)."""

    groups: int
    by: Requester


@dataclass(frozen=True)
class RestartAsked:
    """A user requests that a group starts again (`ftslurm restart`). rank: the one that it is for; a group is whole."""

    group: int
    rank: int | None
    by: Requester
    command: str  # the id of the command in the inbox


@dataclass(frozen=True)
class StacksAsked:
    """A user requests the stacks of a rank of a group, or of all its ranks (`ftslurm stacks`)."""

    group: int
    rank: int | None
    by: Requester
    command: str


@dataclass(frozen=True)
class CheckpointAsked:
    """A user requests a checkpoint now (`ftslurm save`)."""

    by: Requester
    command: str


@dataclass(frozen=True)
class DrainAsked:
    """A user requests that nothing of the run stays on a node (`ftslurm drain`)."""

    node: str
    by: Requester
    command: str


@dataclass(frozen=True)
class UndrainAsked:
    """A user takes back the drain of a node (`ftslurm undrain`)."""

    node: str
    by: Requester
    command: str


@dataclass(frozen=True)
class Hello:
    """A task has started on this node; its interpreter has not imported torch yet."""

    id: StepId
    task: int
    node: str
    slurm_step: str | None = None  # JOB.STEP


@dataclass(frozen=True)
class Adopted:
    """The guard of a task that an earlier controller has launched reports to this one."""

    id: StepId
    report: GuardReport


@dataclass(frozen=True)
class Ready:
    """A task has imported everything and waits for its assignment."""

    id: StepId
    task: int


@dataclass(frozen=True)
class Room:
    """The memory that a node has left while a group trains there, in MiB."""

    id: StepId
    task: int
    available_mb: int
    worker_mb: int  # private memory of one worker when all was imported


@dataclass(frozen=True)
class Alive:
    """A heartbeat of a task's guard, with the position of its worker; see Pulse."""

    id: StepId
    task: int
    time: float  # when it was received; events of this kind may be handed in late
    state: str = "?"
    step: int | None = None
    stage: Stage = Stage.COMPUTING
    since_s: float = 0.0  # how long the worker has been at this stage
    pilot: bool | None = None  # whether the pilot of its job runs; None: unknown, or the job has none
    answers: int | None = None  # number of the question that it answers (actions.Where)


@dataclass(frozen=True)
class StoreUp:
    """Rank 0 hosts the group's TCPStore."""

    id: StepId
    addr: str
    port: int


@dataclass(frozen=True)
class LighthouseUp:
    id: StepId
    url: str


@dataclass(frozen=True)
class QuorumRefused:
    """Our Lighthouse refuses a quorum to groups that would start a new history."""

    id: StepId
    reason: str


@dataclass(frozen=True)
class QuorumBroken:
    """A member of the last quorum that our Lighthouse has issued is gone."""

    id: StepId
    quorum_id: int


@dataclass(frozen=True)
class GroupAside:
    """Our Lighthouse forms quorums without a group that is silent; or it is heard again."""

    id: StepId
    group: int
    attempt: int
    aside: bool
    seconds: float  # how long its manager has been silent, or was


@dataclass(frozen=True)
class Progressed:
    """Rank 0 has seen torchft commit or abort steps; sampled."""

    id: StepId
    step: int
    quorum_id: int
    participants: int
    committed: int
    aborted: int
    gap_s: float | None = None  # the longest time between two commits since the last report


@dataclass(frozen=True)
class QuorumSeen:
    """Our Lighthouse has issued a quorum (sampled). A large quorum comes as several events, each with some members."""

    id: StepId
    quorum_id: int
    members: tuple[tuple[int, int], ...]  # (group, requested step); the step is the number of its committed steps


@dataclass(frozen=True)
class FirstQuorum:
    """This attempt of a group is in a quorum for the first time."""

    id: StepId


@dataclass(frozen=True)
class Serving:
    """A script has made a torchft ParameterServer."""

    id: StepId
    url: str


@dataclass(frozen=True)
class Served:
    """How many sessions a ParameterServer has open, and its `step`, if it has such an attribute; sampled."""

    id: StepId
    sessions: int
    step: int | None


@dataclass(frozen=True)
class SessionOpened:
    """A script has a session with a ParameterServer; sampled."""

    id: StepId
    sessions: int  # how many it has had


@dataclass(frozen=True)
class Traced:
    """A piece of the traceback of a script that is about to fail."""

    id: StepId
    task: int
    text: str


@dataclass(frozen=True)
class Warned:
    """A worker's warning to the user."""

    id: StepId
    text: str


@dataclass(frozen=True)
class Dumped:
    """The stacks of a task are in its log."""

    id: StepId
    task: int


@dataclass(frozen=True)
class StacksTaken:
    """The stacks of a task are in a file beside its log, for the user's command of this id; or `error` says why not."""

    id: StepId
    task: int
    command: str
    file: str
    error: str | None = None


@dataclass(frozen=True)
class InjectRefused:
    """A drill could not be done."""

    id: StepId
    task: int
    fault: str
    error: str


@dataclass(frozen=True)
class ScriptDone:
    """The script of a task has ended without an error; its process ends next."""

    id: StepId
    task: int


@dataclass(frozen=True)
class TaskDone:
    """A task ended with 0."""

    id: StepId
    task: int


SRUN_ABORTS = "srun aborts the step"  # prefix of the errors of a step whose srun has lost the connection to a node
LAST_LINE = "its log says: "  # prefix of an error that is only a line of the script's output


@dataclass(frozen=True)
class TaskFailed:
    """A sign that a task failed; the step is brought down at once."""

    id: StepId
    evidence: Evidence


@dataclass(frozen=True)
class CanSave:
    """A group's script saves with ftslurm.checkpoint when it is asked to."""

    id: StepId


@dataclass(frozen=True)
class Checkpointed:
    """A group has saved a checkpoint, or could not."""

    id: StepId
    step: int
    path: str
    seconds: float
    error: str | None = None


@dataclass(frozen=True)
class Restored:
    """A group has loaded a checkpoint, before its first step."""

    id: StepId
    step: int
    path: str


@dataclass(frozen=True)
class Ended:
    """All processes of a step are gone.

    code and signal are the launcher's: srun's own, or the first failing local process's. `checkpoint` is the newest
    at this moment, `launcher_failed` means that the step never started, `error` is the launcher's text.
    """

    id: StepId
    code: int | None
    signal: int | None = None
    error: str | None = None
    launcher_failed: bool = False
    checkpoint: Saved | None = None


@dataclass(frozen=True)
class Looked:
    """The result of a node's probe."""

    node: str
    reachable: bool
    steps: tuple[tuple[str, str], ...] | None = None  # see Look
    refused: bool = False  # Slurm did not start the probe (slurmctld has just restarted): nothing is known of the node


@dataclass(frozen=True)
class NodesNoted:
    """The nodes that other runs have found broken (cluster.exclude_file), and what a person is told of the file."""

    nodes: frozenset[str]
    text: str


@dataclass(frozen=True)
class NodeFate:
    """What Slurm says of a node: whether it is down or does not respond, and when it, or its slurmd, was last started.

    state, reason: in Slurm's words, as "mixed+drain"; the administrator's, with name and time.
    """

    node: str
    down: bool
    since: float | None = None
    state: str = ""
    reason: str = ""


@dataclass(frozen=True)
class InjectAsked:
    """A user requests a drill now. group None: any running group; ignored for the Lighthouse."""

    fault: str
    group: int | None
    rank: int
    by: Requester


@dataclass(frozen=True)
class StopAsked:
    """The run must end: because of a command, a signal from Slurm, or the time limit."""

    reason: str
    by: Requester
    cause: Cause = Cause.CANCELLED
    outcome: RunOutcome = RunOutcome.STOPPED
    wait_s: float = 0.0  # how long the end may wait for Slurm's reason


@dataclass(frozen=True)
class JobEnds:
    """Slurm's job ends soon, and the run continues in another one."""

    reason: str
    by: Requester
    cause: Cause
    left_s: float  # longest wait for a checkpoint


@dataclass(frozen=True)
class Explained:
    """Slurm has given the reason for the run's end, or will not give one."""


@dataclass(frozen=True)
class NodeResult:
    """The result of the check of one node."""

    node: str
    seconds: float
    log: str  # its output, relative to the run directory
    reason: str | None = None  # why it has failed; None: it has passed


@dataclass(frozen=True)
class NodesChecked:
    """The step that checked these nodes is over; a node without a result has not answered."""

    nodes: tuple[str, ...]
    results: tuple[NodeResult, ...]
    error: str = ""  # the last words of srun
    refused: bool = False  # Slurm has not started the step, and will later
    unreachable: bool = False  # Slurm cannot start a step there


StepEvent = (
    Hello
    | Adopted
    | Ready
    | StoreUp
    | LighthouseUp
    | QuorumRefused
    | QuorumBroken
    | GroupAside
    | QuorumSeen
    | FirstQuorum
    | Room
    | Progressed
    | Serving
    | Served
    | SessionOpened
    | Traced
    | Warned
    | Dumped
    | StacksTaken
    | InjectRefused
    | CanSave
    | Checkpointed
    | Restored
    | ScriptDone
    | TaskDone
    | TaskFailed
    | Ended
)
# Of groups only:
TrainingEvent = Progressed | Room | CanSave | Checkpointed | Restored | Serving | Served | SessionOpened
JobEvent = JobsSeen | JobsUnknown | Submitted | JobLeaving | RequeueRefused
NodeEvent = NodesLeft | Looked | NodesNoted | NodeFate | NodesChecked
UserRequest = (
    RestartAsked | StacksAsked | CheckpointAsked | DrainAsked | UndrainAsked
)  # each is answered with CommandDone or CommandRefused
RunEvent = Granted | ScaleAsked | UserRequest | InjectAsked | StopAsked | JobEnds | Explained
Event = Alive | StepEvent | JobEvent | NodeEvent | RunEvent
