"""An arbitrary journal is read quickly, and its status can be shown or printed as JSON."""

from __future__ import annotations

import contextlib
import json
import math
import time
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import example_journal as example
import pytest
from fuzz import DEEP, NUMBERS, VALUES, spoilt, tried
from hypothesis import given
from hypothesis import strategies as st
from raw_record import RawRecord
from rich.console import Console

from ftslurm.config.schema import MOST_GROUPS
from ftslurm.errors import RunNotFound
from ftslurm.monitor import log_files, logs, sentences, status_fold, status_json, summary, table
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import JournalReader, integer, last_line, number, text
from ftslurm.run.journal_lines import members, read
from ftslurm.run.journal_writer import Journal
from ftslurm.security.terminal import readable

Line = dict[str, Any]
MORE = [
    example.event(20, "allocation_requested", pool=0, count=2, names=["90_0"]),
    example.event(20, "allocation_pending", allocation="90_0", pool=0, reason="Priority"),
    example.event(20, "allocation_granted", allocation="90_0", pool=0, nodes=["n1"], ends=example.START + 900),
    example.event(20, "allocation_ends", allocation="90_0", pool=0, ends=example.START + 900),
    example.event(20, "allocation_leaving", allocation="90_0", pool=0, cause="preempted", reason="x"),
    example.event(20, "allocation_lost", allocation="90_0", pool=0, state="PENDING", reason="x"),
    example.event(20, "allocation_refused", pool=0, reason="no such partition", count=1, seconds=3.0),
    example.event(20, "scaled", groups=3, by=1000),
    example.event(20, "group_waits", group=1, reason="a node", allocation="90_0"),
    example.event(20, "group_given_up", group=1, reason="x"),
    example.event(20, "standby_given_up", unit="standby-000", reason="x"),
    example.event(20, "full_restart", step=10, checkpoint_step=5, checkpoint="/c/step-00000005", reason="x"),
    example.event(20, "checkpoint_saved", group=0, attempt=0, step=5, path="/c/step-00000005", seconds=0.1),
    example.event(20, "checkpoint_failed", group=0, attempt=0, step=5, error="x"),
    example.event(20, "checkpoint_restored", group=0, attempt=0, step=5),
    example.event(20, "serving", unit="group-0000", group=0, attempt=0, url="http://n1:1", seconds=1.0, recovery_s=1.0),
    example.event(20, "session_opened", group=0, attempt=0, seconds=1.0, recovery_s=None),
    example.event(20, "step_adopted", unit="group-0000", group=0, attempt=0, step=5, slurm_step="7.1"),
    example.event(20, "node_restored", node="n2", reason="x"),
    example.event(20, "fault_refused", kind="kill", group=0, rank=0, reason="x"),
    example.event(20, "command", what="stop", by=1000, reason="x"),
    example.event(20, "warning", group=0, text="x"),
    example.event(20, "controller_error", where="a message", error="KeyError: x"),
    example.event(20, "controller_left", reason="x", leader=1),
    example.event(20, "quorum_refused", reason="x"),
    example.event(20, "roll_over", seconds=30.0, reason="x"),
    example.event(20, "run_requeued", steps=12, restarts=1, reason="x"),
]
STORIES: dict[str, list[Line]] = {"kill": example.one_kill(), "lost": example.lost_node()}
KNOWN = {line["event"]: line for line in [*STORIES["kill"], *STORIES["lost"], *MORE]}
BAD = st.sampled_from(sorted(KNOWN)).flatmap(lambda name: spoilt(KNOWN[name], st.one_of(NUMBERS, VALUES)))
RUN = RunDir(Path("/scratch/runs/ddp-0930-k3"))
SOON_S = 10.0  # on a busy machine; it takes some milliseconds


def mixed(bad: list[Line]) -> list[Line]:
    """Return a journal with these lines in its middle."""
    lines = STORIES["kill"]
    return [*lines[:40], *bad, *lines[-8:]]


JOURNALS = st.lists(BAD, min_size=1, max_size=6)


def shown(lines: list[Line]) -> None:
    """Render all output for users and programs, line by line and at the end of a journal."""
    folding, out = status_fold.StatusFold(), Console(file=StringIO(), width=100)
    now = folding.status
    for line in lines:
        folding.apply(readable(line))
        sentences.describe(readable(line), now)
    assert len(now.groups) <= MOST_GROUPS
    json.dumps(status_json.to_json(now, example.START + 30), allow_nan=False)
    if len(now.groups) < 100:  # a table of thousands of groups is slow, and the same code as for a few
        out.print(table.render(now, example.START + 30, width=100, height=40))
        out.print(summary.summary(now, RUN))


