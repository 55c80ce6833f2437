"""The parts of a run's state, as values. Events are in events.py, actions in actions.py.

A *unit* is what the controller keeps running (the Lighthouse or a replica group), a *step* is one launch of a unit,
a *task* is one process of a step. Times are seconds of one clock that never goes back, close to unix time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from immutables import Map

from ftslurm.core.state.unit_names import LIGHTHOUSE, STANDBY
from ftslurm.protocol import job_states
from ftslurm.protocol.causes import Cause, Says
from ftslurm.protocol.messages import Adopted, Checkpointed, Request
from ftslurm.protocol.records import Progress
from ftslurm.protocol.stages import Stage
from ftslurm.protocol.traces import Traces
from ftslurm.protocol.value_class import Value

if TYPE_CHECKING:  # mypy checks the names and types of what is changed
    from dataclasses import replace as replace
else:

    def replace(value: Any, /, **changes: Any) -> Any:
        """Return a copy of a frozen dataclass with some fields changed.

        `dataclasses.replace` runs `__init__`, which takes 12 us for a Unit; copying its dictionary takes 1 us. The
        values of the core have no `__post_init__` and no slots, so both give the same.
        """
        copy = object.__new__(type(value))
        fields = copy.__dict__
        fields.update(value.__dict__)
        fields.update(changes)
        return copy


# What the rules look at, beside units by their names.
ALL = "*"  # every unit and the jobs
JOBS = "jobs"  # the Slurm jobs of the run
RUN = "run"  # what the rules look at in every decision


class Phase(str, Enum):
    """The phase of a unit; docs/architecture.md lists the changes of phase."""

    PENDING = "PENDING"  # no step; will be launched when it is due and has nodes
    STARTING = "STARTING"  # launched; not every worker runs the script yet
    RUNNING = "RUNNING"  # every worker runs the script (the Lighthouse: its address is known)
    STOPPING = "STOPPING"  # being brought down; the step has not ended yet
    SUCCEEDED = "SUCCEEDED"  # its step ended with 0
    FAILED = "FAILED"  # given up: no further attempt


LIVE = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING})  # phases in which a step exists
RUNS = (Phase.STARTING, Phase.RUNNING)  # phases in which a step exists, and is not being brought down
OVER = frozenset({Phase.SUCCEEDED, Phase.FAILED})  # phases in which no further step will exist


class Trait(Enum):
    """A property by which the rules select units: of a group, beside its phase; the last three are of any unit."""

    JOINED = "it has committed a step and runs"
    ADOPTING = "an earlier controller has launched it, and this one has yet to hear from it"
    WAITING = "it is due and has no place"
    RETIRED = "`ftslurm scale` takes it out of the run"
    PARTED = "it runs, and the scripts of some of its ranks, not of all, have ended without an error"
    STANDBY = "it is a standby, in this phase, which is being adopted or not"
    ON_NODE = "its last place is on this node"
    IN_JOB = "its last place is in this Slurm job"


class RunOutcome(str, Enum):
    """The outcome of a run; the journal has its value."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    REQUEUED = "requeued"  # this controller ends, the run does not: its job is started again
    GOES_ON = "goes_on"  # never journaled: becomes REQUEUED at the end, or STOPPED if the run cannot go on

    def __str__(self) -> str:
        return self.value


# The origin of a request, of a command or of the end of the run, as the journal has it: a user's id, or one of these.
Requester: TypeAlias = int | str
SLURM, SRUN, SIGTERM = "slurm", "srun", "SIGTERM"


class StepId(Value):
    """One launch of a unit: ("group-0003", 2) is the third; as text, in environments and the journal, group-0003/2."""

    unit: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.unit}/{self.attempt}"


class Allocation(Value):
    """The nodes of one Slurm job (locally: virtual nodes on this machine), in Slurm's order."""

    name: str
    nodes: tuple[str, ...]
    own: bool = True  # the controller was started in it; False: of a job that the run has submitted (Job)


class Place(Value):
    """The distinct nodes of a group, and its share (slot) of each of them, from 0 to groups.per_node - 1."""

    nodes: tuple[str, ...]
    slot: int = 0
    allocation: str | None = None  # name of the job (Job) whose nodes they are; None: the controller's own


