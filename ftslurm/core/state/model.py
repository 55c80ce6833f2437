"""The nouns of a run: its state, as values. What can happen to it is events.py, what can be done about it actions.py.

A *unit* is what the controller keeps running (the Lighthouse or a replica group), a *step* is one launch of a unit,
a *task* is one process of a step. Times are seconds of one clock that never goes back, close to unix time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import NamedTuple

from ftslurm.core.state.unit_names import LIGHTHOUSE, STANDBY
from ftslurm.protocol.records import Progress
from ftslurm.protocol.stages import Stage


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
    """Why a step ended, decided from evidence."""

    OK = "ok"
    USER_ERROR = "user_error"
    KILLED = "killed"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_LOST = "node_lost"
    HANG = "hang"
    START_FAILED = "start_failed"
    START_TIMEOUT = "start_timeout"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    LIGHTHOUSE_LOST = "lighthouse_lost"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class RunOutcome(str, Enum):
    """How a run ends; as text in the journal."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    REQUEUED = "requeued"  # this controller's work is over, the run is not: its job is started again
    GOES_ON = "goes_on"  # never journaled: becomes REQUEUED at the end, or STOPPED if the run cannot go on

    def __str__(self) -> str:
        return self.value


class Source(Enum):
    """What kind of thing asks for something."""

    USER = "a user's command"
    SIGNAL = "a signal"
    SLURM = "slurmctld"
    SRUN = "srun"


@dataclass(frozen=True)
class Requester:
    """Who asks for something: a command, the end of the run."""

    source: Source
    name: str | int  # as in the journal: a user's id, a signal, slurm or srun


SLURM = Requester(Source.SLURM, "slurm")
SRUN = Requester(Source.SRUN, "srun")
SIGTERM = Requester(Source.SIGNAL, "SIGTERM")


@dataclass(frozen=True)
class StepId:
    """One launch of a unit: ("group-0003", 2) is the third; as text, in environments and the journal, group-0003/2."""

    unit: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.unit}/{self.attempt}"


@dataclass(frozen=True)
class Allocation:
    """The nodes of one Slurm job (locally: virtual nodes on this machine), in Slurm's order."""

    name: str
    nodes: tuple[str, ...]
    own: bool = True  # the one in which the controller was started; False: a job's that the run has asked for (Job)


@dataclass(frozen=True)
class Place:
    """Where a group runs: distinct nodes, and its share (slot) of each of them, from 0 to groups.per_node - 1."""

    nodes: tuple[str, ...]
    slot: int = 0
    allocation: str | None = None  # name of the job (Job) whose nodes they are; None: the controller's own


@dataclass(frozen=True)
class Job:
    """A Slurm job of this run that gives a group its nodes, or will: a pilot or a satellite."""

    name: str  # as Slurm shows it, "81_2" or "81"; it stays the same when the job is requeued
    pool: int = 0  # which groups it is for: 0 those of no range, i + 1 those of cluster.ranges[i]
    state: str = "PENDING"  # Slurm's word
    id: str = ""  # what srun wants to hear; known once it runs
    nodes: tuple[str, ...] = ()
    reason: str = ""  # why it is pending, in Slurm's word
    born: float = 0.0  # when it was first known
    since: float = 0.0  # when its state last changed
    ends: float | None = None  # its time limit, in unix time
    preempted: bool = False  # Slurm has said so (GraceTime)
    leaving: Cause | None = None  # it is about to end, and why: its group goes at once
    left: float | None = None  # since when it is empty of a group that has left it
    doubted: float | None = None  # a step of it was ended by others: does it still run? Slurm has been asked
    dismissed: str | None = None  # why it is cancelled
    asked: str | None = None  # what Slurm has been asked to do with it: requeue, release
    tried: float = -inf  # when
    began: float | None = None  # when it was first seen running, since it was last requeued
    unheld: float | None = None  # since when its pilot is missing, while it runs
    piloted: float = -inf  # when another pilot was last started in it

    @property
    def alive(self) -> bool:
        """Whether it gives nodes or will."""
        return self.dismissed is None and self.state in ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "REQUEUED")

    @property
    def usable(self) -> bool:
        """Whether a step may be started in it."""
        return self.alive and self.state == "RUNNING" and bool(self.nodes) and not (self.leaving or self.doubted)


