"""An arbitrary message of a worker becomes an event or is refused as documented; no event ends the state machine."""

from __future__ import annotations

import json
from typing import Any

import histories
import pytest
import said
from fuzz import DEEP, VALUES, spoilt, tried
from histories import RUNNING, STARTED
from hypothesis import given
from hypothesis import strategies as st
from steps import A0, B0, LIGHT0

from ftslurm.config.schema import Fault
from ftslurm.controller.translate import asked, translate
from ftslurm.core.rules import decide
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import StepId
from ftslurm.protocol import messages
from ftslurm.protocol.field_types import MOST_TEXT
from ftslurm.protocol.messages import BadMessage, Lines, parse

KNOWN: dict[str, dict[str, Any]] = {
    "hello": {"host": "n1", "pid": 4711, "slurm_step": "7.1"},
    "ready": {},
    "store": {"addr": "n1", "port": 29500},
    "alive": {"state": "S", "step": 11, "stage": 1, "since_s": 0.5},
    "quorum": {"quorum_id": 3, "members": [0, 1], "steps": [10, 10], "step": 10, "participants": 2},
    "progress": {"step": 11, "quorum_id": 3, "participants": 2, "committed": 11, "aborted": 0, "gap_s": 0.2},
    "serving": {"url": "http://n1:2/new_session"},
    "served": {"step": 11},
    "session": {},
    "trace": {"text": "Traceback"},
    "failed": {"error": "ValueError: x", "started": True, "oom": False},
    "done": {"step": 11},
    "exited": {"code": None, "signal": 9, "oom": False, "error": "last"},
    "adopted": {"ready": True, "group": 0, "begun": True, "store": ["n1", 1], "lighthouse": "http://n1:1", "step": 3},
    "dumped": {},
    "warning": {"text": "nothing heals"},
    "injected": {"fault": "kill", "error": "no"},
    "restored": {"step": 5, "path": "/ckpt/step-00000005"},
    "checkpoint": {"step": 15, "path": "/ckpt/step-00000015", "seconds": 0.1, "error": None},
    "address": {"url": "http://n1:29511"},
    "refused": {"reason": "older"},
    "broken": {"quorum_id": 3},
}
MESSAGES = st.sampled_from(sorted(KNOWN)).flatmap(lambda kind: spoilt({"task": 0, **KNOWN[kind], "type": kind}))
SENDERS = st.sampled_from([A0, B0, LIGHT0, StepId("standby-000", 0), StepId("group-0000", 7)])
STORIES = {
    "starting": (histories.config(groups={"count": 2}), STARTED[:2]),
    "running": (
        histories.config(
            groups={"count": 2},
            timed={"join_timeout_s": 9.0},
            health={"hang_after_s": 3.0},
            faults={"plan": [Fault(group=0, at=40.0)]},
            checkpoint={"every": 10},
        ),
        RUNNING,
    ),
    "array": (histories.array_config(groups={"count": 2}), histories.array_running()),
    "alone": (histories.config(groups={"count": 2}, lighthouse={"kind": "none"}), STARTED),
}

STATES = {name: histories.play(*moments, config=config).state for name, (config, moments) in STORIES.items()}
WRONG = [-1, 2**53, 10**30, 10**400, True, float("nan"), float("inf"), -1e308]


def heard(sender: StepId, message: dict[str, Any]) -> ev.Event | None:
    """Encode a message as a line and translate it as the controller does; None: it is refused, or is no event."""
    decoded = parse(json.dumps(message).encode())
    try:
        return None if decoded is None else translate(sender, decoded, 21.0, tasks=1)
    except BadMessage:
        return None


@tried(500)
@given(sender=SENDERS, message=MESSAGES)
def test_a_message_is_an_event_or_is_refused_as_documented(sender: StepId, message: dict[str, Any]) -> None:
    heard(sender, message)


