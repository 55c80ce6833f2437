"""The nouns of a run: its state, what can happen to it, and what can be done about it. All values, nothing acts.

Words are those of the design: a *unit* is what the controller keeps running (the Lighthouse or a replica group), a
*step* is one launch of a unit, a *task* is one process of a step. Times are seconds of one clock that never goes
back, close to unix time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Phase(str, Enum):
    """Where a unit is."""

    PENDING = "PENDING"  # no step; will be launched when it is due and has nodes
    STARTING = "STARTING"  # launched; not every worker runs the script yet
    RUNNING = "RUNNING"  # every worker runs the script (the Lighthouse: it has told its address)
    STOPPING = "STOPPING"  # being brought down; the step has not ended yet
    SUCCEEDED = "SUCCEEDED"  # its step ended with 0
    FAILED = "FAILED"  # given up: no further attempt


LIVE = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING})  # phases in which a step exists


class Cause(str, Enum):
    """Why a step ended, decided from evidence (design contract 7)."""

    OK = "ok"
    USER_ERROR = "user_error"
    KILLED = "killed"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_LOST = "node_lost"
    START_FAILED = "start_failed"
    START_TIMEOUT = "start_timeout"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class StepId:
    """One launch of a unit: ("group-0003", 2) is the third."""

    unit: str
    attempt: int


@dataclass(frozen=True)
class Allocation:
    """The nodes of one Slurm job (locally: virtual nodes on this machine), in Slurm's order."""

    name: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """Where a group runs: distinct nodes, and its share (slot) of each of them, from 0 to groups.per_node - 1."""

    nodes: tuple[str, ...]
    slot: int = 0


@dataclass(frozen=True)
class Rank:
    """What one task of a step is, inside its group, in torchrun's words."""

    rank: int
    node: str
    local_rank: int
    node_rank: int


@dataclass(frozen=True)
class Evidence:
    """One sign of how a task ended: the worker's last words, its watcher's report, or srun's line."""

    task: int | None
    node: str | None
    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    node_lost: bool = False
    error: str | None = None  # one line: exception type and message, or what srun said
    started: bool = True  # False: before the user's script was reached


@dataclass(frozen=True)
class Exit:
    """How one attempt of a unit ended."""

    attempt: int
    time: float
    cause: Cause
    nodes: tuple[str, ...]
    code: int | None = None
    signal: int | None = None
    node: str | None = None
    rank: int | None = None
    error: str | None = None
    step: int | None = None  # the last step it had committed
    launched: bool = True  # False: srun itself failed, no node was reached


@dataclass(frozen=True)
class Unit:
    """One thing to keep running, and all that was seen of it."""

    name: str
    group: int | None  # None: the Lighthouse
    phase: Phase = Phase.PENDING
    attempt: int = -1  # the current or last launch
    place: Place | None = None
    reason: str = "start"  # why the next launch, or the current one
    due: float = 0.0  # PENDING: not before; STARTING: not after; STOPPING: when to kill (again)
    launched: float = 0.0
    begin_after: float = 0.0  # the script does not start before
    hosts: tuple[str | None, ...] = ()  # task -> the node it said it is on
    ready: frozenset[int] = frozenset()  # tasks that have imported everything (the Lighthouse: told its address)
    done: frozenset[int] = frozenset()  # tasks that ended with 0
    assigned: bool = False
    store: tuple[str, int] | None = None  # address and port of the group's TCPStore
    step: int | None = None  # the last committed step this attempt reported; None: it has not joined
    intent: Cause | None = None  # STOPPING on our decision, for this cause
    evidence: tuple[Evidence, ...] = ()
    down_since: float | None = None  # when the failure that the current attempt answers was noticed
    exits: tuple[Exit, ...] = ()

    @property
    def id(self) -> StepId:
        """The current or last step."""
        return StepId(self.name, self.attempt)

    @property
    def joined(self) -> bool:
        """Whether this attempt has committed a step, so that it holds the state of the training."""
        return self.phase is Phase.RUNNING and self.step is not None


@dataclass(frozen=True)
class Ending:
    """The run is being brought to an end."""

    outcome: str  # succeeded, failed or stopped
    reason: str
    cause: Cause = Cause.CANCELLED  # what the steps that still run are said to end of