@dataclass(frozen=True)
class Rank:
    """What one task of a step is, inside its group, in torchrun's words."""

    rank: int
    node: str
    local_rank: int
    node_rank: int


@dataclass(frozen=True)
class Evidence:
    """One sign of how a task ended: the worker's last words, its guard's report, srun's line, or our own judgement."""

    task: int | None
    node: str | None
    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    node_lost: bool = False
    error: str | None = None  # one line: exception type and message, or what srun said
    started: bool = True  # False: before the user's script was reached
    cause: Cause | None = None  # for evidence that leaves no doubt: Slurm said so, or we have judged (hang)
    doubtful: bool = False  # it may be the node that is lost: Slurm is asked (fate.py)
    stuck: bool = False  # whatever runs it cannot answer: its srun would hang as well, and is not waited for

    def __str__(self) -> str:
        where = "" if self.task is None else f"task {self.task}"
        where += f" on {self.node}" if self.node else ""
        how = "" if self.code is None else f"exit code {self.code}"
        how = how if self.signal is None else f"signal {self.signal}"
        how += " out of memory" if self.out_of_memory else ""
        return ": ".join(word.strip() for word in (where, how, self.error or "") if word.strip())


@dataclass(frozen=True)
class Asking:
    """Jobs that sbatch is being asked for, or that it has refused."""

    pool: int
    count: int  # 0: nothing is under way
    refusals: int = 0  # in a row
    again: float = 0.0  # after a refusal: not before
    error: str = ""  # sbatch's word


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
    healthy_s: float = 0.0  # for how long it had been committing steps
    traceback: str | None = None  # the last lines of the script's
    ran_as: StepId | None = None  # the standby's step that it was, if it was one


class Pulse(NamedTuple):
    """The last sign of life of one task, and where its worker then was (protocol/position.py)."""

    time: float
    state: str = "?"  # one letter, as in /proc: R runs, S sleeps, D waits for a device, T is stopped
    step: int | None = None  # None: the script has no Manager yet
    stage: Stage = Stage.COMPUTING
    moved: float = 0.0  # when step or stage last changed
    stopped: float | None = None  # since when it has been stopped (state T) at every sign of life


@dataclass(frozen=True)
class Marks:
    """When an attempt got how far; what it answers, and since when. Seconds of the controller's clock."""

    detect_s: float | None = None  # how long the failure before it went unnoticed, where that is known
    noticed: float | None = None  # the failure before it
    away: float | None = None  # the first failure since its group last did its work: tries between may have failed
    ended: float | None = None  # that attempt's last process was gone
    launched: float | None = None
    hello: float | None = None  # every task's interpreter runs
    ready: float | None = None  # every task has imported everything
    begun: float | None = None  # the script starts
    quorum: float | None = None  # its first
    joined: float | None = None  # its first committed step


@dataclass(frozen=True)
class GuardReport:
    """What the guard of one task tells a new controller about its worker."""

    task: int
    ready: bool = False
    assigned: bool = False
    begun: bool = False  # its script was told to start
    store: tuple[str, int] | None = None  # address and port; only from rank 0
    lighthouse: str | None = None
    floor: int = 0
    step: int | None = None  # the last step it has committed