NOWHERE = Place(())  # of a unit that was never launched


class Job(Value):
    """A Slurm job of this run that provides nodes for a group, now or later: a pilot or a satellite."""

    name: str  # as Slurm shows it, "81_2" or "81"; it stays the same when the job is requeued
    pool: int = 0  # which groups it is for: 0 those of no range, i + 1 those of cluster.ranges[i]
    state: str = job_states.SUBMITTED
    id: str = ""  # the job id for srun; known once the job runs
    nodes: tuple[str, ...] = ()
    reason: str = ""  # why it waits, as Slurm prints it
    born: float = 0.0  # when it was first known
    since: float = 0.0  # when its state last changed
    ends: float | None = None  # its time limit, in unix time
    # As squeue shows it: Slurm preempts the job (GraceTime). Of one that waits: it was, and waits its two minutes.
    preempted: bool = False
    leaving: Cause | None = None  # why it is about to end, if it is: its group leaves at once
    left: float | None = None  # since when it has been empty, after its group left it
    doubted: float | None = None  # when a step of it was ended from outside: Slurm is asked whether it still runs
    dismissed: str | None = None  # why it is cancelled
    tried: float = -inf  # when Slurm was asked last, in this state, to requeue it or to start it at once
    began: float | None = None  # when it was first seen running, since it was last requeued

    @property
    def row(self) -> job_states.JobState:
        """What follows from its state."""
        return job_states.state(self.state)

    @property
    def alive(self) -> bool:
        """Whether the job provides nodes, now or later."""
        return self.dismissed is None and self.row.provides

    @property
    def usable(self) -> bool:
        """Whether a step may be started in the job."""
        return self.alive and self.row.runs and bool(self.nodes) and not (self.leaving or self.doubted)


class Evidence(Value):
    """One sign of how a task ended: the worker's error, its guard's report, srun's output, or the core's verdict."""

    task: int | None = None
    node: str | None = None
    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    node_lost: bool = False
    error: str | None = None  # one line: exception type and message, or srun's message
    says: frozenset[Says] = frozenset()  # what these words say
    hardware: str | None = None  # what its guard has found in the kernel log and in the script's, against the node
    started: bool = True  # False: before the user's script was reached
    cause: Cause | None = None  # set if certain: Slurm has reported it, or the core has decided it (hang)
    stuck: bool = False  # what runs the task does not respond: its srun would hang too and is not waited for

    def __str__(self) -> str:
        where = "" if self.task is None else f"task {self.task}"
        where += f" on {self.node}" if self.node else ""
        how = "" if self.code is None else f"exit code {self.code}"
        how = how if self.signal is None else f"signal {self.signal}"
        how += " out of memory" if self.out_of_memory else ""
        words = (where, how, self.error or "", self.hardware or "")
        return ": ".join(word.strip() for word in words if word.strip())


class Asking(Value):
    """A request to sbatch that is under way, or that sbatch has refused."""

    count: int = 0  # number of jobs; 0: no request is under way
    exclude: tuple[str, ...] = ()  # nodes that they must not get
    refusals: int = 0  # in a row
    again: float = 0.0  # after a refusal: earliest time of the next request
    error: str = ""  # sbatch's message


class Exit(Value):
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
    echo: bool = False  # the error is a lost connection (Says.ECHO)
    launched: bool = True  # False: srun itself failed, no node was reached
    healthy_s: float = 0.0  # since its first step; without a quorum, since its script began
    traceback: str | None = None  # the last lines of the script's traceback
    ran_as: StepId | None = None  # the standby's step that had become this attempt; None: launched for it
    restored: int | None = None  # the step of the checkpoint that it had loaded


class Pulse(NamedTuple):
    """The last sign of life of one task, and the position of its worker (protocol/position.py)."""

    time: float
    state: str = "?"  # one letter, as in /proc: R runs, S sleeps, D waits for a device, T is stopped
    step: int | None = None  # None: the script has no Manager yet
    stage: Stage = Stage.COMPUTING
    moved: float = 0.0  # when step or stage last changed
    stopped: float | None = None  # since when it has been stopped (state T) at every sign of life


