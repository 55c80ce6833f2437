"""Play histories against the core: moments (time, event, ...) in; the state and all actions out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, nextafter
from typing import Any

import said
from steps import A0, ANN, B0, LIGHT0, URL

from ftslurm.config.schema import Config
from ftslurm.controller.translate import classified
from ftslurm.core.groups.exits import last_failure
from ftslurm.core.rules import begin, decide
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state import kept
from ftslurm.core.state.model import ALL, Allocation, Evidence, Job, Phase, Saved, StepId, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.protocol import messages as msg
from ftslurm.protocol.records import JournalRecord

Moment = tuple[Any, ...]  # the time, then events and lists of events
Kind = type[act.Action] | type[msg.Message]  # of a message: that it is sent


class Timed(Config):
    """Settings whose derived time limits can be set one by one."""

    heartbeat_s = 2.0
    orphan_after_s = join_timeout_s = first_step_s = inf
    hang_least_s = 300.0
    quorum_timeout_s = 60.0
    poll_s = 15.0


def config(timed: Mapping[str, float] | None = None, **sections: dict[str, Any]) -> Timed:
    """Return the defaults with changes: config(groups={"count": 3}). Time limits on silence and starts are off."""
    made = Timed()
    made.health.lost_after_s = inf
    for section, settings in {**sections, "": timed or {}}.items():
        place = getattr(made, section) if section else made
        for key, value in settings.items():
            assert hasattr(place, key), f"no such setting: {section}.{key}"
            setattr(place, key, value)
    return made


def _defaults() -> Config:
    return config()


def with_units(state: RunState, *units: Unit) -> RunState:
    """Return the state with these units replaced by name, or added."""
    table = state.table
    for unit in units:
        table = table.put(unit)
    return awake(replace(state, table=table))


def awake(state: RunState) -> RunState:
    """Return the state in which every rule looks at every unit."""
    return replace(state, due={ALL: -inf})


def granted(nodes: int) -> ev.Granted:
    return ev.Granted(Allocation("7", tuple(f"n{i + 1}" for i in range(nodes))))


def pilot(name: str, *nodes: str, pool: int = 0, ends: float | None = None) -> Job:
    """Return a job that runs on these nodes, as Slurm shows it."""
    return Job(name, pool, "RUNNING", f"id-{name}", nodes, ends=ends)


def queued(name: str, reason: str = "", pool: int = 0) -> Job:
    """Return a job that waits in Slurm's queue."""
    return Job(name, pool, "PENDING", reason=reason)


def over(name: str, state: str, pool: int = 0) -> Job:
    """Return a job that is ending or has ended."""
    return Job(name, pool, state)


def group_of(step: StepId) -> int:
    return int(step.unit.removeprefix("group-"))


def ready(step: StepId, *hosts: str, torchft: str = "") -> list[ev.Event]:
    """Return hello and ready of every task; hosts[task] is its node."""
    hosts = hosts or (f"n{group_of(step) + 1}",)
    return [
        event
        for task, host in enumerate(hosts)
        for event in (said.hello(step, task, host), said.ready(step, task, torchft))
    ]


def store(step: StepId) -> ev.Event:
    return said.store_up(step, f"n{group_of(step) + 1}", 29500)


def stepped(step: StepId, number: int, committed: int = 1) -> ev.Event:
    return said.progressed(step, number, quorum_id=3, participants=2, committed=committed, aborted=0)


def killed(step: StepId, **ended: Any) -> list[ev.Event]:
    """Return the events of a rank killed by SIGKILL, whose step ends at once."""
    return [ev.TaskFailed(step, Evidence(0, None, signal=9)), ev.Ended(step, code=137, **ended)]


CHECKPOINT = Saved("/ckpt/step-00000005", 5)
FOREIGN = Saved("/ckpt", None)


def raised(step: StepId, error: str = "ValueError: x", started: bool = True, **ended: Any) -> list[ev.Event]:
    evidence = Evidence(0, None, code=1, error=error, started=started)
    return [ev.TaskFailed(step, evidence), ev.Ended(step, code=137, **ended)]


