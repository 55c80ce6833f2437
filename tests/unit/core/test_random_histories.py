"""The state machine in a random world: its invariants hold for all events in all orders.

The world starts the steps that are launched, lets them train, fail, hang, fall silent, lose their node or finish; ends
them late, and repeats old messages. Nodes become unreachable; some come back, Slurm takes others away. The controller's
clock is sometimes late. Every history ends with a stop at the latest, after which all steps must end.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter, defaultdict
from math import inf

import histories
import pytest
import said
from fuzz import numbers
from histories import CHECKPOINT, FOREIGN, Story
from steps import ANN

from ftslurm.config.schema import Fault, nodes_needed
from ftslurm.core.groups.finishing import TOGETHER_S
from ftslurm.core.groups.launching import over_from
from ftslurm.core.rules import begin
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import LIVE, SLURM, Allocation, Evidence, Phase, RunOutcome, StepId, Unit
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.units import tasks_of
from ftslurm.protocol import messages as msg
from ftslurm.protocol import records
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.stages import Stage
from ftslurm.slurm.evidence import node_fate

ENDS = ("run_finished", "run_requeued")
HISTORIES = 15  # in each block
BLOCKS = numbers(5, 20)


class World:
    """The world outside the state machine."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.config = config = histories.config()
        config.cluster.kind = "slurm"
        groups = config.groups
        groups.count, groups.nodes, groups.workers = dice.randint(1, 4), dice.randint(1, 2), dice.randint(1, 2)
        groups.min, groups.per_node = dice.randint(1, groups.count), dice.randint(1, groups.count)
        config.restart.max_per_group = dice.randint(0, 4) * dice.choice([1, 1, 1, 1, 0])
        config.restart.on_state_loss = dice.choice(["fail", "checkpoint"])
        config.cluster.spare_nodes = dice.randint(0, 2)
        config.health.start_timeout_s = 8.0
        config.stop.grace_s = dice.choice([0.0, 2.0])
        config.lighthouse.kind = dice.choice(["torchft", "ftslurm", "none"])
        config.faults.plan = [Fault(group=0, at=5.0)] * dice.randint(0, 1)
        self.checker = random.Random(f"checks {seed}")
        config.health.preflight = self.checker.choice([[], [], [["check"]]])
        config.standby.count, config.groups.bind = dice.choice([0, 1, 2]), dice.choice(["auto", "none"])
        config.heartbeat_s = 1.0
        config.health.lost_after_s, config.orphan_after_s = dice.choice([(math.inf, math.inf), (4.0, 12.0)])
        config.health.hang_after_s = dice.choice([0.0, 3.0])
        if random.Random(seed).random() < 0.3:
            config.health.hang_after_s, config.hang_least_s = "auto", 2.0
        config.restart.backoff_s = dice.choice([1.0, 0.0])
        config.join_timeout_s = dice.choice([math.inf, 20.0])
        if config.lighthouse.kind == "none" and groups.min < groups.count and dice.random() < 0.7:
            groups.roles, groups.serve = {"server": 1, "worker": groups.count - 1}, ["server"]
        self.misfortune = dice.choice([0.0, 0.2, 0.6])
        self.allocation = Allocation("7", tuple(f"n{i}" for i in range(max(1, nodes_needed(config)))))
        self.step = 0  # of the training
        self.live: set[StepId] = set()
        self.launched: dict[StepId, float] = {}
        self.dying: set[StepId] = set()
        self.hosts: dict[StepId, list[str]] = {}  # of steps that have sent hello
        self.states: dict[StepId, str] = {}  # S: moves on; T: a rank is stopped; H: hangs
        self.stood: dict[StepId, float] = {}  # time since which it makes no progress
        self.mute: set[StepId] = set()
        self.dark: set[str] = set()  # unreachable nodes
        self.gone: set[str] = set()  # nodes that the job has lost
        self.struck: set[str] = set()  # nodes that ever had a fault
        self.unfit: set[str] = set()  # nodes that have failed their check
        self.coming: list[tuple[float, int, ev.Event]] = []
        self.numbers = itertools.count()
        self.later(0.0, ev.Granted(self.allocation))
        self.later(dice.uniform(0, 60), ev.StopAsked("enough", ANN))
        self.warned = random.Random(seed)
        self.fates = random.Random(f"fates {seed}")
        if self.warned.random() < 0.5:
            left_s = self.warned.choice([0.0, 5.0, 30.0])
            self.later(self.warned.uniform(0, 60), ev.JobEnds("the job ends", SLURM, Cause.TIME_LIMIT, left_s))
        self.wishes = random.Random(seed)
        for _ in range(self.wishes.choice([0, 0, 1, 4])):
            group, rank = self.wishes.randint(0, groups.count), self.wishes.choice([None, 0, 1])
            self.later(self.wishes.uniform(0, 60), ev.Asked("restart", ANN, "c1", group, rank))
        for _ in range(self.wishes.choice([0, 0, 1, 4])):
            self.later(self.wishes.uniform(0, 60), ev.Asked("save", ANN, "c3"))
        for _ in range(self.wishes.choice([0, 0, 1, 4])):
            node, what = self.wishes.choice(self.allocation.nodes), self.wishes.choice(["drain", "undrain"])
            self.later(self.wishes.uniform(0, 60), ev.Asked(what, ANN, "c2", node=node))
        if dice.random() < self.misfortune:
            self.node_dies(dice.uniform(0, 40))
        self.nets = nets = random.Random(f"nets {seed}")
        self.apart: tuple[float, float, frozenset[str]] | None = None  # from when to when which two nodes are apart
        if len(self.allocation.nodes) > 1 and config.health.hang_after_s == 0.0 and nets.random() < 0.7:
            begins, pair = nets.uniform(2, 40), nets.sample(self.allocation.nodes, 2)
            self.apart = begins, begins + nets.choice([3.0, 15.0, 60.0]), frozenset(pair)
            self.struck |= {*pair}
            config.health.hang_after_s = 1000.0
        self.darkness = sorted(dice.uniform(0, 60) for _ in range(dice.choice([0, 0, 1, 2])))

    def later(self, time: float, event: ev.Event) -> None:
        heapq.heappush(self.coming, (time, next(self.numbers), event))

    def until(self, now: float) -> list[ev.Event]:
        """Return the events until then, with a heartbeat of every reachable step."""
        self.nodes_change(now)
        events: list[ev.Event] = []
        for step in sorted(self.live & self.hosts.keys() - self.mute, key=str):
            events += self.signs_of_life(now, step)
        while self.coming and self.coming[0][0] <= now:
            events.append(heapq.heappop(self.coming)[2])
            if isinstance(events[-1], ev.Ended):
                self.live.remove(events[-1].id)
        return events

    def signs_of_life(self, now: float, step: StepId) -> list[ev.Event]:
        state, moved = self.states.get(step, "S"), self.stood.get(step, now - self.dice.uniform(0, 0.5))
        if (
            self.apart is not None
            and self.apart[0] <= now < self.apart[1]
            and state == "S"
            and step.unit != "lighthouse"
        ):
            place = now, "S", 1, Stage.COLLECTIVE, now - self.apart[0]
            return [ev.Alive(step, t, *place) for t, host in enumerate(self.hosts[step]) if host not in self.dark]
        letter = "T" if state == "T" else "S"
        stage = Stage.COMPUTING if state in "TH" else self.dice.choice([*Stage])
        number = None if step.unit == "lighthouse" else self.step if state == "S" else 1
        return [
            ev.Alive(step, task, now, letter, number, stage, now - moved)
            for task, host in enumerate(self.hosts[step])
            if host not in self.dark
        ]

    def nodes_change(self, now: float) -> None:
        while self.darkness and self.darkness[0] <= now:
            del self.darkness[0]
            node = self.dice.choice(self.allocation.nodes[1:] or self.allocation.nodes)
            self.dark.add(node)
            self.struck.add(node)
            if self.dice.random() < 0.3:
                self.gone.add(node)
        for node in [node for node in self.dark if self.dice.random() < 0.02 and node not in self.gone]:
            self.dark.remove(node)

    def looks(self, now: float, node: str) -> None:
        """Schedule the answers of a probe and of the question to Slurm with it; slurmctld may be away."""
        if self.dice.random() < 0.9:
            left = tuple(name for name in self.allocation.nodes if name not in self.gone)
            self.struck |= self.gone
            self.later(now + self.dice.uniform(0.05, 1), ev.NodesLeft(left))
        there = [step for step in sorted(self.live, key=str) if node in self.hosts.get(step, ())]
        letters = tuple((f"{s.unit}/{s.attempt}", self.states.get(s, "S").replace("H", "R")) for s in there)
        if node not in self.dark:
            self.later(
                now + self.dice.uniform(0.1, 1), ev.Looked(node, True, self.dice.choice([letters, letters, None]))
            )
        elif self.dice.random() < 0.5:
            self.later(now + self.dice.uniform(0.1, 3), ev.Looked(node, False))

    def checks(self, launch: act.Launch, task: int, node: str, time: float) -> float:
        """Schedule the result of a node's check, which may come twice; return when the worker goes on, if it does."""
        dice, config = self.checker, self.config
        assert bool(launch.check) <= bool(config.health.preflight)
        if node not in launch.check or task != self.hosts[launch.id].index(node):
            return time
        time += dice.uniform(0.1, 5)
        if node in self.dark or dice.random() < 0.05:
            return inf
        error = dice.choice([None] * 9 + ["bad GPU"])
        if error is not None:
            self.unfit.add(node)
        for _ in range(dice.choice([1, 1, 2])):
            self.later(time, said.node_checked(launch.id, node, error, task))
        if error is not None:
            self.later(time + dice.uniform(0, 0.2), ev.TaskFailed(launch.id, Evidence(task, node, code=1)))
        return time if error is None else inf

    def chance(self) -> bool:
        return self.dice.random() < self.misfortune

    def node_dies(self, time: float) -> None:
        node = self.dice.choice(self.allocation.nodes)
        self.struck.add(node)
        units = [f"group-{group:04d}" for group in range(self.config.groups.count)] + ["standby-000"]
        for attempt, unit in itertools.product(range(4), units):
            step = StepId(unit, attempt)
            self.later(time + attempt * 5, ev.TaskFailed(step, Evidence(None, node, node_lost=True)))

    def ends(self, now: float, step: StepId, code: int = 137, slow: float = 0.5) -> None:
        """End a step's processes soon; messages under way may still arrive, some after the end."""
        if step not in self.dying:
            self.dying.add(step)
            self.later(
                now + self.dice.uniform(0.01, slow),
                ev.Ended(step, code, checkpoint=self.dice.choice([None, FOREIGN, CHECKPOINT])),
            )

    def fails(self, now: float, step: StepId) -> None:
        errors = ["ValueError: x", f"ValueError: {self.dice.random()}"]
        failed = Evidence(0, None, code=1, error=self.dice.choice(errors), started=self.dice.random() < 0.5)
        signs = [failed, Evidence(0, None, signal=9), Evidence(1, None, out_of_memory=True)]
        for sign in self.dice.sample(signs, self.dice.randint(0, 2)):
            self.later(now + self.dice.uniform(0, 0.2), ev.TaskFailed(step, sign))
        if self.dice.random() < 0.7:
            self.ends(now + 0.1, step, slow=7.0)
        else:
            self.later(now, ev.TaskFailed(step, failed))  # and hangs until it is killed

    def asked(self, now: float, node: str) -> None:
        if self.fates.random() < 0.8:  # slurmctld may be away
            down = node in self.dark | self.gone and self.fates.random() < 0.5
            self.struck |= {node} if down else set()
            state = "down" if down else self.fates.choice(["idle", "mixed", "mixed+drain", "quux"])
            self.later(now + self.fates.uniform(0.05, 1), node_fate(node, state))

    def obey(self, now: float, action: act.Action) -> None:
        match action:
            case act.Launch():
                self.live.add(action.id)
                self.launched[action.id] = now
                self.starts(now, action)
            case act.Probe():
                self.looks(now, action.node)
            case act.Dial(nodes):
                dialled = random.Random(f"dialled {now} {nodes}")
                silent = tuple(node for node in nodes if node in self.dark and dialled.random() < 0.8)
                for node in silent:
                    self.later(now + dialled.uniform(0.1, 3), ev.Looked(node, False, silent=True))
                for step in (step for step in self.live if {*silent} & {*self.hosts.get(step, ())}):
                    group = step.unit.removeprefix("group-")
                    if group.isdigit() and dialled.random() < 0.8:
                        aside = msg.GroupAside(int(group), step.attempt, True, 3.0)
                        self.later(now + dialled.uniform(0, 2), ev.Heard(StepId("lighthouse", 0), aside))
            case act.Send(message=msg.Reach(number, nodes)) if self.nets.random() < 0.95:
                time, here = now + self.nets.choice([0.1, 1.6, 4.0]), self.hosts[action.id][0]
                pair = frozenset() if self.apart is None or time > self.apart[1] else self.apart[2]
                silent = tuple(node for node in nodes if frozenset((node, here)) == pair or node in self.dark)
                self.later(time, ev.Heard(action.id, msg.Unreached(number, silent)))
            case act.AskNodes(nodes):
                for node in nodes:
                    self.asked(now, node)
            case act.Send(message=msg.Save()) if self.warned.random() < 0.7:
                error = self.warned.choice([None, None, "OSError: disk full"])
                step, after = self.step + self.warned.randint(0, 2), self.warned.uniform(0, 3)
                self.later(now + after, said.checkpointed(action.id, step, CHECKPOINT.path, 0.1, error))
            case act.Send(message=msg.Dump()):
                for task in range(self.dice.randint(0, 4)):
                    self.later(now + self.dice.uniform(0, 2), said.dumped(action.id, task))
            case act.Assign():
                if self.chance():
                    self.fails(now, action.id)
                else:
                    self.later(now + self.dice.uniform(0.1, 1), said.store_up(action.id, "n0", 29500))
            case act.Send(message=msg.Begin()):
                if self.wishes.random() < 0.5:
                    self.later(now, said.can_save(action.id))
                self.trains(now, action.id)
            case act.Kill():
                if self.dice.random() < 0.8:  # the first one does not always help
                    self.ends(now, action.id)
            case act.Send(message=msg.Stop()):
                if self.dice.random() < 0.6:
                    self.ends(now, action.id, code=self.dice.choice([0, 143]), slow=4.0)
            case act.Send(message=msg.Inject(task=task)):
                self.later(now + 0.05, ev.TaskFailed(action.id, Evidence(task, None, signal=9)))

    def starts(self, now: float, launch: act.Launch) -> None:
        lot = self.dice.random()
        if lot < self.misfortune / 4:
            return  # hangs
        if lot < self.misfortune / 2:
            self.fails(now, launch.id)
            return
        if launch.id.unit == "lighthouse":
            self.hosts[launch.id] = list(launch.place.nodes)
            self.later(now, said.hello(launch.id, 0, launch.place.nodes[0]))
            self.later(now + self.dice.uniform(0.1, 9), said.lighthouse_up(launch.id, "http://n0:1"))
            if self.chance():
                self.fails(now + self.dice.uniform(1, 20), launch.id)
            return
        hosts = [node for node in launch.place.nodes for _ in range(self.config.groups.workers)]
        hosts = self.dice.sample(hosts, len(hosts))
        self.hosts[launch.id] = hosts
        for task, host in enumerate(hosts):
            time = now + self.dice.uniform(0.1, 2)
            self.later(time, said.hello(launch.id, task, host))
            time = self.checks(launch, task, host, time) + self.dice.uniform(0, 2)
            if time < inf:
                self.later(time, said.ready(launch.id, task))

    def trains(self, now: float, step: StepId) -> None:
        time = now
        if self.config.lighthouse.kind == "none":
            self.later(now + self.dice.uniform(0, 2), said.serving(step, "http://n0:2"))
            self.later(now + self.dice.uniform(1, 9), said.served(step, self.dice.choice([0, 3, 7])))
            self.later(now + self.dice.uniform(0, 2), said.session_opened(step))
        for committed in range(self.dice.randint(1, 10)):
            time += self.dice.uniform(0.1, 3)
            self.step += 1
            self.later(time, said.progressed(step, self.step, 1, 1, committed, 0, self.warned.uniform(0.1, 3)))
        lot = self.dice.random()
        if lot < self.misfortune / 4:
            self.states[step], self.stood[step] = self.dice.choice("TH"), now
        elif lot < self.misfortune / 3:
            self.mute.add(step)
            self.states[step] = self.dice.choice("ST")
            self.struck |= set(self.hosts[step])  # a probe may miss existing processes
        elif self.chance():
            self.fails(time - self.dice.uniform(0, 2), step)
        elif self.dice.random() < 0.7:
            for task in range(self.config.groups.nodes * self.config.groups.workers):
                self.later(time, said.task_done(step, task))
            self.ends(time, step, code=0)