class Marks(Value):
    """The times of one attempt's stages, and of the failure before it. Seconds of the controller's clock."""

    died: float | None = None  # when the failure before it happened; if that is not known, when it was noticed
    noticed: float | None = None  # when the failure before it was noticed
    away: float | None = None  # when its group last worked; attempts in between may have failed
    ended: float | None = None  # the failed attempt's last process was gone
    launched: float | None = None
    hello: float | None = None  # every task's interpreter runs
    ready: float | None = None  # every task has imported everything
    begun: float | None = None  # the script starts
    quorum: float | None = None  # its first quorum
    joined: float | None = None  # its first committed step


class Adoption(Value):
    """The adoption of a step that an earlier controller has launched: it ends when every guard has reported."""

    since: float
    asked: bool = False  # a connection to its guards was started
    again: float = 0.0  # when the connection is tried again, after a failure
    reports: tuple[Adopted, ...] = ()


class Pace(Value):
    """How fast a group is: medians of its last steps (worker/pace.py), and whether it makes the others wait."""

    own_s: float  # its own part of a step
    step_s: float  # the whole step
    told: float | None = None  # how many times as long as the others it needs, as the journal says; None: not slow
    since: tuple[int, float] | None = None  # step and time from which on each comparison has found otherwise


class Attempt(Value):
    """What is known of the current or last attempt of a unit; each attempt begins with an empty one."""

    ran_as: StepId | None = None  # the standby's step that has become this attempt; None: launched for it
    hosts: tuple[str | None, ...] = ()  # task -> the node it has reported
    checking: frozenset[str] = frozenset()  # nodes whose check (health.preflight) this attempt has begun with
    ready: Map[int, str] = Map()  # tasks that have imported everything (the Lighthouse: has an address) -> its torchft
    over: frozenset[int] = frozenset()  # tasks whose script has ended without an error
    done: frozenset[int] = frozenset()  # tasks that ended with 0
    asked: float = -inf  # when tasks were last asked where they are, because others had ended
    termed: bool = False  # the guard of one of them had sent or seen SIGTERM
    left: int | None = None  # the step at which they have ended, as their guards say; None: they do not
    assigned: bool = False
    stores: Map[int, tuple[str, int]] = Map()  # first task on a node -> address and port of its guard's admission
    lighthouse: str | None = None  # address of the Lighthouse last sent to this attempt; empty: there is none
    roomy: frozenset[int] = frozenset()  # tasks that have reported a node with memory for a standby (standby.py)
    checkpointed: Checkpointed | None = None  # the last word of it about a checkpoint, which its guard repeats
    saves: bool = False  # its script saves a checkpoint when it is asked to
    url: str | None = None  # address of its parameter server
    servers: tuple[str, ...] = ()  # addresses of the parameter servers last sent to this attempt
    step: int | None = None  # the last committed step this attempt reported; None: it has not joined
    restored: int | None = None  # the step of the checkpoint that it has loaded
    pace: Pace | None = None  # None: it has taken too few steps
    agreed: int | None = None  # it is ended because groups differ: the last step after which they did not
    aborted: int = 0  # number of steps it has tried and not committed, as last reported
    floor: int = 0  # a first committed step that is not above this one means a new history
    wanted: int = 0  # its last requested checkpoint is of this step or a later one
    aside: StepId | None = None  # the Lighthouse that does not hear its manager, and has set it aside
    recalled: str | None = None  # why a user's command ends it, to start its unit again; None: none does
    intent: Cause | None = None  # STOPPING: the cause, if the core has decided it
    spared: bool = False  # STOPPING: not killed yet: a probe shows what died by itself (lost_connections.py)
    evidence: tuple[Evidence, ...] = ()
    traces: Traces = ()
    unanswered: frozenset[Request] = frozenset()  # what its guards were asked for, and have not answered
    dumped: frozenset[int] = frozenset()  # tasks whose stacks are in their logs
    failing: Marks = Marks()  # died and noticed: of the current attempt's own failure
    drilled: float | None = None  # when a drill was last done to this attempt
    slurm_step: str | None = None  # JOB.STEP
    adoption: Adoption | None = None  # STARTING: it runs, and its guards have yet to report to this controller
    untold: tuple[float, Progress] | None = None  # time of its last report, and the progress not yet journaled
    last_told: float | None = None  # when this attempt's last progress line was journaled
    missed: Map[int, tuple[int, frozenset[str]]] = Map()  # task -> its last round of `Reached`: nodes it does not reach
    looked: float | None = None  # when what it waits for before its first step was last looked at (groups/reports.py)
    waits: tuple[str, int] | None = None  # what was journaled of that: the stage, and how many tasks it lacks

    @property
    def store(self) -> tuple[str, int] | None:
        """Address and port of the group's TCPStore, at the guard of rank 0."""
        return self.stores.get(0)