def node_lost(step: StepId, node: str, **ended: Any) -> list[ev.Event]:
    return [ev.TaskFailed(step, Evidence(None, node, node_lost=True)), ev.Ended(step, code=137, **ended)]


def finished(step: StepId) -> list[ev.Event]:
    return [said.task_done(step, 0), ev.Ended(step, code=0)]


def beats(until: Mapping[StepId, float], since: float = 2.0, every: float = 2.0, task: int = 0) -> list[Moment]:
    """Return heartbeats of one task of each step, until the step's time."""
    count = int((max(until.values()) - since) / every) + 1
    times = [since + n * every for n in range(count)]
    return [(t, [ev.Alive(step, task, t) for step, last in until.items() if t <= last]) for t in times]


def merged(*histories: Iterable[Moment]) -> list[Moment]:
    """Merge histories by time."""
    return sorted((moment for history in histories for moment in history), key=lambda moment: moment[0])


def stop(reason: str = "stopped by ann") -> ev.Event:
    return ev.StopAsked(reason, ANN)


@dataclass
class Story:
    """The state and the actions that a history leads to."""

    config: Config
    state: RunState
    done: list[tuple[float, act.Action]] = field(default_factory=list)
    now: float = 0.0
    finds_files_again: bool = False  # commands that were taken: their files are still in the inbox

    def turn(self, now: float, events: Sequence[ev.Event]) -> list[act.Action]:
        """Decide once, as the controller does; check that deciding again changes nothing and returns no action."""
        events = self._named_anew(flat(events))
        self._nothing_before(min(now, self.state.wakes))
        self.now = now
        everyone = decide(awake(self.state), events, now, self.config)
        self.state, actions = decide(self.state, events, now, self.config)
        assert everyone == (self.state, actions), f"at {now}: a unit was not looked at that has something to do"
        kinds = [isinstance(action, JournalRecord) for action in actions]
        assert kinds == sorted(kinds, reverse=True), f"at {now}: a record comes after another action: {actions}"
        again = decide(awake(self.state), [], now, self.config)
        assert again == (self.state, []), f"at {now}: asking twice is not the same"
        due = self.state.wakes
        assert due > now or self.state.finished, f"at {now}: the next deadline, {due}, is not in the future"
        self.done += [(now, action) for action in actions]
        if errands := [ev.ErrandDone(action) for action in actions if isinstance(action, act.Errand)]:
            self.turn(now, errands)
        return actions

    def taken_over(
        self, now: float, *, home: str | None = None, job: str = "7", nodes: int | None = None, **granted: Any
    ) -> Story:
        """Have another controller go on with the state, of which it knows what is kept.

        Args:
            now: when it begins.
            home: where it runs; None: where the one before has run.
            job: its own job.
            nodes: the number of its own nodes, n1, ...; None: as before.
            granted: other fields of Granted.
        """
        self.wait(now)
        before = self.state
        self.state = kept.decode(json.loads(json.dumps(kept.encode(before))))
        there = before.allocation.nodes if nodes is None else tuple(f"n{i + 1}" for i in range(nodes))
        own = before.allocation if (job, nodes) == ("7", None) else Allocation(job, there)
        begins = ev.Granted(own, home=before.home if home is None else home, resumed=self.now, **granted)
        self.turn(now, [begins])
        return self

    def _named_anew(self, events: list[ev.Event]) -> list[ev.Event]:
        """Give each command an id of its own: tests call many of them c1."""
        known, found = set(() if self.finds_files_again else self.state.commands), list[ev.Event]()
        for event in events:
            if isinstance(event, ev.Asked) and event.command in known:
                event = replace(event, command=f"{event.command}-{len(known)}")
            known |= {event.command} if isinstance(event, ev.Asked) and not self.finds_files_again else set()
            found.append(event)
        return found

    def _nothing_before(self, time: float) -> None:
        """Check that no rule does anything by itself before the time at which it wants to be asked again."""
        early = nextafter(time, 0.0)
        if early > self.now:
            state = awake(self.state)
            same = decide(state, [], early, self.config)
            assert same == (state, []), f"at {early}: after {self.now} nobody asked for this"

    def wait(self, until: float) -> None:
        """Let time pass; decide whenever a rule wants it."""
        while self.state.wakes < until and not self.state.finished:
            self.turn(self.state.wakes, [])

    def all(self, kind: Kind, since: float = 0.0) -> list[Any]:
        return [action for time, action in self.done if is_a(action, kind) and time >= since]

    def sent(self, kind: type[msg.Message], since: float = 0.0) -> list[Any]:
        """Return the messages of a kind."""
        return [action.message for action in self.all(kind, since)]

    def ids(self, kind: Kind, since: float = 0.0) -> list[StepId]:
        return [action.id for action in self.all(kind, since)]

    def times(self, kind: Kind, step: StepId) -> list[float]:
        return [time for time, action in self.done if is_a(action, kind) and getattr(action, "id", None) == step]

    def records(self, name: str, since: float = 0.0) -> list[dict[str, Any]]:
        return [record.fields for record in self.all(JournalRecord, since) if record.event == name]

    def unit(self, step: StepId) -> Unit:
        return next(unit for unit in self.state.units if unit.name == step.unit)

    def phases(self) -> list[Phase]:
        return [unit.phase for unit in self.state.groups]

    def outcome(self) -> str | None:
        return self.state.ending.outcome if self.state.ending else None

    def reason(self) -> str:
        return self.state.ending.reason if self.state.ending else ""

    def failure(self) -> str:
        """Return how the last group failed that did not come back."""
        return last_failure(self.state) or ""


