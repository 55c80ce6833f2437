"""The events of a run, as values. reduce.py folds them into the state."""

from __future__ import annotations

from immutables import Map

from ftslurm.core.state.model import Allocation, Evidence, GuardReport, Job, Requester, RunOutcome, Saved, StepId
from ftslurm.core.state.past import Past
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.stages import Stage
from ftslurm.protocol.value_class import Value


class Granted(Value):
    """Slurm has granted the allocation. Carries the newest checkpoint and the state left by an earlier controller."""

    allocation: Allocation
    checkpoint: Saved | None = None
    past: Past | None = None
    refused: str | None = None  # why the run must not go on
    homes: frozenset[str] = frozenset()  # where this controller runs: its Slurm job, its node; see Live.home
    leaf_of: Map[str, str] = Map()  # the leaf switch or block of each node, if Slurm has a topology


class NodesLeft(Value):
    """The nodes that the controller's allocation still has, according to Slurm."""

    nodes: tuple[str, ...]


class JobsSeen(Value):
    """The jobs of this run that give groups their nodes, as squeue shows them."""

    jobs: tuple[Job, ...]
    asked: float  # when squeue was called
    took_s: float = 0.0  # how long squeue took
    whole: bool = True  # False: the list is partial; jobs that are not in it may still exist


class JobsUnknown(Value):
    """squeue has not answered, or its answer is unusable."""

    took_s: float = 0.0


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


class ScaleAsked(Value):
    """A user requests this number of groups (`ftslurm scale`)."""

    groups: int
    by: Requester


class RestartAsked(Value):
    """A user requests that a group starts again (`ftslurm restart`). rank: the one that it is for; a group is whole."""

    group: int
    rank: int | None
    by: Requester
    command: str  # the id of the command in the inbox


class StacksAsked(Value):
    """A user requests the stacks of a rank of a group, or of all its ranks (`ftslurm stacks`)."""

    group: int
    rank: int | None
    by: Requester
    command: str


class CheckpointAsked(Value):
    """A user requests a checkpoint now (`ftslurm save`)."""

    by: Requester
    command: str


class DrainAsked(Value):
    """A user requests that nothing of the run stays on a node (`ftslurm drain`)."""

    node: str
    by: Requester
    command: str


class UndrainAsked(Value):
    """A user takes back the drain of a node (`ftslurm undrain`)."""

    node: str
    by: Requester
    command: str


class Hello(Value):
    """A task has started on this node; its interpreter has not imported torch yet."""

    id: StepId
    task: int
    node: str
    slurm_step: str | None = None  # JOB.STEP


class Adopted(Value):
    """The guard of a task that an earlier controller has launched reports to this one."""

    id: StepId
    report: GuardReport


class Ready(Value):
    """A task has imported everything and waits for its assignment."""

    id: StepId
    task: int


class Room(Value):
    """The memory that a node has left while a group trains there, in MiB."""

    id: StepId
    task: int
    available_mb: int
    worker_mb: int  # private memory of one worker when all was imported


class Alive(Value):
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


class StoreUp(Value):
    """Rank 0 hosts the group's TCPStore."""

    id: StepId
    addr: str
    port: int


class LighthouseUp(Value):
    id: StepId
    url: str


class QuorumRefused(Value):
    """Our Lighthouse refuses a quorum to groups that would start a new history."""

    id: StepId
    reason: str


class QuorumBroken(Value):
    """A member of the last quorum that our Lighthouse has issued is gone."""

    id: StepId
    quorum_id: int


class GroupAside(Value):
    """Our Lighthouse forms quorums without a group that is silent; or it is heard again."""

    id: StepId
    group: int
    attempt: int
    aside: bool
    seconds: float  # how long its manager has been silent, or was


class Progressed(Value):
    """Rank 0 has seen torchft commit or abort steps; sampled."""

    id: StepId
    step: int
    quorum_id: int
    participants: int
    committed: int
    aborted: int
    gap_s: float | None = None  # the longest time between two commits since the last report


