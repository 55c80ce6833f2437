"""The page of the journal, and the JSON Schemas of the journal, `status --json` and `report --json`.

`python docs/journal.py` prints the page. The journal's are made from ftslurm/protocol/records.py, the others from
ftslurm/monitor/status_json.py and ftslurm/report/report_json.py. The column "read by" is taken from the code: a reader
reads an event if it has a method for it, or a `case` that does something.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator
from enum import EnumMeta
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints, is_typeddict

from ftslurm.config.described import field_comments
from ftslurm.monitor import sentences
from ftslurm.monitor.status_fold import StatusFold
from ftslurm.monitor.status_json import StatusJson
from ftslurm.protocol import records
from ftslurm.protocol.records import EVENTS, KEY, MOST_LIST, MOST_TEXT, VERSION, JournalRecord
from ftslurm.report.history_fold import HistoryFold
from ftslurm.report.report_json import ReportJson
from ftslurm.run.journal_lines import Fold, members

DIALECT = "https://json-schema.org/draft/2020-12/schema"
READERS = {
    "status": StatusFold,
    "report": HistoryFold,
    "lines for people": sentences,
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
fields below. Lines are appended only. They are on disk before the action that they record (later if the disk is full).
`progress` is in `progress.jsonl` beside it; its `seq` is that of the event before it.
Readers ignore events and fields they do not know. Version {VERSION} of the format; the JSON Schema is
[schema/events.schema.json](schema/events.schema.json).

A text longer than {MOST_TEXT:,} characters ends with "...". Only the first items of a list or an object are written,
{MOST_LIST:,} characters of them; if there are more, `cut` has how many there were: `{{"nodes": 9400}}`.

"optional" fields are left out of the line if they do not apply; "or null" is written if a value is not known. A name
that ends in `_s`, and `seconds`, is a duration in seconds.
"""
_NAMES: dict[object, str] = {int: "integer", float: "number", str: "string", bool: "boolean", NoneType: "null"}
_SHORT = {"array": "list", "integer": "int"}  # names of types on the page


def page() -> str:
    """Return the page."""
    readers = {name: _handled(module) for name, module in READERS.items()}
    parts = [INTRO]
    for title, section in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        for record in (one for one in EVENTS if issubclass(one, section)):
            by = [name for name, handled in readers.items() if record.__name__ in handled]
            read_by = ", ".join(by) or "no part of ftslurm"
            parts.append(f"\n### `{record.event}`\n\n{inspect.getdoc(record)} Read by: {read_by}.\n")
            parts.append("\n| field | type | meaning |\n|---|---|---|\n")
            for name, types, meaning, optional in _fields(record):
                kind = " or ".join(_json_name(one) for one in types) + (", optional" if optional else "")
                parts.append(f"| `{name}` | {kind} | {meaning} |\n")
    return "".join(parts)


def events_schema() -> str:
    """Return the JSON Schema of one line of the journal."""
    lines = []
    for record in EVENTS:
        fields = list(_fields(record))
        properties = {"seq": {"type": "integer"}, "time": {"type": "number"}, "event": {"const": record.event}}
        properties |= {name: {"description": meaning} | _any_of(types) for name, types, meaning, _ in fields}
        required = ["seq", "time", "event", *(name for name, _, _, optional in fields if not optional)]
        lines.append({"description": inspect.getdoc(record), "properties": properties, "required": required})
    whole = {"$schema": DIALECT, "title": "ftslurm journal, one line", "version": VERSION}
    return json.dumps({**whole, "type": "object", "oneOf": lines}, indent=1) + "\n"


def status_schema() -> str:
    """Return the JSON Schema of what `status --json` prints."""
    whole = {"$schema": DIALECT, "title": "ftslurm status --json"}
    return json.dumps(whole | json_schema(StatusJson), indent=1) + "\n"


def report_schema() -> str:
    """Return the JSON Schema of what `report --json` prints."""
    whole = {"$schema": DIALECT, "title": "ftslurm report --json"}
    return json.dumps(whole | json_schema(ReportJson), indent=1) + "\n"


def json_schema(hint: object) -> dict[str, Any]:
    """Return the JSON Schema of a type."""
    if isinstance(hint, EnumMeta):
        return {"type": "string", "enum": [value.value for value in hint]}
    if get_origin(hint) is UnionType:
        return _any_of(members(hint))
    if get_origin(hint) in (tuple, list):
        return {"type": "array", "items": json_schema(get_args(hint)[0])}
    if get_origin(hint) is dict:
        return {"type": "object", "additionalProperties": json_schema(get_args(hint)[1])}
    if is_typeddict(hint):
        return _object(hint)
    return {"type": _NAMES[hint]}


def _object(hint: Any) -> dict[str, Any]:
    comments = field_comments(sys.modules[hint.__module__])
    properties = dict[str, dict[str, Any]]()
    for name, kind in get_type_hints(hint).items():
        alias = hint.__annotations__[name].__forward_arg__
        meaning = comments.get((hint.__name__, name)) or comments.get(("", alias))
        properties[name] = ({"description": meaning} if meaning else {}) | json_schema(kind)
    whole = {"type": "object", "properties": properties}
    return whole | {"required": [name for name in properties if name in hint.__required_keys__]}


def _any_of(types: tuple[object, ...]) -> dict[str, Any]:
    kinds = [json_schema(kind) for kind in types]
    if len(kinds) == 1:
        return kinds[0]
    scalars = all(kind.keys() == {"type"} for kind in kinds)
    return {"type": [kind["type"] for kind in kinds]} if scalars else {"anyOf": kinds}


def _fields(record: type[JournalRecord]) -> Iterator[tuple[str, tuple[object, ...], str, bool]]:
    """Yield of each field its name, its types, its meaning, and whether it can be left out."""
    for name, hint in get_type_hints(record, include_extras=True).items():
        if name != "event":
            notes = [note for note in get_args(hint)[1:] if get_origin(hint) is Annotated and note != KEY]
            owner = next(kind for kind in record.__mro__ if name in vars(kind).get("__annotations__", ()))
            comments, alias = field_comments(records), owner.__annotations__[name]
            meaning = notes[0] if notes else comments[owner.__name__, name] or comments["", alias]
            yield name, members(hint), meaning, hasattr(record, name)


def _json_name(kind: object) -> str:
    name = json_schema(kind)["type"]
    return _SHORT.get(name, name)


def _handled(module: object) -> set[str]:
    """Return the names of the records for which a fold has a method, or a module a `case` that does something."""
    if isinstance(module, type) and issubclass(module, Fold):
        return {record.__name__ for record in EVENTS if hasattr(module, record.event)}
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
    print(page(), end="")
