"""Write docs/journal.md and docs/schema/events.schema.json from ftslurm/protocol/records.py: `python docs/journal.py`.

The column "read by" is taken from the code: a reader reads an event if it has a `case` for it that does something.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from ftslurm.monitor import sentences, status_fold
from ftslurm.protocol import records
from ftslurm.protocol.records import EVENTS, KEY, VERSION, JournalRecord, RankRow, StuckGroup
from ftslurm.run import leadership, replay

PAGE = Path(__file__).parent / "journal.md"
SCHEMA = Path(__file__).parent / "schema" / "events.schema.json"
READERS = {
    "status": status_fold,
    "lines for people": sentences,
    "the next controller": replay,
    "candidates": leadership,
}
SECTIONS = {
    "The run and its controllers": records.RunEvent,
    "Slurm jobs and nodes": records.ClusterEvent,
    "Slurm steps": records.StepEvent,
    "The training": records.TrainingEvent,
    "Drills": records.DrillEvent,
}
INTRO = f"""# The journal

`events.jsonl` in the run directory has one JSON object per line: `seq` (from 1), `time` (unix seconds), `event` and the
fields below. Lines are appended only. They are on disk before the action that they record (`progress`: soon after).
Readers ignore events and fields they do not know. Version {VERSION} of the format; the JSON Schema is
[schema/events.schema.json](schema/events.schema.json).

"optional" fields are left out of the line if they do not apply; "or null" is written if a value is not known. A name
that ends in `_s`, and `seconds`, is a duration in seconds.

This page is made from `ftslurm/protocol/records.py` by `python docs/journal.py`.
"""
_JSON: dict[object, dict[str, Any]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
    tuple[str, ...]: {"type": "array", "items": {"type": "string"}},
    tuple[RankRow, ...]: {"type": "array", "items": {"type": "object"}},
    tuple[StuckGroup, ...]: {"type": "array", "items": {"type": "object"}},
    dict[str, str]: {"type": "object", "additionalProperties": {"type": "string"}},
    dict[str, int]: {"type": "object", "additionalProperties": {"type": "integer"}},
    dict[str, float | None]: {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
}


def page() -> str:
    """Return the text of docs/journal.md."""
    readers = {name: _handled(module) for name, module in READERS.items()}
    parts = [INTRO]
    for title, union in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        for record in get_args(union):
            read_by = ", ".join(name for name, handled in readers.items() if record.__name__ in handled)
            parts.append(f"\n### `{record.event}`\n\n{inspect.getdoc(record)} Read by: {read_by}.\n")
            parts.append("\n| field | type | meaning |\n|---|---|---|\n")
            for name, types, meaning, optional in _fields(record):
                kind = " or ".join(_json_name(one) for one in types) + (", optional" if optional else "")
                parts.append(f"| `{name}` | {kind} | {meaning} |\n")
    return "".join(parts)


def schema() -> str:
    """Return the text of docs/schema/events.schema.json: of one line of the journal."""
    lines = []
    for record in EVENTS:
        fields = list(_fields(record))
        properties = {"seq": {"type": "integer"}, "time": {"type": "number"}, "event": {"const": record.event}}
        for name, types, meaning, _ in fields:
            kinds = [_JSON[one] for one in types]
            properties[name] = {"description": meaning, **(kinds[0] if len(kinds) == 1 else {"anyOf": kinds})}
        required = ["seq", "time", "event", *(name for name, _, _, optional in fields if not optional)]
        lines.append({"description": inspect.getdoc(record), "properties": properties, "required": required})
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "ftslurm journal, one line"}
    return json.dumps({**whole, "version": VERSION, "type": "object", "oneOf": lines}, indent=1) + "\n"


def _fields(record: type[JournalRecord]) -> Iterator[tuple[str, tuple[object, ...], str, bool]]:
    """Yield of each field its name, its types, its meaning, and whether it can be left out."""
    for name, hint in get_type_hints(record, include_extras=True).items():
        if name == "event":
            continue
        kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        types = get_args(kind) if get_origin(kind) in (Union, UnionType) else (NoneType if kind is None else kind,)
        meaning = next(note for note in notes if note != KEY)
        yield name, types, meaning, hasattr(record, name)


def _json_name(kind: object) -> str:
    names = {"array": "list", "integer": "int", "null": "null"}
    name = _JSON[kind]["type"]
    return names.get(name, name)


def _handled(module: object) -> set[str]:
    """Return the names of the records for which a module has a `case` that does something."""
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    found: set[str] = set()
    for case in (node for node in ast.walk(tree) if isinstance(node, ast.match_case)):
        if _does_nothing(case.body):
            continue
        patterns = (node for node in ast.walk(case.pattern) if isinstance(node, ast.MatchClass))
        found |= {ast.unparse(pattern.cls).rpartition(".")[2] for pattern in patterns}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if ast.unparse(call.func) == "isinstance":
            found.add(ast.unparse(call.args[1]).rpartition(".")[2])
    return found


def _does_nothing(body: list[ast.stmt]) -> bool:
    return len(body) == 1 and ast.unparse(body[0]) in ("pass", "return None")


if __name__ == "__main__":
    SCHEMA.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
    SCHEMA.write_text(schema())
