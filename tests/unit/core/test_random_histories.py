"""The state machine against a world of dice: whatever happens in whatever order, some things never do.

The world starts steps when it is told to, lets them live, fail, hang, lose their node or finish, is slow to die, and
repeats old words. The controller's clock is sometimes late. Every history ends with a stop at the latest, and then
everything has to come to its end.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter

import pytest
from history import Story

from ftslurm.config import Config, KillFault, nodes_needed
from ftslurm.core.decide import FINISH_TOGETHER_S, begin, deadline
from ftslurm.core.model import (
    LIVE,
    Action,
    Allocation,
    Announce,
    Assign,
    Begin,
    Ended,
    Event,
    Evict,
    Evidence,
    Finish,
    Granted,
    Hello,
    Inject,
    Kill,
    Launch,
    LighthouseUp,
    Phase,
    Progressed,
    Ready,
    StepId,
    Stop,
    StopAsked,
    StoreUp,
    TaskDone,
    TaskFailed,
)

BLOCKS, HISTORIES = 10, 30  # of histories, and how many each has


class World:
    """Everything outside the state machine."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.config = config = Config()
        groups = config.groups
        groups.count, groups.nodes, groups.workers = dice.randint(1, 4), dice.randint(1, 2), dice.randint(1, 2)
        groups.min, groups.per_node = dice.randint(1, groups.count), dice.randint(1, groups.count)
        config.restart.max_per_group = dice.randint(0, 4)
        config.restart.policy = dice.choice(["on_failure"] * 4 + ["never"])
        config.restart.on_state_loss = dice.choice(["fail", "checkpoint"])
        config.cluster.spare_nodes = dice.randint(0, 2)
        config.health.start_timeout_s = 8.0
        config.stop.grace_s = dice.choice([0.0, 2.0])
        config.lighthouse.kind = dice.choice(["torchft", "ftslurm"])
        config.faults.kill = [KillFault(group=0, at=5.0)] * dice.randint(0, 1)
        self.misfortune = dice.choice([0.0, 0.2, 0.6])
        self.allocation = Allocation("7", tuple(f"n{i}" for i in range(max(1, nodes_needed(config)))))
        self.step = 0  # the training's
        self.live: set[StepId] = set()
        self.launched: dict[StepId, float] = {}
        self.attempts: Counter[str] = Counter()
        self.dying: set[StepId] = set()
        self.coming: list[tuple[float, int, Event]] = []
        self.numbers = itertools.count()
        self.later(0.0, Granted(self.allocation))
        self.later(dice.uniform(0, 60), StopAsked("enough", "ann"))
        if dice.random() < self.misfortune:
            self.node_dies(dice.uniform(0, 40))

    def later(self, time: float, event: Event) -> None:
        heapq.heappush(self.coming, (time, next(self.numbers), event))

    def until(self, now: float) -> list[Event]:
        """What has happened by then."""
        events = []
        while self.coming and self.coming[0][0] <= now:
            events.append(heapq.heappop(self.coming)[2])
            if isinstance(events[-1], Ended):
                self.live.remove(events[-1].id)
        return events

    def chance(self) -> bool:
        return self.dice.random() < self.misfortune

    def node_dies(self, time: float) -> None:
        node = self.dice.choice(self.allocation.nodes)
        for attempt, group in itertools.product(range(4), range(self.config.groups.count)):
            step = StepId(f"group-{group:04d}", attempt)
            self.later(time + attempt * 5, TaskFailed(step, Evidence(None, node, node_lost=True)))

    def ends(self, now: float, step: StepId, code: int = 137, slow: float = 0.5) -> None:
        """A step's processes end soon; what was under way may still arrive, some of it after its end."""
        if step not in self.dying:
            self.dying.add(step)
            self.later(now + self.dice.uniform(0.01, slow), Ended(step, code, checkpoint=self.dice.random() < 0.5))

    def fails(self, now: float, step: StepId) -> None:
        errors = ["ValueError: x", f"ValueError: {self.dice.random()}"]
        failed = Evidence(0, None, code=1, error=self.dice.choice(errors), started=self.dice.random() < 0.5)
        signs = [failed, Evidence(0, None, signal=9), Evidence(1, None, out_of_memory=True)]
        for sign in self.dice.sample(signs, self.dice.randint(0, 2)):
            self.later(now + self.dice.uniform(0, 0.2), TaskFailed(step, sign))
        if self.dice.random() < 0.7:
            self.ends(now + 0.1, step, slow=7.0)
        else:
            self.later(now, TaskFailed(step, failed))  # and hangs until it is killed

    def obey(self, now: float, action: Action) -> None:
        match action:
            case Launch():
                self.live.add(action.id)
                self.launched[action.id] = now
                self.attempts[action.id.unit] += 1
                self.starts(now, action)
            case Assign():
                if self.chance():
                    self.fails(now, action.id)
                else:
                    self.later(now + self.dice.uniform(0.1, 1), StoreUp(action.id, "n0", 29500))
            case Begin():
                self.trains(now, action.id)
            case Kill():
                if self.dice.random() < 0.8:  # the first one does not always help
                    self.ends(now, action.id)
            case Stop():
                if self.dice.random() < 0.6:
                    self.ends(now, action.id, code=self.dice.choice([0, 143]), slow=4.0)
            case Inject():
                self.later(now + 0.05, TaskFailed(action.id, Evidence(action.task, None, signal=9)))

    def starts(self, now: float, launch: Launch) -> None:
        lot = self.dice.random()
        if lot < self.misfortune / 4:
            return  # hangs
        if lot < self.misfortune / 2:
            self.fails(now, launch.id)
            return
        if launch.group is None:
            self.later(now + self.dice.uniform(0.1, 9), LighthouseUp(launch.id, "http://n0:1"))
            if self.chance():
                self.fails(now + self.dice.uniform(1, 20), launch.id)
            return
        hosts = [node for node in launch.place.nodes for _ in range(self.config.groups.workers)]
        for task, host in enumerate(self.dice.sample(hosts, len(hosts))):
            time = now + self.dice.uniform(0.1, 2)
            self.later(time, Hello(launch.id, task, host))
            self.later(time + self.dice.uniform(0, 2), Ready(launch.id, task))

    def trains(self, now: float, step: StepId) -> None:
        time = now
        for committed in range(self.dice.randint(1, 10)):
            time += self.dice.uniform(0.1, 3)
            self.step += 1
            self.later(time, Progressed(step, self.step, 1, 1, committed, 0))
        if self.chance():
            self.fails(time - self.dice.uniform(0, 2), step)
        elif self.dice.random() < 0.7:
            for task in range(self.config.groups.nodes * self.config.groups.workers):
                self.later(time, TaskDone(step, task))
            self.ends(time, step, code=0)