def check_action(story: Story, world: World, action: act.Action) -> None:
    """Check the invariants of an action."""
    state, config = story.state, story.config
    match action:
        case act.Launch():
            assert state.ending is None
            assert action.id not in world.launched, f"launched twice: {action.id}"
        case records.StepLaunched(unit=name, nodes=nodes) if name != "lighthouse":
            assert set(nodes) <= set(world.allocation.nodes)
            assert not set(nodes) & state.nodes.unusable
        case records.NodeCheckPassed(node=node) | records.NodeCheckFailed(node=node):
            assert (node in world.unfit) or isinstance(action, records.NodeCheckPassed)
        case act.Send(step, msg.Dump()):
            assert world.states.get(step, "S") != "S", f"no hang: {action}"
        case records.NodeExcluded(node=node, reason=reason) if "failed there" not in reason:
            assert node in world.struck | world.gone, f"a sound node: {action}"
        case act.Assign() | act.Send(message=msg.Begin()):
            assert state.ending is None, f"somebody begins though the run is ending: {action}"
            assert action.id in world.live
            kind = type(action.message) if isinstance(action, act.Send) else act.Assign
            assert len(story.times(kind, action.id)) == 1
        case act.Send(message=msg.Save()):
            assert state.ending is None
            assert action.id in world.live
            assert len([a for a in story.all(msg.Save) if a == action]) <= 1 + getattr(story, "replaced", 0)
        case act.Kill() | act.Send(message=msg.Stop()):
            late = story.now >= world.launched[action.id] + config.health.start_timeout_s
            ends = [unit.exits[-1].time for unit in state.groups if unit.phase is Phase.SUCCEEDED]
            over = bool(ends) and story.now >= min(ends) + TOGETHER_S
            lost = state.lineage.lost is not None and action.id.unit != "lighthouse"
            current = owner(story, action.id).current
            why = state.ending or current.evidence or current.recalled or late or over or lost
            assert why, f"killed for nothing: {action}"
        case act.Send(message=msg.Member(group, attempt)):
            assert state.groups[group].id in world.live
            assert state.groups[group].attempt == attempt
            assert action.id in world.live
        case act.Send(message=msg.Servers()):
            assert action.id in world.live
        case act.Send(message=msg.Evict(group, attempt)):
            assert config.lighthouse.kind == "ftslurm"
            unit = state.groups[group]
            over = unit.attempt > attempt or unit.phase not in (Phase.STARTING, Phase.RUNNING)
            left = len(unit.current.done) == len(unit.current.hosts)
            assert over or left, f"evicted alive: {action}"
        case act.Finish():
            assert not world.live


