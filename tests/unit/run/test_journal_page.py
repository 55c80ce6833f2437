"""The page of the journal has every event, and what is written fits the JSON Schemas."""

from __future__ import annotations

import json

import example_journal as ex
import pytest
from folded import fold
from histories import RUNNING, killed, play
from json_schema import MADE, check_event, check_status
from steps import B0

from ftslurm.monitor.status import RunStatus
from ftslurm.monitor.status_fold import StatusFold
from ftslurm.monitor.status_json import to_json
from ftslurm.protocol.records import EVENTS, JournalRecord

PAGE = MADE["page"]()


def test_every_event_is_read_by_somebody() -> None:
    assert "Read by: ." not in PAGE


@pytest.mark.parametrize("record", EVENTS, ids=lambda record: record.event)
def test_every_event_is_on_the_page(record: type[JournalRecord]) -> None:
    assert f"### `{record.event}`" in PAGE


def test_what_the_core_writes_fits_the_schema() -> None:
    story = play(*RUNNING, (30, killed(B0)), (60,))
    written = story.all(JournalRecord)
    assert {"step_launched", "progress", "step_exited"} <= {record.event for record in written}
    for record in written:
        check_event(json.loads(json.dumps({"seq": 1, "time": 1.5, "event": record.event} | record.fields)))


@pytest.mark.parametrize("lines", [[], ex.one_kill(), ex.lost_node(), ex.old(ex.one_kill())])
def test_the_status_of_a_journal_fits_the_schema_after_each_line(lines: list[ex.Line]) -> None:
    folding = StatusFold()
    for line in ({}, *lines):
        folding.apply(line)
        check_status(json.loads(json.dumps(to_json(folding.status, ex.START + 60))))


def test_a_status_or_a_line_that_does_not_fit_the_schema_is_found() -> None:
    status = json.loads(json.dumps(to_json(fold(RunStatus(), *ex.one_kill()), ex.START)))
    for wrong in (
        status | {"step": None},
        status | {"unknown": 1},
        status | {"groups": [status["groups"][0] | {"phase": "RESTING"}]},
        {name: value for name, value in status.items() if name != "note"},
    ):
        with pytest.raises(AssertionError):
            check_status(wrong)
    with pytest.raises(AssertionError):
        check_event({"seq": 1, "time": 1.5, "event": "scaled", "groups": True, "by": None})
