"""docs/journal.md and the JSON Schema of the journal agree with the types, and what the core writes with both."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from histories import RUNNING, killed, play
from steps import B0

from ftslurm.protocol.records import EVENTS, JournalRecord

DOCS = Path(__file__).parents[3] / "docs"
MADE = runpy.run_path(str(DOCS / "journal.py"))
TYPES = {"integer": int, "number": (int, float), "string": str, "boolean": bool, "null": type(None)}
TYPES |= {"array": list, "object": dict}


def fits(value: object, schema: dict[str, Any]) -> bool:
    """Whether a value has the type that a schema names: as much of JSON Schema as ours uses."""
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    if "const" in schema:
        return bool(value == schema["const"])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(isinstance(value, TYPES[kind]) for kind in kinds):
        return False
    return not isinstance(value, list) or all(fits(item, schema["items"]) for item in value)


def test_the_page_and_the_schema_are_made_from_the_types() -> None:
    assert (DOCS / "journal.md").read_text() == MADE["page"](), "run `python docs/journal.py`"
    assert (DOCS / "schema" / "events.schema.json").read_text() == MADE["schema"](), "run `python docs/journal.py`"


def test_every_event_is_read_by_somebody() -> None:
    assert "Read by: ." not in MADE["page"]()


@pytest.mark.parametrize("record", EVENTS, ids=lambda record: record.event)
def test_every_event_is_on_the_page(record: type[JournalRecord]) -> None:
    assert f"### `{record.event}`" in (DOCS / "journal.md").read_text()


def test_what_the_core_writes_fits_the_schema() -> None:
    lines = {line["properties"]["event"]["const"]: line for line in json.loads(MADE["schema"]())["oneOf"]}
    story = play(*RUNNING, (30, killed(B0)), (60,))
    written = story.all(JournalRecord)
    assert {"step_launched", "progress", "step_exited"} <= {record.event for record in written}
    for record in written:
        line = json.loads(json.dumps({"seq": 1, "time": 1.5, "event": record.event} | record.fields))
        schema = lines[record.event]
        assert set(schema["required"]) <= line.keys() <= schema["properties"].keys()
        assert all(fits(line[name], schema["properties"][name]) for name in line), line