class Unit(Value):
    """One thing that the controller keeps running, and all that is known of it."""

    name: str
    group: int | None  # None: the Lighthouse, or a standby
    phase: Phase = Phase.PENDING
    attempt: int = -1  # the current or last launch
    place: Place = NOWHERE
    reason: str = "start"  # reason for the next launch, or the current one
    due: float = 0.0  # PENDING: earliest launch; STARTING: when it must be ready; STOPPING: when to kill (again)
    current: Attempt = Attempt()
    marks: Marks = Marks()
    pulses: tuple[Pulse | None, ...] = ()  # task -> its last sign of life
    retired: bool = False  # `ftslurm scale` takes it out of the run
    waits_for: str | None = None  # PENDING: why it is not launched although it is due
    exits: tuple[Exit, ...] = ()

    @property
    def id(self) -> StepId:
        """The current or last step."""
        return self.current.ran_as or StepId(self.name, self.attempt)

    @property
    def group_id(self) -> int:
        """The number of the replica group; only for a unit that is a group."""
        assert self.group is not None
        return self.group

    @property
    def names(self) -> dict[str, Any]:
        """What records call it: their fields unit, group and attempt."""
        return {"unit": self.name, **self.of_group}

    @property
    def of_group(self) -> dict[str, Any]:
        """The fields group and attempt of records."""
        return {"group": self.group, "attempt": self.attempt}

    @property
    def is_standby(self) -> bool:
        """Whether the unit is a standby, which waits to become a group's next attempt."""
        return self.name.startswith(STANDBY)

    @property
    def is_lighthouse(self) -> bool:
        return self.name == LIGHTHOUSE

    @property
    def joined(self) -> bool:
        """Whether this attempt has committed a step, so that it holds the state of the training."""
        return self.phase is Phase.RUNNING and self.current.step is not None

    @property
    def adopting(self) -> bool:
        """Whether an earlier controller has launched its step, and not all guards have reported to this one."""
        return self.current.adoption is not None

    def node_of(self, task: int) -> str | None:
        """Return the node that a task has reported; None: it has not."""
        return self.current.hosts[task] if task < len(self.current.hosts) else None

    def task_on(self, node: str) -> int | None:
        """Return the first task that has reported this node; None: none has."""
        return next((task for task, host in enumerate(self.current.hosts) if host == node), None)

    def last_pulse(self, node: str) -> float | None:
        """Return when a task was last heard from this node; None: never."""
        both = zip(self.current.hosts, self.pulses, strict=False)
        return max((pulse.time for host, pulse in both if host == node and pulse is not None), default=None)

    @property
    def pulse(self) -> Pulse | None:
        """The last sign of life of its first task, or None if there was none."""
        return self.pulses[0] if self.pulses else None

    @property
    def is_stopped(self) -> bool:
        """Whether one of its tasks was stopped (SIGSTOP) at its last sign of life."""
        return any(pulse is not None and pulse.state == "T" for pulse in self.pulses)