def owner(story: Story, step: StepId) -> Unit:
    return next(unit for unit in story.state.units if unit.id == step and unit.phase in LIVE)


def check_state(story: Story, world: World, doomed: set[StepId]) -> None:
    """Check the invariants of the state after a decision."""
    state = story.state
    owners = Counter(unit.id for unit in state.units if unit.phase in LIVE)
    held = Counter(late.id for late in state.held if isinstance(late, ev.Ended))  # ended, and the verdict waits
    assert owners == Counter(world.live) + held, f"a step that nobody owns, or a unit without its step: {owners}"
    for unit in state.units:
        assert unit.phase is not Phase.RUNNING or unit.id not in doomed, f"back from the dead: {unit.id}"
        if unit.phase is Phase.STOPPING:
            doomed.add(unit.id)
        if unit.group is not None and unit.phase is Phase.PENDING and state.allocation.name and not state.ending:
            reason = story.now < unit.due or unit.waits_for or state.lineage.lost or state.nodes.unanswered
            reason = reason or over_from(Turn(state, story.now, story.config))
            assert reason, f"forgotten: {unit}"
        assert len(unit.current.hosts) in (0, tasks_of(unit, story.config))
    places = [unit.place for unit in state.groups if unit.phase in LIVE]
    shares = [(node, place.slot) for place in places for node in place.nodes]
    assert len(set(shares)) == len(shares) == len(places) * story.config.groups.nodes, f"two in one place: {places}"
    assert all(place.slot < story.config.groups.per_node for place in places)