class QuorumSeen(Value):
    """Our Lighthouse has issued a quorum (sampled). A large quorum comes as several events, each with some members."""

    id: StepId
    quorum_id: int
    members: tuple[tuple[int, int], ...]  # (group, requested step); the step is the number of its committed steps


class FirstQuorum(Value):
    """This attempt of a group is in a quorum for the first time."""

    id: StepId


class Serving(Value):
    """A script has made a torchft ParameterServer."""

    id: StepId
    url: str


class Served(Value):
    """How many sessions a ParameterServer has open, and its `step`, if it has such an attribute; sampled."""

    id: StepId
    sessions: int
    step: int | None


class SessionOpened(Value):
    """A script has a session with a ParameterServer; sampled."""

    id: StepId
    sessions: int  # how many it has had


class Traced(Value):
    """A piece of the traceback of a script that is about to fail."""

    id: StepId
    task: int
    text: str


class Warned(Value):
    """A worker's warning to the user."""

    id: StepId
    text: str


class Dumped(Value):
    """The stacks of a task are in its log."""

    id: StepId
    task: int


class StacksTaken(Value):
    """The stacks of a task are in a file beside its log, for the user's command of this id; or `error` says why not."""

    id: StepId
    task: int
    command: str
    file: str
    error: str | None = None


class InjectRefused(Value):
    """A drill could not be done."""

    id: StepId
    task: int
    fault: str
    error: str


class ScriptDone(Value):
    """The script of a task has ended without an error; its process ends next."""

    id: StepId
    task: int


class TaskDone(Value):
    """A task ended with 0."""

    id: StepId
    task: int


SRUN_ABORTS = "srun aborts the step"  # prefix of the errors of a step whose srun has lost the connection to a node
LAST_LINE = "its log says: "  # prefix of an error that is only a line of the script's output


class TaskFailed(Value):
    """A sign that a task failed; the step is brought down at once."""

    id: StepId
    evidence: Evidence


class CanSave(Value):
    """A group's script saves with ftslurm.checkpoint when it is asked to."""

    id: StepId


class Checkpointed(Value):
    """A group has saved a checkpoint, or could not."""

    id: StepId
    step: int
    path: str
    seconds: float
    error: str | None = None


class Restored(Value):
    """A group has loaded a checkpoint, before its first step."""

    id: StepId
    step: int
    path: str


class Ended(Value):
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


class Looked(Value):
    """The result of a node's probe."""

    node: str
    reachable: bool
    steps: tuple[tuple[str, str], ...] | None = None  # see Look
    refused: bool = False  # Slurm did not start the probe (slurmctld has just restarted): nothing is known of the node


class NodesNoted(Value):
    """The nodes that other runs have found broken (cluster.exclude_file), and what a person is told of the file."""

    nodes: frozenset[str]
    text: str


class NodeFate(Value):
    """What Slurm says of a node: whether it is down or does not respond, and when it, or its slurmd, was last started.

    state, reason: in Slurm's words, as "mixed+drain"; the administrator's, with name and time.
    """

    node: str
    down: bool
    since: float | None = None
    state: str = ""
    reason: str = ""


class InjectAsked(Value):
    """A user requests a drill now. group None: any running group; ignored for the Lighthouse."""

    fault: str
    group: int | None
    rank: int
    by: Requester


class StopAsked(Value):
    """The run must end: because of a command, a signal from Slurm, or the time limit."""

    reason: str
    by: Requester
    cause: Cause = Cause.CANCELLED
    outcome: RunOutcome = RunOutcome.STOPPED
    wait_s: float = 0.0  # how long the end may wait for Slurm's reason


class JobEnds(Value):
    """Slurm's job ends soon, and the run continues in another one."""

    reason: str
    by: Requester
    cause: Cause
    left_s: float  # longest wait for a checkpoint


class Explained(Value):
    """Slurm has given the reason for the run's end, or will not give one."""


class NodeResult(Value):
    """The result of the check of one node."""

    node: str
    seconds: float
    log: str  # its output, relative to the run directory
    reason: str | None = None  # why it has failed; None: it has passed


class NodesChecked(Value):
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