@pytest.mark.parametrize("story", STORIES)
@tried(100)
@given(said=st.lists(st.tuples(SENDERS, MESSAGES), min_size=1, max_size=4))
def test_no_message_ends_the_state_machine_then_or_later(story: str, said: list[tuple[StepId, Any]]) -> None:
    goes_on(story, said)


@pytest.mark.parametrize("number", WRONG, ids=lambda number: f"{number!r:.20}")
def test_no_number_in_a_message_ends_the_state_machine(number: object) -> None:
    for kind, known in KNOWN.items():
        sender = LIGHT0 if kind in ("address", "refused", "broken") else A0
        for field in ("task", *known):
            goes_on("running", [(sender, {"type": kind, "task": 0, **known, field: number})])


def goes_on(story: str, said: list[tuple[StepId, Any]]) -> None:
    """Give the state machine these messages, then none, then the same messages again."""
    config, state, now = STORIES[story][0], STATES[story], 21.0
    events = [event for sender, message in said if (event := heard(sender, message)) is not None]
    for news in (events, [], events):
        state, actions = decide(state, news, now, config)
        json.dumps([vars(action) for action in actions if hasattr(action, "fields")], default=str, allow_nan=False)
        assert state.wakes > now
        now = min(state.wakes, now + 3600.0)


@pytest.mark.parametrize("task", [-1, 2, 10**9, 10**30, True, 0.0, float("nan"), None, "0", [0]])
def test_a_task_that_the_step_does_not_have_is_refused(task: object) -> None:
    with pytest.raises(BadMessage):
        translate(A0, {"type": "exited", "task": task, "code": 0, "signal": None, "oom": False}, 21.0, tasks=2)


def test_true_is_not_the_number_of_a_task() -> None:
    done = {"type": "exited", "code": 0, "signal": None, "oom": False}
    assert translate(A0, {**done, "task": 1}, 21.0, tasks=2) == said.task_done(A0, 1)
    with pytest.raises(BadMessage):
        translate(A0, {**done, "task": True}, 21.0, tasks=2)


@tried(150)
@given(place=st.fixed_dictionaries({"step": VALUES, "stage": VALUES, "since_s": VALUES, "state": VALUES}))
def test_a_sign_of_life_counts_whatever_else_it_says(place: dict[str, Any]) -> None:
    event = heard(A0, {"type": "alive", "task": 0, **place})
    assert isinstance(event, ev.Alive)
    assert (event.time, event.since_s >= 0, 0 <= event.stage <= 4) == (21.0, True, True)


@tried(200)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_none(data: bytes) -> None:
    parse(data)


@pytest.mark.parametrize("text", [DEEP, "[" * 100_000, '{"type":"ready","task":0,"x":' + DEEP + "}", "9" * 5000])
def test_what_is_nested_too_deep_to_be_handled_is_no_message(text: str) -> None:
    assert parse(text.encode()) is None


def test_a_line_without_an_end_fills_no_memory_and_what_follows_is_heard() -> None:
    lines = Lines(messages.MOST)
    for _ in range(100):
        assert lines.feed(b"x" * 65536) == []
        assert len(lines._rest) <= messages.MOST + 65536
    assert lines.feed(b"the end of it\nready\n") == [b"ready"]
    assert lines.feed(b"y" * (messages.MOST + 1) + b"\nagain\n") == [b"again"]


@tried(150)
@given(
    what=st.sampled_from(["stop", "scale", "inject", "restart", "stacks", "save", "drain", "undrain", "pilot", ""]),
    command=spoilt({"fault": "kill", "group": 0, "rank": 0, "groups": 2, "node": "n1", "id": "7", "by": 1000}),
)
def test_a_command_from_the_inbox_is_one_or_none(what: str, command: dict[str, Any]) -> None:
    event = asked({**command, "what": what})
    if isinstance(event, ev.InjectAsked | ev.Asked):
        assert type(event.rank) in (int, type(None))
        assert type(event.group) in (int, type(None))
    if isinstance(event, ev.Asked):
        assert len(event.node) <= MOST_TEXT
        assert type(event.groups) is int