class Look(Value):
    """The silence of a node, and the probe that was sent there."""

    since: float  # when the silent step was last heard from
    asked: float  # when the probe was sent
    heard: float | None = None  # when anything on the node was heard from, including other steps
    slurm: float | None = None  # when slurmctld first answered anything after that
    answered: float | None = None
    again: float | None = None  # Slurm has refused the probe: time of the next one
    reachable: bool = False
    steps: tuple[tuple[str, str], ...] | None = None  # "group-0003/2": "ST", the states of its processes; None: unknown

    def letters(self, step: StepId) -> str | None:
        """Return the states of a step's processes on the node; empty: it has none there, None: unknown."""
        return None if self.steps is None else dict(self.steps).get(str(step), "")


class Ending(Value):
    """The run is being brought to an end."""

    outcome: RunOutcome
    reason: str
    cause: Cause = Cause.CANCELLED  # the cause given to the steps that still run
    by: Requester | None = None
    until: float = 0.0  # earliest end: Slurm has been asked for the reason


class SaveAsked(Value):
    """A checkpoint that was requested from all groups; the group that leads saves it (rollover.py)."""

    step: int  # of this step or a later one
    until: float  # when the controller stops waiting for it
    error: str | None = None  # why it could not be saved
    saved: Saved | None = None  # it
    askers: tuple[tuple[str, Requester], ...] = ()  # the commands and users that wait for it (`ftslurm save`)


class Saved(Value):
    """The newest complete checkpoint in checkpoint.dir, to resume from."""

    path: str
    step: int | None  # None: files that ftslurm cannot read; only the script knows what they are
    damaged: str | None = None  # what is wrong with our newest, if none is complete


class Lineage(Value):
    """The progress of the training, and where groups start from."""

    step: int = 0  # the highest step any group has committed
    advanced: bool = False  # a step was committed in this job; or a script has begun, where none are reported
    history: int = 0  # how many full restarts there were; each begins a new history at the step of its checkpoint
    restarted: float | None = None  # when all groups last started over together
    lost: str | None = None  # how the last live copy of the training's state was lost; until the groups start over
    resuming: bool = False  # all groups start from a checkpoint; until the first has committed a step
    resume_step: int = 0  # the step of that checkpoint; 0: only the script knows
    checkpoint: Saved | None = None  # the newest when a step last ended
    saved: bool = False  # a group has reported a checkpoint
    newest: int = 0  # the step of the last one that a group has saved in this job
    origin: int = 0  # the step of the checkpoint that was there when this job began
    saving: SaveAsked | None = None
    rolling: Ending | None = None  # how the run ends in this job, which is about to end, once `saving` is answered
    allowed_by: StepId | None = None  # the Lighthouse that was sent this full restart


