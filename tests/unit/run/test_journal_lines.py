"""Typed journal lines: they are read back as written, and lines of other versions stay readable."""

from __future__ import annotations

import json

import pytest

from ftslurm.protocol import records
from ftslurm.protocol.records import (
    EVENTS,
    JournalRecord,
    NodeExcluded,
    Progress,
    RunFinished,
    StepExited,
    UnknownEvent,
)
from ftslurm.run.journal_lines import UNKNOWN, read

EXITED = StepExited(
    unit="group-0001",
    group=1,
    attempt=2,
    code=None,
    signal=9,
    cause="killed",
    node="n2",
    rank=0,
    error=None,
    step=40,
    launched=True,
    healthy_s=12.5,
    noticed=1790000000.25,
    away_since=None,
    evidence=("rank 0: signal 9",),
    traceback=None,
)


def line(record: JournalRecord) -> dict[str, object]:
    value = json.loads(json.dumps({"seq": 1, "time": 2.0, "event": record.event} | record.fields))
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(
    "record",
    [
        EXITED,
        Progress(group=3, attempt=0, step=7, quorum_id=1, participants=2, committed=1, aborted=0, gap_s=None, at=1.5),
        NodeExcluded(node="n1", reason="lost"),
        RunFinished(outcome="failed", reason="", steps=None, restarts=0),
    ],
)
def test_a_record_is_read_as_it_was_written(record: JournalRecord) -> None:
    assert read(line(record)) == record


def test_fields_with_a_default_are_left_out_and_null_fields_are_written() -> None:
    assert "log" not in EXITED.fields
    assert EXITED.fields["code"] is None
    assert list(NodeExcluded(node="n1", group=2, reason="x").fields) == ["node", "group", "reason"]


def test_a_field_of_a_wrong_type_reads_like_a_missing_one() -> None:
    found = read(line(EXITED) | {"signal": "nine", "evidence": "none", "noticed": True, "cause": 7})
    assert isinstance(found, StepExited)
    assert (found.signal, found.evidence, found.noticed, found.cause) == (None, (), None, "")
    assert found.unit == "group-0001"


@pytest.mark.parametrize(
    "other", [{}, {"event": "of_the_future"}, {"event": ["x"]}, {"event": "progress", "group": -1}, {"event": ""}]
)
def test_a_line_that_is_not_known_or_lacks_its_key_is_an_unknown_event(other: dict[str, object]) -> None:
    assert read(other) is UNKNOWN


def test_unknown_fields_are_ignored() -> None:
    assert read(line(EXITED) | {"of_the_future": 1}) == EXITED


def test_every_record_is_read_and_has_a_name_of_its_own() -> None:
    made = {one for one in vars(records).values() if isinstance(one, type) and issubclass(one, JournalRecord)}
    assert {one for one in made if not one.__subclasses__()} == {*EVENTS, UnknownEvent}
    assert len({record.event for record in EVENTS}) == len(EVENTS)
