"""The actions that the core asks of the controller, as values.

A JournalRecord is an action too: all records of a decision are on disk before any other action is carried out.
"""

from __future__ import annotations

from ftslurm.core.state.model import Place, Rank, RunOutcome, StepId
from ftslurm.protocol.records import JournalRecord
from ftslurm.protocol.value_class import Value


class Launch(Value):
    id: StepId
    group: int | None
    place: Place
    fence: tuple[StepId, ...] = ()  # standby steps that were earlier attempts of this unit: their remains are killed


class Attach(Value):
    """Connect to the guards of a step that an earlier controller has launched."""

    id: StepId
    group: int | None
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
    servers: tuple[str, ...] = ()  # as in Servers


class Redirect(Value):
    """Send the Lighthouse's new address to the guards of a group's step, which forward to it (guard/proxy.py)."""

    id: StepId
    lighthouse: str


class Broken(Value):
    """Abort a group's wait for this quorum, which has lost a member (worker/quorum_abort.py)."""

    id: StepId
    quorum_id: int


class Servers(Value):
    """Send the parameter servers' addresses to the guards of a group's step: one per serving group, empty if down."""

    id: StepId
    urls: tuple[str, ...]


class Begin(Value):
    """Start the scripts: send every task the address of the group's store and the progress of the training."""

    id: StepId
    addr: str
    port: int
    heals: bool = False  # other groups hold the training's state: no checkpoint is needed
    floor: int = 0  # no quorum may be at a lower step


class Stop(Value):
    """Send SIGTERM to the scripts; a Kill follows after the grace time."""

    id: StepId


class SaveNow(Value):
    """Request a checkpoint of this step or a later one from a group, regardless of checkpoint.every."""

    id: StepId
    step: int


class Kill(Value):
    """Kill all processes of this step at once."""

    id: StepId
    stuck: bool = False  # its srun waits for a node that is gone: do not wait for it


class Announce(Value):
    """Send the Lighthouse (`id`) the store of a group's live attempt, which identifies the attempt's managers."""

    id: StepId
    group: int
    attempt: int
    store: str


class Evict(Value):
    """Report to the Lighthouse (`id`) that this attempt of a group and all earlier ones are over.

    finished: the group has succeeded. The others may train to their end without it, however few they are.
    """

    id: StepId
    group: int
    attempt: int
    store: str | None = None
    finished: bool = False


class NewHistory(Value):
    """Report a full restart to the Lighthouse (`id`): all groups start over from this step's checkpoint."""

    id: StepId
    step: int


class Inject(Value):
    """Inflict a fault on one task of a step, as a drill."""

    id: StepId
    task: int
    fault: str


class Cancel(Value):
    """Cancel a step with scancel, as a drill."""

    id: StepId


class Where(Value):
    """Ask every task of a step for its step of training and its stage."""

    id: StepId
    question: int | None = None  # its number, which the answers have


class Dump(Value):
    """Make every task of a step write its stacks into its log."""

    id: StepId


class TakeStacks(Value):
    """Make one task of a step, or every one, write its stacks into a file of their own."""

    id: StepId
    command: str  # the id of the command in the inbox
    task: int | None
    by: str


class AskNodes(Value):
    """Ask what Slurm says of nodes."""

    nodes: tuple[str, ...]


class NoteBroken(Value):
    """Tell other runs that a node is broken (cluster.exclude_file); without a reason: that it is not."""

    node: str
    reason: str = ""


class Probe(Value):
    """Probe a node: whether it answers, and which of the run's processes are there."""

    node: str
    allocation: str | None = None  # as in Place


class CheckNodes(Value):
    """Run the commands of health.preflight on these nodes at the same time, each once."""

    nodes: tuple[str, ...]
    allocation: str | None = None  # as in Place


class AskJobs(Value):
    """Ask Slurm about all jobs of this run, with one squeue."""


class RequestJobs(Value):
    """Submit `count` jobs of a group's size that avoid the nodes in `exclude`."""

    pool: int
    count: int
    exclude: tuple[str, ...] = ()


class Exclude(Value):
    """Change the nodes that a queued job must not get to these and those of cluster.exclude."""

    name: str
    nodes: tuple[str, ...]


class CancelJobs(Value):
    names: tuple[str, ...]


class RequeueJob(Value):
    name: str


class StartPilot(Value):
    """Start another pilot in a job that has lost its own, on its first node."""

    name: str  # as Slurm shows it
    id: str  # the job id for srun
    node: str


class StartNow(Value):
    """Skip the two minutes that Slurm makes a requeued job wait."""

    name: str


class Finish(Value):
    outcome: RunOutcome
    reason: str


# Those that send a message to a step, and those that ask Slurm for something.
MessageAction = (
    Redirect
    | Broken
    | Servers
    | Begin
    | Stop
    | SaveNow
    | Announce
    | Evict
    | NewHistory
    | Inject
    | Where
    | Dump
    | TakeStacks
)
JobAction = AskJobs | RequestJobs | Exclude | CancelJobs | RequeueJob | StartPilot | StartNow | AskNodes | NoteBroken
Action = (
    JournalRecord | MessageAction | JobAction | Launch | Attach | Assign | Kill | Cancel | Probe | CheckNodes | Finish
)
