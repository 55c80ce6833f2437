"""Simulates the failures of a large training run and where its GPU time goes. Pure: no clock, no files, seeded.

The model. A run has replica groups of several nodes. Failures come at random moments (a Poisson process over all
GPUs), hit a random group, and are the same for every strategy that is compared (`failures`). A group that fails is
absent until it has nodes, is started and has joined. The other groups train on: they lose the step that the failure
spoiled, and they pause twice, when the group leaves and when it joins. If no group is left, the work since the last
checkpoint is lost. A strategy that restarts the whole job is the same model with one single group.

What is left out: spare nodes do not fail, a pause does not depend on the number of groups, a checkpoint costs the same
always, a failure while a group starts begins its start again, and the queue of Slurm is a fixed time (`again_s`).

Time is in seconds, except where a name ends in _h; amounts of work are in seconds of one whole run (all its groups).
"""

from __future__ import annotations

import enum
import heapq
import itertools
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


class Kind(enum.Enum):
    """What a failure breaks."""

    PROCESS = "process"  # a process ends; its node is fine
    DEVICE = "device"  # a process ends, and its node needs repair
    NODE = "node"  # a node falls silent, and needs repair


class Loss(enum.Enum):
    """Why GPU time was lost."""

    RESTARTING = "groups that restart"
    NO_NODE = "groups without a node"
    PAUSED = "pause of the others: a group leaves"
    JOINING = "pause of the others: a group joins"
    SPOILED = "the step that a failure spoils"
    UNDONE = "work since the checkpoint"
    CHECKPOINT = "writing checkpoints"


@dataclass(frozen=True)
class Failure:
    """One failure: when, in which group, of what kind, and how long the repair of the node takes."""

    at: float
    victim: float  # from 0 to 1: the group's place among all
    kind: Kind
    repair_s: float


@dataclass(frozen=True)
class Scene:
    """The cluster, the training and the failures, which are the same for all strategies."""

    groups: int
    nodes: int  # per group
    gpus: int  # per node
    gpu_mttf_h: float  # mean time between failures of one GPU with its share of the node and the software
    process_share: float = 0.22
    node_share: float = 0.20
    repair_h: float = 24.0  # mean; exponential
    spare_nodes: int = 32
    step_s: float = 10.0
    checkpoint_every_s: float = 1800.0
    checkpoint_cost_s: float = 0.0  # the pause for each checkpoint
    days: float = 30.0

    @property
    def all_gpus(self) -> int:
        return self.groups * self.nodes * self.gpus

    @property
    def seconds(self) -> float:
        return self.days * DAY_S

    @property
    def failures_per_s(self) -> float:
        return self.all_gpus / (self.gpu_mttf_h * HOUR_S)


@dataclass(frozen=True)
class Strategy:
    """How a failure is answered, and how long each part takes."""

    name: str
    detect_s: float  # until the end of a process is noticed
    detect_node_s: float  # until a silent node is given up
    again_s: float  # from there to the start of new processes: polling, queue, requeue delay
    start_s: float  # imports and set-up, to the first step
    pause_s: float  # the others wait so long when a process ends, beyond the spoiled step
    pause_node_s: float  # the same when a node falls silent
    join_s: float  # all wait so long when a group joins: reconfiguration, transfer of the state
    restore_s: float = 0.0  # more time to start when the state comes from a checkpoint
    standbys: int = 0
    warm_s: float = 0.0  # from the notice to the first step with a standby
    whole_job: bool = False


@dataclass(frozen=True)
class Outcome:
    """Where the time of one simulated run went. `kept` and `lost` are shares of all GPU time; together they are 1."""

    kept: float
    lost: dict[Loss, float]
    participation: float  # mean share of groups that take part, while the run takes steps
    failures: int
    reverted: int  # how often the run went back to a checkpoint
    standbys_taken: int


def failures(scene: Scene, seed: int) -> Iterator[Failure]:
    """Yield the failures of one run, in order of time."""
    source = random.Random(seed)  # noqa: S311
    at = 0.0
    while (at := at + source.expovariate(scene.failures_per_s)) < scene.seconds:
        victim, draw = source.random(), source.random()
        kind = Kind.PROCESS if draw < scene.process_share else Kind.DEVICE
        if draw >= 1.0 - scene.node_share:
            kind = Kind.NODE
        yield Failure(at, victim, kind, source.expovariate(1.0 / (scene.repair_h * HOUR_S)))


def simulate(scene: Scene, strategy: Strategy, trace: Sequence[Failure]) -> Outcome:
    """Return where the time of a run goes that meets these failures with this strategy."""
    run = _Run(scene, strategy)
    for failure in trace:
        run.pass_time(failure.at)
        run.fail(failure)
    run.pass_time(scene.seconds)
    return run.outcome(len(trace))


@dataclass
class _Group:
    up: bool = True
    missing: int = 0  # nodes
    waiting: bool = False  # for nodes
    epoch: int = 0  # an event of an earlier epoch is void