def check_action(story: Story, world: World, action: Action) -> None:
    """What must hold of everything that is done."""
    state, config = story.state, story.config
    match action:
        case Launch():
            assert state.ending is None
            assert action.id.unit not in {step.unit for step in world.live}, f"two live steps of {action.id.unit}"
            assert action.id.attempt == world.attempts[action.id.unit]
            assert set(action.place.nodes) <= set(world.allocation.nodes)
            assert action.group is None or not set(action.place.nodes) & state.avoid
        case Assign() | Begin():
            assert state.ending is None, f"somebody begins though the run is ending: {action}"
            assert action.id in world.live
            assert len(story.times(type(action), action.id)) == 1
        case Kill() | Stop():
            late = story.now >= world.launched[action.id] + config.health.start_timeout_s
            ends = [unit.exits[-1].time for unit in state.groups if unit.phase is Phase.SUCCEEDED]
            over = bool(ends) and story.now >= min(ends) + FINISH_TOGETHER_S
            lost = state.lost is not None and action.id.unit != "lighthouse"
            why = state.ending or story.unit(action.id).evidence or late or over or lost
            assert why, f"killed for nothing: {action}"
        case Announce():
            assert StepId(f"group-{action.group:04d}", action.attempt) in world.live
            assert action.id in world.live
        case Evict():
            assert config.lighthouse.kind == "ftslurm"
            unit = state.groups[action.group]
            over = unit.attempt > action.attempt or unit.phase not in (Phase.STARTING, Phase.RUNNING)
            assert over, f"evicted alive: {action}"
        case Finish():
            assert not world.live


def check_state(story: Story, world: World, doomed: set[StepId]) -> None:
    """What must hold after every decision."""
    for unit in story.state.units:
        assert (unit.phase in LIVE) == (unit.id in world.live)
        assert unit.phase is not Phase.RUNNING or unit.id not in doomed, f"back from the dead: {unit.id}"
        if unit.phase is Phase.STOPPING:
            doomed.add(unit.id)
    places = [unit.place for unit in story.state.groups if unit.phase in LIVE and unit.place is not None]
    shares = [(node, place.slot) for place in places for node in place.nodes]
    assert len(set(shares)) == len(shares) == len(places) * story.config.groups.nodes, f"two in one place: {places}"
    assert all(place.slot < story.config.groups.per_node for place in places)


def live_through(seed: int) -> Story:
    world = World(seed)
    story = Story(world.config, begin(world.config))
    doomed: set[StepId] = set()
    for _ in range(1000):
        times = [event[0] for event in world.coming[:1]]
        if (due := deadline(story.state, story.now)) is not None:
            times.append(due)
        assert times, "nothing will ever happen again"
        now = max(story.now, min(times)) + world.dice.choice([0.0, 0.0, 0.0, 0.7])  # the controller is sometimes late
        actions = story.turn(now, world.until(now))
        for action in actions:
            check_action(story, world, action)
            world.obey(now, action)
        check_state(story, world, doomed)
        if story.state.finished:
            return story
    raise AssertionError("no end in sight")


@pytest.mark.parametrize("block", range(BLOCKS))
def test_whatever_happens_in_whatever_order(block: int) -> None:
    for seed in range(block * HISTORIES, (block + 1) * HISTORIES):
        try:
            story = live_through(seed)
            assert [record["outcome"] for record in story.records("run_finished")] == [story.outcome()]
            assert [type(action) for _, action in story.done].count(Finish) == 1
        except Exception as error:
            raise AssertionError(f"live_through({seed}): {error!r}") from error