@dataclass(frozen=True)
class RunState:
    """Everything the controller knows."""

    lighthouse: Unit
    groups: tuple[Unit, ...]
    allocation: Allocation | None = None
    lighthouse_url: str | None = None
    avoid: frozenset[str] = frozenset()  # nodes on which nothing is placed any more
    step: int = 0  # the highest step any group has committed
    released: bool = False  # the first start has happened: later groups do not wait for one another
    injected: frozenset[int] = frozenset()  # indices of the drills already done
    lost: str | None = None  # how the last live copy of the training's state went; until the groups start over
    resuming: bool = False  # all groups start over from a checkpoint; until the first has committed a step again
    checkpoint: bool = False  # whether there was a checkpoint when a step last ended
    told: tuple[Announce | Evict | None, ...] = ()  # the last order about each group that was given to a Lighthouse
    allowed_by: StepId | None = None  # the Lighthouse that was told of this full restart
    ending: Ending | None = None
    finished: bool = False

    @property
    def units(self) -> tuple[Unit, ...]:
        return (self.lighthouse, *self.groups)


# --- what can happen -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Granted:
    """Slurm gave nodes."""

    allocation: Allocation


@dataclass(frozen=True)
class NodesLeft:
    """Slurm says which nodes the allocation still has."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Hello:
    """A task is there, on this node; its interpreter has not imported torch yet."""

    id: StepId
    task: int
    node: str


@dataclass(frozen=True)
class Ready:
    """A task has imported everything and waits for its assignment."""

    id: StepId
    task: int


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
    """Our Lighthouse keeps groups waiting that would start a new history."""

    id: StepId
    reason: str


@dataclass(frozen=True)
class Progressed:
    """Rank 0 saw torchft commit (or abort); sampled."""

    id: StepId
    step: int
    quorum_id: int
    participants: int
    committed: int
    aborted: int
    gap_s: float | None = None  # the longest time between two commits since the last report


@dataclass(frozen=True)
class TaskDone:
    """A task ended with 0."""

    id: StepId
    task: int


@dataclass(frozen=True)
class TaskFailed:
    """A sign that a task failed; the step is to be brought down at once."""

    id: StepId
    evidence: Evidence


@dataclass(frozen=True)
class Ended:
    """All processes of a step are gone.

    code and signal are the launcher's: srun's own, or the first failing local process's. `checkpoint` says whether
    a checkpoint exists at this moment, `launcher_failed` that the step never started, `error` is the launcher's text.
    """

    id: StepId
    code: int | None
    signal: int | None = None
    error: str | None = None
    launcher_failed: bool = False
    checkpoint: bool = False


@dataclass(frozen=True)
class StopAsked:
    """End the run: a command, a signal from Slurm, or the time limit."""

    reason: str
    by: str | int  # the user's id, or what sent the signal
    cause: Cause = Cause.CANCELLED


StepEvent = Hello | Ready | StoreUp | LighthouseUp | QuorumRefused | Progressed | TaskDone | TaskFailed | Ended
Event = Granted | NodesLeft | StepEvent | StopAsked

# --- what can be done ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """Write a line into the journal. All records of a decision are on disk before any other action is taken."""

    event: str
    fields: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    id: StepId
    group: int | None
    place: Place


@dataclass(frozen=True)
class Assign:
    """Tell every task of a group's step who it is. ranks[task] is its place in the group."""

    id: StepId
    group: int
    ranks: tuple[Rank, ...]
    lighthouse: str


@dataclass(frozen=True)
class Begin:
    """Tell every task where the group's store is: the script starts."""

    id: StepId
    addr: str
    port: int


@dataclass(frozen=True)
class Stop:
    """SIGTERM to the scripts; a Kill follows after the grace time."""

    id: StepId


@dataclass(frozen=True)
class Kill:
    """Everything of this step, at once."""

    id: StepId


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
    """A drill: kill -9 of one task's worker."""

    id: StepId
    task: int


@dataclass(frozen=True)
class Finish:
    outcome: str
    reason: str


Action = Record | Launch | Assign | Begin | Stop | Kill | Announce | Evict | NewHistory | Inject | Finish
