"""The actions that the core asks of the controller, as values.

A JournalRecord is to be written into the journal: all records of a decision are on disk before any other action.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftslurm.core.state.model import Place, Rank, RunOutcome, StepId
from ftslurm.protocol.records import JournalRecord


@dataclass(frozen=True)
class Launch:
    id: StepId
    group: int | None
    place: Place
    fence: tuple[StepId, ...] = ()  # standbys' steps that were earlier attempts of this unit: what is left of them ends


@dataclass(frozen=True)
class Attach:
    """Connect to the guards of a step that an earlier controller has launched."""

    id: StepId
    group: int | None
    place: Place
    slurm_step: str | None = None  # to end it if they do not answer


@dataclass(frozen=True)
class Assign:
    """Tell every task of a group's step its rank: ranks[task]."""

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
    """Tell the guards of a group's step, which forward to the Lighthouse (guard/proxy.py), that it has moved."""

    id: StepId
    lighthouse: str


@dataclass(frozen=True)
class Broken:
    """Tell a group's workers that this quorum has lost a member: they need not wait for it (worker/quorum_abort.py)."""

    id: StepId
    quorum_id: int


@dataclass(frozen=True)
class Servers:
    """Tell the guards of a group's step where the parameter servers are: one of each serving group, empty: nowhere."""

    id: StepId
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Begin:
    """Start the scripts: tell every task where the group's store is, and how far the training has come."""

    id: StepId
    addr: str
    port: int
    heals: bool = False  # others hold the training's state: it needs no checkpoint
    floor: int = 0  # the step below which no quorum may be


@dataclass(frozen=True)
class Stop:
    """SIGTERM to the scripts; a Kill follows after the grace time."""

    id: StepId


@dataclass(frozen=True)
class SaveNow:
    """Ask a group for a checkpoint of this step or a later one, whatever checkpoint.every says."""

    id: StepId
    step: int


@dataclass(frozen=True)
class Kill:
    """Kill all processes of this step at once."""

    id: StepId
    stuck: bool = False  # its srun waits for a node that is gone: do not wait for it


@dataclass(frozen=True)
class Announce:
    """Tell the Lighthouse (`id`) which store the living attempt of a group has: its managers are known by that."""

    id: StepId
    group: int
    attempt: int
    store: str


@dataclass(frozen=True)
class Evict:
    """Tell the Lighthouse (`id`) that this attempt of a group and all earlier ones are over."""

    id: StepId
    group: int
    attempt: int
    store: str | None = None


@dataclass(frozen=True)
class NewHistory:
    """Tell the Lighthouse (`id`) that all groups start over: no lower step than this need be held by anybody."""

    id: StepId
    step: int


@dataclass(frozen=True)
class Inject:
    """A drill: do this to one task of a step."""

    id: StepId
    task: int
    fault: str


@dataclass(frozen=True)
class Cancel:
    """A drill: scancel of a step."""

    id: StepId


@dataclass(frozen=True)
class Where:
    """Ask every task of a step how far it is."""

    id: StepId


@dataclass(frozen=True)
class Dump:
    """Have every task of a step write its stacks into its log."""

    id: StepId


@dataclass(frozen=True)
class AskState:
    """Ask Slurm for the state of a node on which a process has died."""

    node: str


@dataclass(frozen=True)
class AskFate:
    """Ask Slurm whether a node is down, and since when it is up."""

    node: str


@dataclass(frozen=True)
class Probe:
    """Probe a node: does it answer, and which of the run's processes are there?"""

    node: str
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
    """Change the nodes that a job in the queue must not get: these, and those of cluster.exclude."""

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
    id: str  # what srun wants to hear
    node: str


@dataclass(frozen=True)
class StartNow:
    """Cut the two minutes that Slurm makes a requeued job wait."""

    name: str


@dataclass(frozen=True)
class Finish:
    outcome: RunOutcome
    reason: str


Action = (
    JournalRecord
    | Launch
    | Attach
    | Assign
    | Redirect
    | Broken
    | Servers
    | Begin
    | Stop
    | SaveNow
    | Kill
    | Announce
    | Evict
    | NewHistory
    | Inject
    | Cancel
    | Where
    | Dump
    | AskState
    | AskFate
    | Probe
    | AskJobs
    | RequestJobs
    | Exclude
    | CancelJobs
    | RequeueJob
    | StartPilot
    | StartNow
    | Finish
)
