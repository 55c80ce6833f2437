"""Check values against the JSON Schemas that docs/journal.py makes, with the part of JSON Schema that they use."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MADE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "journal.py"))
TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
REPORT = json.loads(MADE["report_schema"]())
STATUS = json.loads(MADE["status_schema"]())
EVENTS = {line["properties"]["event"]["const"]: line for line in json.loads(MADE["events_schema"]())["oneOf"]}


def check_status(status: object) -> None:
    """Assert that the output of `status --json` matches its schema and has no other keys."""
    wrong = list(errors(status, STATUS))
    assert not wrong, wrong


def check_report(report: object) -> None:
    """Assert that the output of `report --json` matches its schema and has no other keys."""
    wrong = list(errors(report, REPORT))
    assert not wrong, wrong


def check_event(line: dict[str, Any]) -> None:
    """Assert that a line of the journal matches its schema and has no other keys."""
    wrong = list(errors(line, EVENTS[line["event"]]))
    assert not wrong, (wrong, line)


def errors(value: Any, schema: dict[str, Any], at: str = "$") -> Iterator[str]:
    """Yield the errors of a value."""
    if "anyOf" in schema:
        found = [list(errors(value, one, at)) for one in schema["anyOf"]]
        yield from [] if [] in found else min(found, key=len)
        return
    if "const" in schema and value != schema["const"]:
        yield f"{at} is not {schema['const']}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at} is none of {schema['enum']}"
    if "type" in schema and not has_type(value, schema["type"]):
        yield f"{at}={value!r} is not {schema['type']}"
        return
    if isinstance(value, list) and "items" in schema:
        for n, item in enumerate(value):
            yield from errors(item, schema["items"], f"{at}[{n}]")
    if isinstance(value, dict):
        yield from (f"{at} has no {name}" for name in schema.get("required", []) if name not in value)
        for name, item in value.items():
            of_item = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            yield from errors(item, of_item, f"{at}.{name}") if of_item is not None else [f"{at}.{name} is unknown"]


def has_type(value: object, names: str | list[str]) -> bool:
    names = [names] if isinstance(names, str) else names
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, TYPES[name]) for name in names)