class JobPool(Value):
    """The Slurm jobs that provide nodes for groups, beside the controller's own."""

    by_name: Mapping[str, Job] = field(default_factory=dict)  # submitted jobs, oldest first; never modified
    asking: Map[int, Asking] = Map()  # by pool
    had: int = 0  # nodes of the controller's own allocation when it was granted
    polled: bool = False  # Slurm has reported the run's jobs
    asked: float = -inf  # when it was asked last
    next_poll: float = 0.0

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The submitted jobs, oldest first."""
        return tuple(self.by_name.values())


class Out(Enum):
    """Why nothing is placed on a node, and what brings it back."""

    LOST = "it is lost: a probe that reaches it, or an hour without a job of the run on it"
    BLAMED = "a group kept failing there, or its hardware is broken: that no other node is free"
    UNFIT = "it has failed its check: a user (`ftslurm undrain`)"
    CUT = "others do not reach it: that all do, or a user (`ftslurm undrain`)"
    GONE = "Slurm has taken it out of the controller's job: that another job of the run gets it"


class Node(Value):
    """What is known of a node that is not simply sound."""

    out: Out | None = None  # None: it is used
    since: float = 0.0  # when it was left out
    why: str = ""  # UNFIT, BLAMED: the words of the check, or of what shows that its hardware is broken
    next_look: float = 0.0  # LOST: when it is probed next
    drained: bool = False  # by a user (`ftslurm drain`): nothing is placed there
    shunned: bool = False  # Slurm drains it: used only if no other is free
    noted: bool = False  # other runs have found it broken: used only if no other is free
    look: Look | None = None  # it is silent
    dialled: float = 0.0  # it is silent: when slurmd's port there was dialled
    no_answer: bool = False  # nothing has answered there
    address: tuple[str, int] | None = None  # CUT: where the others dial it
    trusted: bool = False  # a user has taken it back when it was CUT: it is not excluded for that again

    @property
    def usable(self) -> bool:
        """Whether steps are placed there."""
        return self.out is None and not self.drained

    def back(self) -> Node:
        """Return a node that was left out, and is used again."""
        return Node(drained=self.drained, shunned=self.shunned, noted=self.noted, look=self.look, trusted=self.trusted)


SOUND = Node()


class Nodes(Value):
    """What is known of the run's nodes, and the open questions about them."""

    by_name: Mapping[str, Node] = field(default_factory=dict)  # never modified; the others are SOUND
    passed: frozenset[str] = frozenset()  # nodes that have passed health.preflight since they were last left out
    leaf_of: Map[str, str] = Map()  # the leaf switch or block of each node, if Slurm has a topology
    asked: float = 0.0  # when Slurm was asked about the states of nodes last
    dialled: float = 0.0  # when silent nodes were dialled last
    unanswered: bool = False  # it has not answered, and groups that have failed wait for that

    def of(self, name: str) -> Node:
        return self.by_name.get(name, SOUND)

    def put(self, changed: Mapping[str, Node]) -> Nodes:
        """Return the nodes with these; one that is left out must pass its check again."""
        known = {name: node for name, node in {**self.by_name, **changed}.items() if node != SOUND}
        out = self.passed.intersection(name for name, node in changed.items() if node.out)
        return replace(self, by_name=known, passed=self.passed - out)

    def those(self, wanted: Callable[[Node], object]) -> frozenset[str]:
        """Return the nodes of which this is true; it is not of a sound one."""
        return frozenset(name for name, node in self.by_name.items() if wanted(node))

    def out(self, *why: Out) -> frozenset[str]:
        """Return the nodes that are left out, for one of these reasons."""
        return self.those(lambda node: node.out in why) if why else self.those(lambda node: node.out)

    @property
    def unusable(self) -> frozenset[str]:
        """The nodes on which nothing is placed: left out and drained ones."""
        return self.those(lambda node: not node.usable)

    @property
    def last(self) -> frozenset[str]:
        """The nodes that are used only if no other is free."""
        return self.those(lambda node: node.shunned or node.noted)

    @property
    def drained(self) -> frozenset[str]:
        return self.those(lambda node: node.drained)

    @property
    def looks(self) -> dict[str, Look]:
        """The silent nodes, and the results of their probes."""
        return {name: node.look for name, node in self.by_name.items() if node.look is not None}


class Standstill(Value):
    """The tasks that stand still while others make progress; see health/hangs.py."""

    # The unit, task and time of the last move of those that another has passed -> since when that is known.
    overtaken: Mapping[tuple[str, int, float], float] = field(default_factory=dict)
    looked: float = 0.0  # when all groups were compared last
    longest_s: float = 0.0  # the longest time between two commits; see health/hangs.py
    seen: int = 0  # such times
    learnt: float = -inf  # when the last one was added
    told_s: float = 0.0  # the limit inside a step that the journal has


class Reached(Value):
    """The last round in which nodes have dialled each other; see health/partition.py."""

    number: int = 0
    asked: float = -inf
    repeats: bool = False  # only one of two nodes has not reached the other in the round before
    next: float = 0.0  # when to look whether groups stand still


class Compared(Value):
    """The digests of one rank of each group after a step; see health/divergence.py."""

    step: int
    digests: Map[tuple[str, int], tuple[str, int, str]] = Map()  # (unit, attempt) -> digest, task, digest of buffers
    differs: bool = False  # they are not all equal


class Comparisons(Value):
    """The comparisons of the groups."""

    steps: Map[int, tuple[Compared, ...]] = Map()  # of each rank, those that were reported last
    equal: Map[int, int] = Map()  # of each rank, the last step after which it was equal in all groups
    told: frozenset[tuple[str, int]] = frozenset()  # attempts that differ without a majority, as people know
    rank: int = 0  # the rank in which they do
    buffers: bool = False  # groups with equal weights had different buffers, as people know