def kind_of(action: act.Action) -> Kind:
    """Return the class of an action, or of the message that it sends."""
    return type(action.message if isinstance(action, act.Send) else action)


def is_a(action: act.Action, *kinds: Kind) -> bool:
    return issubclass(kind_of(action), kinds)


def flat(events: Iterable[Any]) -> list[ev.Event]:
    """Return the events in one list, the words of their evidence read as the controller does."""
    return [_read(e) for event in events for e in (event if isinstance(event, list) else [event])]


def _read(event: ev.Event) -> ev.Event:
    return replace(event, evidence=classified(event.evidence)) if isinstance(event, ev.TaskFailed) else event


def play(*moments: Moment, config: Config | None = None) -> Story:
    """Play a history; between its moments, decide at every deadline."""
    settings = config or _defaults()
    story = Story(settings, begin(settings))
    for time, *events in moments:
        story.wait(time)
        story.turn(time, flat(events))
    return story


LIGHTHOUSE_UP = said.lighthouse_up(LIGHT0, URL)
# Two groups of one worker on n1 and n2, with a spare n3, at step 10 after 20 seconds.
STARTED: tuple[Moment, ...] = (
    (0, granted(3)),
    (1, LIGHTHOUSE_UP),
    (2, ready(A0), ready(B0)),
    (3, store(A0), store(B0)),
)
RUNNING: tuple[Moment, ...] = (*STARTED, (5, stepped(A0, 1), stepped(B0, 1)), (20, stepped(A0, 10), stepped(B0, 10)))


def array_config(**sections: dict[str, Any]) -> Config:
    """Two groups in array mode, without time limits. The controller runs in a shell, which no job replaces."""
    sections["cluster"] = {"kind": "array", "controller": "here", **sections.get("cluster", {})}
    return config(**sections)


# Two groups in pilots of their own, on n1 and n2, at step 10 after 10 seconds. Slurm was asked at 0 and at 2.5.
NO_NODES = ev.Granted(Allocation("7", ()))
ASKED_FOR: tuple[Moment, ...] = (
    (0, NO_NODES),
    (0.1, ev.JobsSeen((), asked=0.0)),
    (0.5, ev.Submitted(0, ("90_0", "90_1"))),
)


def array_running(ends: float | None = None) -> tuple[Moment, ...]:
    pilots = pilot("90_0", "n1", ends=ends), pilot("90_1", "n2", ends=ends)
    return (
        *ASKED_FOR,
        (2.6, ev.JobsSeen(pilots, asked=2.5)),
        (3, said.lighthouse_up(LIGHT0, URL), ready(A0), ready(B0)),
        (4, store(A0), store(B0)),
        (5, stepped(A0, 1), stepped(B0, 1)),
        (10, stepped(A0, 10), stepped(B0, 10)),
    )