@dataclass(frozen=True)
class Adoption:
    """The adoption of a step that an earlier controller has launched: it ends when every guard has reported."""

    since: float
    slurm_step: str | None = None  # Slurm's id of the step, if the earlier controller has written it down
    asked: bool = False  # the way to its guards was started
    again: float = 0.0  # when it is started again, after a failure
    joined: float | None = None  # when it committed its first step, if the journal says so
    reports: tuple[GuardReport, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """What was seen of the current or last attempt of a unit; a new attempt begins with an empty one."""

    ran_as: StepId | None = None  # the standby's step that has become this attempt; None: launched for it
    begin_after: float = 0.0  # the script does not start before
    hosts: tuple[str | None, ...] = ()  # task -> the node it said it is on
    ready: frozenset[int] = frozenset()  # tasks that have imported everything (the Lighthouse: told its address)
    over: frozenset[int] = frozenset()  # tasks whose script has ended well
    done: frozenset[int] = frozenset()  # tasks that ended with 0
    assigned: bool = False
    store: tuple[str, int] | None = None  # address and port of the group's TCPStore
    lighthouse: str | None = None  # where this attempt was last told that the Lighthouse is; empty: there is none
    url: str | None = None  # where its parameter server is
    servers: tuple[str, ...] = ()  # where this attempt was last told that those of the serving groups are
    step: int | None = None  # the last committed step this attempt reported; None: it has not joined
    restored: int | None = None  # the step of the checkpoint that it has loaded
    aborted: int = 0  # how many steps it has tried and not committed, as it has told last
    floor: int = 0  # its first committed step must be above this one, or it has begun a new history
    wanted: int = 0  # the step from which on it was last asked for a checkpoint
    seen: tuple[int, int] | None = None  # quorum and step in which our own Lighthouse last saw it: newer than `step`
    intent: Cause | None = None  # STOPPING on our decision, for this cause
    spared: bool = False  # STOPPING: not killed yet, so that a look shows what has died by itself (echo.py)
    evidence: tuple[Evidence, ...] = ()
    traceback: str = ""
    dumped: frozenset[int] = frozenset()  # tasks whose stacks are in their logs
    failing: Marks = Marks()  # detect_s and noticed: of the current attempt's own failure
    drilled: float | None = None  # when a drill was last done to this attempt
    slurm_step: str | None = None  # JOB.STEP
    adoption: Adoption | None = None  # STARTING: it runs, and this controller has yet to hear from it
    told: float | None = None  # when Slurm told its step to end, in a job beside the controller's
    untold: tuple[float, Progress] | None = None  # when it last reported, and what no line tells yet
    last_told: float | None = None  # when this attempt's last line about its progress was written


@dataclass(frozen=True)
class Unit:
    """One thing to keep running, and all that was seen of it."""

    name: str
    group: int | None  # None: the Lighthouse, or a standby
    phase: Phase = Phase.PENDING
    attempt: int = -1  # the current or last launch
    place: Place | None = None
    reason: str = "start"  # why the next launch, or the current one
    due: float = 0.0  # PENDING: not before; STARTING: not after; STOPPING: when to kill (again)
    current: Attempt = Attempt()
    marks: Marks = Marks()
    pulses: tuple[Pulse | None, ...] = ()  # task -> its last
    retired: bool = False  # `ftslurm scale` takes it out of the run
    waits_for: str | None = None  # PENDING: why it is not launched although it is due
    exits: tuple[Exit, ...] = ()

    @property
    def id(self) -> StepId:
        """The current or last step."""
        return self.current.ran_as or StepId(self.name, self.attempt)

    @property
    def group_id(self) -> int:
        """Number of the replica group, of a unit that is one."""
        assert self.group is not None
        return self.group

    @property
    def is_standby(self) -> bool:
        """Whether it waits to become a group's next attempt."""
        return self.name.startswith(STANDBY)

    @property
    def is_lighthouse(self) -> bool:
        return self.name == LIGHTHOUSE

    @property
    def joined(self) -> bool:
        """Whether this attempt has committed a step, so that it holds the state of the training."""
        return self.phase is Phase.RUNNING and self.current.step is not None


@dataclass(frozen=True)
class Look:
    """A node of which nothing is heard, and a probe that was sent there."""

    node: str
    since: float  # when the step that is missed was last heard
    asked: float  # when the probe was sent
    heard: float | None = None  # when anything was, also of other steps there
    slurm: bool = False  # slurmctld was there meanwhile
    answered: float | None = None
    again: float | None = None  # Slurm has refused the probe: when the next one is sent
    reachable: bool = False
    steps: tuple[tuple[str, str], ...] | None = None  # "group-0003/2": "ST", the states of its processes; None: unknown


@dataclass(frozen=True)
class Fate:
    """What Slurm says of a node on which a step may have died while no controller led (node_fate.py)."""

    node: str
    asked: float
    answered: bool = False
    down: bool = False  # or it does not respond
    since: float | None = None  # when it, or its slurmd, was last started


@dataclass(frozen=True)
class Overtaken:
    """A task that stands still since `moved`, and since when it is known that another has passed it."""

    unit: str
    task: int
    moved: float
    since: float


@dataclass(frozen=True)
class Returning:
    """A lost node, which may come back: when it is looked at next, and how often it has been."""

    node: str
    since: float  # when it was left out
    next_look: float
    looks: int = 0


@dataclass(frozen=True)
class Ending:
    """The run is being brought to an end."""

    outcome: RunOutcome
    reason: str
    cause: Cause = Cause.CANCELLED  # what the steps that still run are said to end of
    by: Requester | None = None
    until: float = 0.0  # it is not over before: Slurm has been asked why


@dataclass(frozen=True)
class SaveAsked:
    """A checkpoint that all groups were asked for; the group that leads saves it (rollover.py)."""

    step: int  # of this step or a later one
    until: float  # when the controller stops waiting for it
    error: str | None = None  # why it could not be saved


@dataclass(frozen=True)
class Saved:
    """What checkpoint.dir has to resume from: the newest complete checkpoint."""

    path: str
    step: int | None  # None: files that ftslurm cannot read; only the script knows what they are
    damaged: str | None = None  # what is wrong with our newest, where none is complete


@dataclass(frozen=True)
class Lineage:
    """The state of the training: what it has reached, and from where groups start."""

    step: int = 0  # the highest step any group has committed
    restarted: float | None = None  # when all groups last started over together
    lost: str | None = None  # how the last live copy of the training's state went; until the groups start over
    resuming: bool = False  # all groups start from a checkpoint; until the first has committed a step
    resume_step: int = 0  # the step of that checkpoint; 0: only the script knows
    checkpoint: Saved | None = None  # the newest when a step last ended
    saved: bool = False  # a group has told of a checkpoint
    newest: int = 0  # the step of the last one that a group has saved in this job
    origin: int = 0  # the step of the checkpoint that was there when this job began
    saving: SaveAsked | None = None
    rolling: Ending | None = None  # how the run ends here when that is answered: its job is about to end
    allowed_by: StepId | None = None  # the Lighthouse that was told of this full restart


@dataclass(frozen=True)
class JobPool:
    """The Slurm jobs that give groups their nodes, beside the controller's own."""

    by_name: Mapping[str, Job] = field(default_factory=dict)  # those that were asked for, oldest first; never changed
    leaving: tuple[Job, ...] = ()  # those of which an earlier controller knew, at `since`, that they are about to end
    asking: tuple[Asking, ...] = ()
    had: int = 0  # nodes of the controller's own allocation when it was granted
    polled: bool = False  # Slurm has told which jobs the run has
    next_poll: float = 0.0

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs that were asked for, oldest first."""
        return tuple(self.by_name.values())


@dataclass(frozen=True)
class Nodes:
    """What is known of nodes: which are left out, and which are under suspicion."""

    avoid: frozenset[str] = frozenset()  # nodes on which nothing is placed any more
    returning: tuple[Returning, ...] = ()  # those of them that are looked at now and then: they may come back
    shunned: frozenset[str] = frozenset()  # nodes that are being drained: used only where no other is free
    drain_asked: float = 0.0  # when Slurm was asked about them last
    suspected: tuple[tuple[str, int], ...] = ()  # those of them on which this group kept failing
    fates: tuple[Fate, ...] = ()  # nodes of which Slurm is asked whether a step has died with them
    looks: tuple[Look, ...] = ()  # nodes of which nothing is heard, and what a look at them has shown


@dataclass(frozen=True)
class Standstill:
    """Which tasks stand still while others go on; see health/hangs.py."""

    overtaken: tuple[Overtaken, ...] = ()  # see hangs.py
    next_look: float = 0.0  # all groups are compared then at the earliest
    ask: float | None = None  # when every task is asked how far it is, if the groups go on as they did
    asked_where: float = 0.0  # when every task was last asked how far it is


@dataclass(frozen=True)
class Drills:
    """Which faults on purpose are done."""

    injected: frozenset[int] = frozenset()  # indices of the planned drills already done
    done: int = 0  # how many drills of the random stream are done
    stepping_since: float | None = None  # the first committed step of the run