@tried(100)
@given(bad=JOURNALS)
def test_whatever_a_journal_says_its_status_can_be_shown(bad: list[Line]) -> None:
    began = time.monotonic()
    shown(mixed(bad))
    assert time.monotonic() - began < SOON_S


def at_night(value: object) -> Any:
    return pytest.param(value, marks=pytest.mark.nightly)


NUMERIC = sorted(
    {name for line in KNOWN.values() for name, value in line.items() if not isinstance(value, (str, list))}
)


@pytest.mark.parametrize(
    "value", [10**30, math.nan, "1", *map(at_night, [2**53 - 1, -1, True, math.inf, [1], {}])], ids=repr
)
def test_no_number_of_a_line_makes_its_reader_loop_or_fail(value: object) -> None:
    for field in NUMERIC:
        began = time.monotonic()
        bad = [{**line, field: value} for line in KNOWN.values()]
        shown(mixed(bad))
        assert time.monotonic() - began < SOON_S, field


@tried(100)
@given(data=st.lists(st.one_of(st.binary(max_size=40), BAD.map(lambda line: json.dumps(line).encode())), max_size=5))
def test_any_bytes_are_a_journal_and_another_can_be_written_after_them(
    data: list[bytes], tmp_path_factory: Any
) -> None:
    run = RunDir(tmp_path_factory.mktemp("run"))
    run.events.write_bytes(b"\n".join(data))
    before = list(JournalReader(run.events).iter_new())
    last_line(run.events)
    with contextlib.closing(Journal(run)) as journal:
        journal.append(RawRecord("warning", text="the next"))
    after = list(JournalReader(run.events).iter_new())
    assert after[-1]["text"] == "the next"
    assert len(after) >= len(before)


@tried(300)
@given(event=spoilt({"step": 1, "time": 1.0, "text": "x"}, VALUES))
def test_a_field_of_a_wrong_type_is_a_missing_field(event: Line) -> None:
    assert (found := integer(event, "step")) is None or (type(found) is int and abs(found) < 2**53)
    assert (when := number(event, "time")) is None or (type(when) is float and abs(when) <= 2**53)
    assert type(text(event, "text") or "") is str


@tried(300)
@given(event=BAD)
def test_a_record_has_only_values_of_its_types(event: Line) -> None:
    record = read(event)
    for name, hint in get_type_hints(type(record), include_extras=True).items():
        if name != "event":
            assert fits(getattr(record, name), hint), (record.event, name)


def fits(value: object, hint: Any) -> bool:
    """Return whether a value is of a type, also in its inner values."""
    for kind in members(hint):
        origin, inner = get_origin(kind), get_args(kind)
        if origin is tuple and isinstance(value, tuple):
            return all(fits(item, inner[0]) for item in value)
        if origin is dict and isinstance(value, dict):
            return all(type(key) is str and fits(item, inner[1]) for key, item in value.items())
        if origin is None and type(value) is (dict if is_typeddict(kind) else kind):
            return True
    return False


def test_a_line_that_is_nested_too_deep_to_be_shown_is_none(tmp_path: Path) -> None:
    run = example.new_run(tmp_path, [example.started()])
    with run.events.open("a") as file:
        file.write('{"event":"warning","time":1,"text":' + DEEP + "}\n" + json.dumps(example.finished(9)) + "\n")
    assert [line["event"] for line in JournalReader(run.events).iter_new()] == ["run_started", "run_finished"]


@tried(60)
@given(bad=st.lists(spoilt(example.started()), max_size=3), marks=st.binary(max_size=60))
def test_logs_are_shown_whatever_the_journal_and_the_marks_say(
    bad: list[Line], marks: bytes, tmp_path_factory: Any
) -> None:
    run = example.write(RunDir(tmp_path_factory.mktemp("run")), bad)
    folder = run.attempt("group-0000", 0)
    folder.mkdir(parents=True)
    (folder / "rank-0.log").write_text("hello\n")
    (folder / "rank-0.times").write_bytes(marks + b"\nnan 3\ninf 6\n1e400 2\n-1 -1\n1 " + b"9" * 5000 + b"\n")
    out = BytesIO()
    logs.show(run, log_files.Wanted(), out)
    assert b"hello" in out.getvalue()
    with contextlib.suppress(RunNotFound):
        logs.show(run, log_files.Wanted(group=0), out, follow=True, until=lambda: True, poll_s=0.0)
