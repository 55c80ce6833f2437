"""What workers say, as events: every message there is, and every way of getting one wrong."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ftslurm.channel import decode, encode_short
from ftslurm.controller import translate
from ftslurm.core.model import (
    Event,
    Evidence,
    Hello,
    LighthouseUp,
    Progressed,
    Ready,
    StepId,
    StoreUp,
    TaskDone,
    TaskFailed,
)

GROUP = StepId("group-0001", 2)
LIGHTHOUSE = StepId("lighthouse", 0)
PROGRESS = {"step": 12, "quorum_id": 3, "participants": 2, "committed": 11, "aborted": 1, "healed": 1, "gap_s": 0.25}

MESSAGES: dict[str, dict[str, Any]] = {
    "hello": {"task": 1, "host": "n3", "pid": 4711},
    "ready": {"task": 1},
    "store": {"task": 0, "addr": "n3", "port": 29500},
    "progress": {"task": 0, **PROGRESS},
    "failed": {"task": 1, "error": "ValueError: x", "traceback_tail": "...", "step": 12, "started": True},
    "exited": {"task": 1, "code": None, "signal": 9, "oom": False},
}


def heard(sender: StepId, kind: str, /, **fields: object) -> Event | None:
    """A message as it comes out of the channel, translated."""
    message = decode(encode_short(kind, **fields))
    assert message is not None
    return translate(sender, message)


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("hello", Hello(GROUP, 1, "n3")),
        ("ready", Ready(GROUP, 1)),
        ("store", StoreUp(GROUP, "n3", 29500)),
        ("progress", Progressed(GROUP, 12, 3, 2, 11, 1, 0.25)),
        ("failed", TaskFailed(GROUP, Evidence(1, None, code=1, error="ValueError: x"))),
        ("exited", TaskFailed(GROUP, Evidence(1, None, signal=9))),
    ],
)
def test_each_message_is_an_event(kind: str, event: Event) -> None:
    assert heard(GROUP, kind, **MESSAGES[kind]) == event


@pytest.mark.parametrize(
    ("fields", "event"),
    [
        ({"code": 0, "signal": None, "oom": False}, TaskDone(GROUP, 1)),
        ({"code": 3, "signal": None, "oom": False}, TaskFailed(GROUP, Evidence(1, None, code=3))),
        ({"code": None, "signal": 11, "oom": False}, TaskFailed(GROUP, Evidence(1, None, signal=11))),
        ({"code": None, "signal": 9, "oom": True}, TaskFailed(GROUP, Evidence(1, None, signal=9, out_of_memory=True))),
    ],
)
def test_how_a_worker_exited(fields: dict[str, object], event: Event) -> None:
    assert heard(GROUP, "exited", task=1, **fields) == event


def test_a_failure_before_the_script_was_reached_is_marked() -> None:
    event = heard(GROUP, "failed", **{**MESSAGES["failed"], "started": False})
    assert isinstance(event, TaskFailed)
    assert event.evidence.started is False


def test_no_gap_between_commits_is_no_gap() -> None:
    assert heard(GROUP, "progress", **{**MESSAGES["progress"], "gap_s": None}) == Progressed(
        GROUP, 12, 3, 2, 11, 1, None
    )


def test_only_the_lighthouse_has_an_address() -> None:
    assert heard(LIGHTHOUSE, "address", task=0, url="http://n1:1") == LighthouseUp(LIGHTHOUSE, "http://n1:1")
    assert heard(GROUP, "address", task=0, url="http://n1:1") is None


@pytest.mark.parametrize("kind", ["alive", "done", "a later version's"])
def test_what_only_says_i_am_here_is_no_event(kind: str) -> None:
    assert heard(GROUP, kind, task=0, step=12) is None


def test_unknown_fields_are_ignored() -> None:
    assert heard(GROUP, "ready", task=1, new={"a": 1}) == Ready(GROUP, 1)


NEEDED = {
    "hello": ["host"],
    "store": ["addr", "port"],
    "progress": ["step", "quorum_id", "participants", "committed", "aborted"],
    "failed": ["error", "started"],
    "exited": ["code", "signal", "oom"],
    "address": ["url"],
}


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind, fields in NEEDED.items() for field in fields])
def test_a_missing_field_is_a_key_error_that_names_it(kind: str, field: str) -> None:
    known = {**MESSAGES, "address": {"task": 0, "url": "http://n1:1"}}[kind]
    with pytest.raises(KeyError, match=field):
        heard(LIGHTHOUSE, kind, **{name: value for name, value in known.items() if name != field})


WRONG: list[Any] = ["", "x", None, [], {}, True, -1, 1.5, 10**400, float("nan"), float("inf"), [[1]]]


@pytest.mark.parametrize("kind", [*MESSAGES, "address"])
def test_a_malformed_message_raises_only_what_the_controller_catches(kind: str) -> None:
    known = {**MESSAGES, "address": {"task": 0, "url": "http://n1:1"}}[kind]
    for field, value in itertools.product(known, WRONG):
        try:
            translate(LIGHTHOUSE, {"type": kind, **known, field: value})
        except (KeyError, TypeError, ValueError):
            continue
        except Exception as error:
            raise AssertionError(f"{field}={value!r}: {error!r}") from error