def live_through(seed: int) -> Story:
    world = World(seed)
    story = Story(world.config, begin(world.config))
    doomed: set[StepId] = set()
    for _ in range(3000):
        times = [story.state.wakes, *(event[0] for event in world.coming[:1])]
        assert min(times) < inf, "nothing will ever happen again"
        now = max(story.now, min(times)) + world.dice.choice([0.0, 0.0, 0.0, 0.7])  # the controller is sometimes late
        actions = story.turn(now, world.until(now))
        for action in actions:
            check_action(story, world, action)
            world.obey(now, action)
        check_state(story, world, doomed)
        if story.state.finished:
            return story
    raise AssertionError("no end in sight")


@pytest.mark.parametrize("block", BLOCKS)
def test_whatever_happens_in_whatever_order(block: int) -> None:
    for seed in range(block * HISTORIES, (block + 1) * HISTORIES):
        try:
            story = live_through(seed)
            ends = [record["outcome"] for name in ENDS for record in story.records(name)]
            assert ends == [story.outcome()]
            assert RunOutcome.GOES_ON not in ends
            assert [type(action) for _, action in story.done].count(act.Finish) == 1
            attempts: dict[str, list[int]] = defaultdict(list)
            for launched in story.records("step_launched"):
                attempts[launched["unit"]].append(launched["attempt"])
            assert all(each == list(range(len(each))) for each in attempts.values()), "a unit has skipped an attempt"
        except Exception as error:
            raise AssertionError(f"live_through({seed}): {error!r}") from error