@dataclass
class _Run:
    scene: Scene
    strategy: Strategy
    now: float = 0.0
    kept: float = 0.0
    trained: float = 0.0  # time in which at least one group took steps
    since_checkpoint: float = 0.0  # time of training since the last checkpoint
    unsaved: float = 0.0  # work since the last checkpoint
    reverted: int = 0
    taken: int = 0
    events: list[tuple[float, int, str, int, int]] = field(default_factory=list)  # time, number, what, group, epoch
    pauses: dict[Loss, float] = field(default_factory=dict)  # what is left of each
    ledger: dict[Loss, float] = field(default_factory=lambda: dict.fromkeys(Loss, 0.0))
    queue: deque[int] = field(default_factory=deque)  # groups that wait for nodes
    number: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        scene = self.scene
        whole = self.strategy.whole_job
        self.count = 1 if whole else scene.groups
        self.nodes = scene.groups * scene.nodes if whole else scene.nodes
        self.groups = [_Group() for _ in range(self.count)]
        self.up = self.count
        self.no_node = 0
        self.standbys = min(self.strategy.standbys, scene.spare_nodes // self.nodes)
        self.free = scene.spare_nodes - self.standbys * self.nodes
        self.warming = 0
        self.ready = self.standbys

    # --- time ---------------------------------------------------------------------------------------------------------

    def pass_time(self, to: float) -> None:
        while self.events and self.events[0][0] <= to:
            at, _, what, group, epoch = heapq.heappop(self.events)
            self._pass(at)
            if what == "repaired":
                self._got_nodes(1)
            elif what == "warm":
                self.warming -= 1
                self.ready += 1
                self._serve()
            elif self.groups[group].epoch == epoch:
                self._joined(group)
        self._pass(to)

    def _pass(self, to: float) -> None:
        """Account for the time until `to`, in which no group fails or joins."""
        span, self.now = to - self.now, to
        share = self.up / self.count
        self.ledger[Loss.NO_NODE] += span * self.no_node / self.count
        self.ledger[Loss.RESTARTING] += span * (self.count - self.up - self.no_node) / self.count
        if not self.up:
            self.pauses.clear()
            return
        for cause in list(self.pauses):
            part = min(span, self.pauses[cause])
            self.ledger[cause] += part * share
            self.pauses[cause] -= part
            span -= part
            if self.pauses[cause] <= 0.0:
                del self.pauses[cause]
        self._train(span, share)

    def _train(self, span: float, share: float) -> None:
        """Train for a span with a share of the groups: steps, and the pauses for checkpoints spread over them."""
        every, cost = self.scene.checkpoint_every_s, self.scene.checkpoint_cost_s
        writing = span * cost / (every + cost)
        self.ledger[Loss.CHECKPOINT] += writing * share
        span -= writing
        self.trained += span
        self.kept += span * share
        self.since_checkpoint += span
        if self.since_checkpoint >= every:
            self.since_checkpoint %= every
            self.unsaved = min(self.since_checkpoint, span) * share
        else:
            self.unsaved += span * share

    # --- failures -----------------------------------------------------------------------------------------------------

    def fail(self, failure: Failure) -> None:
        scene, strategy = self.scene, self.strategy
        number = min(int(failure.victim * self.count), self.count - 1)
        group = self.groups[number]
        silent = failure.kind is Kind.NODE
        detect = strategy.detect_node_s if silent else strategy.detect_s
        if failure.kind is not Kind.PROCESS:
            if group.missing == self.nodes:
                return  # it has no node that could fail
            group.missing += 1
            self._later(detect + failure.repair_s, "repaired")
        if group.up:
            group.up = False
            self.up -= 1
            self._pause(strategy.pause_node_s if silent else strategy.pause_s, Loss.PAUSED)
            self._pause(scene.step_s, Loss.SPOILED)
            if not self.up:
                self._revert()
        elif group.waiting:
            return
        group.epoch += 1
        self._restart(number, detect)

    def _revert(self) -> None:
        self.reverted += 1
        self.kept -= self.unsaved
        self.ledger[Loss.UNDONE] += self.unsaved
        self.unsaved = self.since_checkpoint = 0.0

    def _pause(self, seconds: float, cause: Loss) -> None:
        """Let the groups that are up wait. A second failure during a pause does not add to it."""
        if self.up and seconds > 0.0:
            self.pauses[cause] = max(self.pauses.get(cause, 0.0), seconds)

    def _restart(self, number: int, detect: float) -> None:
        """Give a group a standby or the nodes that it needs, and start it; or let it wait for nodes."""
        group, strategy = self.groups[number], self.strategy
        if self.ready:
            self.ready -= 1
            self.taken += 1
            left, group.missing = self.nodes - group.missing, 0
            delay = detect + strategy.warm_s
        elif self.free >= group.missing:
            self.free -= group.missing
            left, group.missing = 0, 0
            delay = detect + strategy.again_s + strategy.start_s
        else:
            self._wait(number)
            return
        if group.waiting:
            group.waiting = False
            self.no_node -= 1
        self._later(delay + (strategy.restore_s if not self.up else 0.0), "joined", number, group.epoch)
        self._got_nodes(left)

    def _wait(self, number: int) -> None:
        if not self.groups[number].waiting:
            self.groups[number].waiting = True
            self.no_node += 1
            self.queue.append(number)

    def _joined(self, number: int) -> None:
        self.groups[number].up = True
        self.up += 1
        if self.up > 1:
            self._pause(self.strategy.join_s, Loss.JOINING)

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _got_nodes(self, count: int) -> None:
        self.free += count
        self._serve()

    def _serve(self) -> None:
        """Start groups that wait, in their order; then start standbys on the nodes that are left."""
        while self.queue and (self.ready or self.free >= self.groups[self.queue[0]].missing):
            self._restart(self.queue.popleft(), 0.0)
        while not self.queue and self.ready + self.warming < self.standbys and self.free >= self.nodes:
            self.free -= self.nodes
            self.warming += 1
            self._later(self.strategy.start_s, "warm")

    def _later(self, delay: float, what: str, group: int = 0, epoch: int = 0) -> None:
        heapq.heappush(self.events, (self.now + delay, next(self.number), what, group, epoch))

    def outcome(self, failed: int) -> Outcome:
        whole = self.scene.seconds
        lost = {cause: amount / whole for cause, amount in self.ledger.items()}
        part = (self.kept + self.ledger[Loss.UNDONE]) / self.trained if self.trained else 0.0
        return Outcome(self.kept / whole, lost, part, failed, self.reverted, self.taken)
