"""Messages of workers as events: every kind of message, and every kind of error in one."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import said

from ftslurm.controller.translate import translate
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence, StepId, replace
from ftslurm.protocol import messages as msg
from ftslurm.protocol.causes import Says
from ftslurm.protocol.messages import BadMessage, parse

GROUP = StepId("group-0001", 2)
LIGHTHOUSE = StepId("lighthouse", 0)
PROGRESS = {"step": 12, "quorum_id": 3, "participants": 2, "committed": 11, "aborted": 1, "gap_s": 0.25}
ADDRESSES = {"store": ["n3", 29500], "lighthouse": "http://n1:1"}

MESSAGES: dict[str, dict[str, Any]] = {
    "hello": {"task": 1, "host": "n3", "pid": 4711},
    "ready": {"task": 1},
    "adopted": {"task": 1, "ready": True, "group": 0, "begun": True, "floor": 7, "step": 12, **ADDRESSES},
    "store": {"task": 0, "addr": "n3", "port": 29500},
    "progress": {"task": 0, **PROGRESS},
    "serving": {"task": 0, "url": "http://n3:4711/new_session"},
    "served": {"task": 0, "step": 40},
    "session": {"task": 0},
    "trace": {"task": 1, "text": "Traceback\n  main()"},
    "warning": {"task": 0, "text": "nothing heals \x1b[31mit"},
    "failed": {"task": 1, "error": "ValueError: x", "started": True},
    "exited": {"task": 1, "code": None, "signal": 9, "oom": False},
}


def sender_of(kind: str) -> StepId:
    """Return a step that sends messages of this type."""
    return LIGHTHOUSE if kind == "address" else GROUP


def heard(sender: StepId, kind: str, /, **fields: object) -> ev.Event | None:
    """Pass a message through the channel; return its translation, without the message itself."""
    message = parse(json.dumps({"type": kind, **fields}).encode())
    assert message is not None
    event = translate(sender, message, 1000.0, tasks=2)
    if isinstance(event, ev.TaskFailed):
        assert (event.exited is not None) is (kind == "exited")
        return replace(event, exited=None)
    return event


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("hello", ev.Heard(GROUP, msg.Hello("n3", 4711, task=1))),
        ("ready", said.ready(GROUP, 1)),
        ("adopted", said.adopted(GROUP, 1, True, True, True, ("n3", 29500), "http://n1:1", 7, 12)),
        ("store", said.store_up(GROUP, "n3", 29500)),
        ("progress", ev.Heard(GROUP, msg.Progress(12, 3, 2, 11, 1, 0.25))),
        ("serving", said.serving(GROUP, "http://n3:4711/new_session")),
        ("served", said.served(GROUP, 40)),
        ("session", said.session_opened(GROUP)),
        ("trace", said.traced(GROUP, 1, "Traceback\n  main()")),
        ("warning", said.warned(GROUP, "nothing heals it")),
        ("failed", ev.TaskFailed(GROUP, Evidence(1, None, code=1, error="ValueError: x"))),
        ("exited", ev.TaskFailed(GROUP, Evidence(1, None, signal=9))),
    ],
)
def test_each_message_is_an_event(kind: str, event: ev.Event) -> None:
    assert heard(GROUP, kind, **MESSAGES[kind]) == event


@pytest.mark.parametrize(
    ("fields", "event"),
    [
        ({"code": 0, "signal": None, "oom": False}, said.task_done(GROUP, 1)),
        ({"code": 3, "signal": None, "oom": False}, ev.TaskFailed(GROUP, Evidence(1, None, code=3))),
        ({"code": None, "signal": 11, "oom": False}, ev.TaskFailed(GROUP, Evidence(1, None, signal=11))),
        (
            {"code": None, "signal": 9, "oom": True},
            ev.TaskFailed(GROUP, Evidence(1, None, signal=9, out_of_memory=True)),
        ),
    ],
)
def test_how_a_worker_exited(fields: dict[str, object], event: ev.Event) -> None:
    assert heard(GROUP, "exited", task=1, **fields) == event


def test_the_last_line_of_a_log_is_not_taken_for_the_error() -> None:
    event = heard(GROUP, "exited", task=1, code=2, signal=None, oom=False, error="step 10 loss 0.277")
    only = frozenset({Says.PRINTED})
    assert event == ev.TaskFailed(GROUP, Evidence(1, None, code=2, error="its log says: step 10 loss 0.277", says=only))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("RuntimeError: [pair.cc:553] Connection reset by peer", {Says.ECHO}),
        ("RuntimeError: NCCL error: ncclRemoteError", {Says.ECHO, Says.NETWORK}),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", {Says.BROKEN}),
        ("RuntimeError: status: Unavailable", {Says.ECHO, Says.LIGHTHOUSE}),
        ('TimeoutError: status: Cancelled, message: "Timeout expired"', {Says.ECHO, Says.LIGHTHOUSE, Says.TIMEOUT}),
        ("KeyError: 'connection reset'", {Says.ECHO}),
        ("KeyError: 'XID 79'", set()),
        ("ValueError: no such layer", set()),
    ],
)
def test_the_words_of_a_failure_are_read_here_and_not_in_the_core(error: str, says: set[Says]) -> None:
    raised = heard(GROUP, "failed", **{**MESSAGES["failed"], "error": error})
    ended = heard(GROUP, "exited", task=1, code=2, signal=None, oom=False, error=error)
    assert isinstance(raised, ev.TaskFailed)
    assert isinstance(ended, ev.TaskFailed)
    assert (raised.evidence.says, ended.evidence.says) == (says, says | {Says.PRINTED})


def test_a_failure_before_the_script_was_reached_is_marked() -> None:
    event = heard(GROUP, "failed", **{**MESSAGES["failed"], "started": False})
    assert isinstance(event, ev.TaskFailed)
    assert event.evidence.started is False


def test_a_step_that_has_not_been_assigned_says_so_to_a_new_controller() -> None:
    fields = {"task": 0, "ready": False, "group": None, "begun": False, "store": None, "lighthouse": None, "step": None}
    assert heard(GROUP, "adopted", **fields) == said.adopted(GROUP, floor=None)


def test_a_task_says_what_slurm_calls_its_step() -> None:
    assert heard(GROUP, "hello", task=0, host="n3", slurm_step="81.2") == said.hello(GROUP, 0, "n3", "81.2")


@pytest.mark.parametrize("name", ["--me", "81", "81.2 82.0", "-u", "81.2;", ["81.2"], 81.2, ""])
def test_what_is_no_step_of_slurms_is_never_cancelled_as_one(name: object) -> None:
    assert heard(GROUP, "hello", task=0, host="n3", slurm_step=name) == said.hello(GROUP, 0, "n3", None)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("hello", {"host": "--nodelist=n1"}),
        ("hello", {"host": "n1,n2"}),
        ("hello", {"host": "n1\x1b[31m"}),
        ("hello", {"host": None}),
        ("hello", {"task": -1}),
    ],
)
def test_names_that_cannot_be_make_a_bad_message(kind: str, fields: dict[str, object]) -> None:
    with pytest.raises(BadMessage):
        heard(GROUP, kind, **{**MESSAGES[kind], **fields})


def test_no_gap_between_commits_is_no_gap() -> None:
    fields = {**MESSAGES["progress"], "gap_s": None}
    assert heard(GROUP, "progress", **fields) == ev.Heard(GROUP, msg.Progress(12, 3, 2, 11, 1, None))


def test_only_the_lighthouse_has_an_address() -> None:
    assert heard(LIGHTHOUSE, "address", task=0, url="http://n1:1") == said.lighthouse_up(LIGHTHOUSE, "http://n1:1")
    with pytest.raises(BadMessage):
        heard(GROUP, "address", task=0, url="http://n1:1")


def test_what_a_later_version_says_is_no_event() -> None:
    assert heard(GROUP, "a later version's", task=0, step=12) is None


def test_a_script_that_has_ended_well_is_told_of_before_its_process_ends() -> None:
    assert heard(GROUP, "done", task=1) == ev.Heard(GROUP, msg.Done(task=1))


def test_unknown_fields_are_ignored() -> None:
    assert heard(GROUP, "ready", task=1, new={"a": 1}) == said.ready(GROUP, 1)


NEEDED = {
    "hello": ["host"],
    "adopted": ["ready", "group", "begun"],
    "store": ["addr", "port"],
    "progress": ["step", "quorum_id", "participants", "committed", "aborted"],
    "failed": ["error", "started"],
    "exited": ["code", "signal", "oom"],
    "address": ["url"],
}


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind, fields in NEEDED.items() for field in fields])
def test_a_missing_field_is_named(kind: str, field: str) -> None:
    known = {**MESSAGES, "address": {"task": 0, "url": "http://n1:1"}}[kind]
    with pytest.raises(BadMessage, match=f"{field} is missing"):
        heard(sender_of(kind), kind, **{name: value for name, value in known.items() if name != field})


WRONG: list[Any] = ["", "x", None, [], {}, True, -1, 1.5, 10**400, float("nan"), float("inf"), [[1]]]


@pytest.mark.parametrize("kind", [*MESSAGES, "address"])
def test_a_malformed_message_raises_only_what_the_controller_catches(kind: str) -> None:
    known = {**MESSAGES, "address": {"task": 0, "url": "http://n1:1"}}[kind]
    for field, value in itertools.product(known, WRONG):
        try:
            translate(sender_of(kind), {"type": kind, **known, field: value}, 1000.0, tasks=2)
        except BadMessage:
            continue
        except Exception as error:
            raise AssertionError(f"{field}={value!r}: {error!r}") from error
