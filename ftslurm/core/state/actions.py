"""The actions that the core asks of the controller, as values.

A JournalRecord is an action too: all records of a decision are on disk before any other action is carried out.
"""

from __future__ import annotations

from ftslurm.core.state.model import Place, Rank, RunOutcome, SilentGroup, StepId
from ftslurm.protocol.records import JournalRecord
from ftslurm.protocol.value_class import dataclass


@dataclass(frozen=True)
class Launch:
    id: StepId
    group: int | None
    place: Place
    fence: tuple[StepId, ...] = ()  # standby steps that were earlier attempts of this unit: their remains are killed


@dataclass(frozen=True)
class Attach:
    """Connect to the guards of a step that an earlier controller has launched."""

    id: StepId
    group: int | None
    place: Place
    slurm_step: str | None = None  # to end the step if the guards do not answer


@dataclass(frozen=True)
class Assign:
    """Send every task of a group's step its rank, ranks[task]."""

    id: StepId
    group: int
    ranks: tuple[Rank, ...]
    lighthouse: str
    attempt: int = 0
    slot: int = 0
    fence: tuple[StepId, ...] = ()  # as in Launch, for a standby that takes over
    servers: tuple[str, ...] = ()  # as in Servers


@dataclass(frozen=True)
class Redirect:
    """Send the Lighthouse's new address to the guards of a group's step, which forward to it (guard/proxy.py)."""

    id: StepId
    lighthouse: str


@dataclass(frozen=True)
class Broken:
    """Abort a group's wait for this quorum, which has lost a member (worker/quorum_abort.py)."""

    id: StepId
    quorum_id: int


@dataclass(frozen=True)
class Servers:
    """Send the parameter servers' addresses to the guards of a group's step: one per serving group, empty if down."""

    id: StepId
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Begin:
    """Start the scripts: send every task the address of the group's store and the progress of the training."""

    id: StepId
    addr: str
    port: int
    heals: bool = False  # other groups hold the training's state: no checkpoint is needed
    floor: int = 0  # no quorum may be at a lower step


@dataclass(frozen=True)
class Stop:
    """Send SIGTERM to the scripts; a Kill follows after the grace time."""

    id: StepId


@dataclass(frozen=True)
class SaveNow:
    """Request a checkpoint of this step or a later one from a group, regardless of checkpoint.every."""

    id: StepId
    step: int


@dataclass(frozen=True)
class Kill:
    """Kill all processes of this step at once."""

    id: StepId
    stuck: bool = False  # its srun waits for a node that is gone: do not wait for it


@dataclass(frozen=True)
class Announce:
    """Send the Lighthouse (`id`) the store of a group's live attempt, which identifies the attempt's managers."""

    id: StepId
    group: int
    attempt: int
    store: str


@dataclass(frozen=True)
class Evict:
    """Report to the Lighthouse (`id`) that this attempt of a group and all earlier ones are over.

    finished: the group has succeeded. The others may train to their end without it, however few they are.
    """

    id: StepId
    group: int
    attempt: int
    store: str | None = None
    finished: bool = False


@dataclass(frozen=True)
class SetAside:
    """Send the Lighthouse (`id`) all groups whose guards are silent; a list replaces the one before."""

    id: StepId
    groups: tuple[SilentGroup, ...]
    after_s: float  # a manager that is silent for so long is not waited for


@dataclass(frozen=True)
class NewHistory:
    """Report a full restart to the Lighthouse (`id`): all groups start over from this step's checkpoint."""

    id: StepId
    step: int


@dataclass(frozen=True)
class Inject:
    """Inflict a fault on one task of a step, as a drill."""

    id: StepId
    task: int
    fault: str


@dataclass(frozen=True)
class Cancel:
    """Cancel a step with scancel, as a drill."""

    id: StepId


@dataclass(frozen=True)
class Where:
    """Ask every task of a step for its step of training and its stage."""

    id: StepId
    question: int | None = None  # its number, which the answers have


@dataclass(frozen=True)
class Dump:
    """Make every task of a step write its stacks into its log."""

    id: StepId


@dataclass(frozen=True)
class TakeStacks:
    """Make one task of a step, or every one, write its stacks into a file of their own."""

    id: StepId
    command: str  # the id of the command in the inbox
    task: int | None
    by: str


@dataclass(frozen=True)
class AskNodes:
    """Ask what Slurm says of nodes."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class NoteBroken:
    """Tell other runs that a node is broken (cluster.exclude_file); without a reason: that it is not."""

    node: str
    reason: str = ""


@dataclass(frozen=True)
class Probe:
    """Probe a node: whether it answers, and which of the run's processes are there."""

    node: str
    allocation: str | None = None  # as in Place


@dataclass(frozen=True)
class CheckNodes:
    """Run the commands of health.preflight on these nodes at the same time, each once."""

    nodes: tuple[str, ...]
    allocation: str | None = None  # as in Place


@dataclass(frozen=True)
class AskJobs:
    """Ask Slurm about all jobs of this run, with one squeue."""


@dataclass(frozen=True)
class RequestJobs:
    """Submit `count` jobs of a group's size that avoid the nodes in `exclude`."""

    pool: int
    count: int
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exclude:
    """Change the nodes that a queued job must not get to these and those of cluster.sbatch.exclude."""

    name: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class CancelJobs:
    names: tuple[str, ...]


@dataclass(frozen=True)
class RequeueJob:
    name: str


@dataclass(frozen=True)
class StartPilot:
    """Start another pilot in a job that has lost its own, on its first node."""

    name: str  # as Slurm shows it
    id: str  # the job id for srun
    node: str


@dataclass(frozen=True)
class StartNow:
    """Skip the two minutes that Slurm makes a requeued job wait."""

    name: str


@dataclass(frozen=True)
class Finish:
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
    | SetAside
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
