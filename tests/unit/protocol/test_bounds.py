"""No line of the journal grows with the run: every record is tried with values that nobody has listed, of any size."""

from __future__ import annotations

import json
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from ftslurm.config.schema import MOST_GROUPS
from ftslurm.protocol.records import EVENTS, MOST_LIST, MOST_TEXT, AllocationLost, JournalRecord, RunFinished
from ftslurm.run.journal import _BLOCK as LAST_LINE
from ftslurm.run.journal_lines import members, read

MANY = 20_000
ESCAPED = 6  # characters of JSON for one of a text, at most
SIMPLE = {int: MOST_GROUPS - 1, float: 1e300, bool: True}


def huge(hint: object, text: str) -> Any:
    """Return a value of a type with very many items and very long texts."""
    kind: Any = next(kind for kind in members(hint) if kind is not NoneType)
    inside = get_args(kind)
    if is_typeddict(kind):
        return {name: huge(of, text) for name, of in get_type_hints(kind).items()}
    if get_origin(kind) is tuple:
        return (huge(inside[0], text),) * MANY
    if get_origin(kind) is dict:
        return {f"{text[:50]}{n}": huge(inside[1], text) for n in range(MANY)}
    return SIMPLE.get(kind, text)


def line(record: JournalRecord) -> bytes:
    return json.dumps({"seq": 1, "time": 2.0, "event": record.event, **record.fields}, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "text", ["n" * MANY, "é\n" * MANY, "\udce9" * MANY, "n1"], ids=["long", "escaped", "bytes", "short"]
)
@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.event)
def test_a_line_of_any_record_is_bounded_and_can_be_read(kind: type[JournalRecord], text: str) -> None:
    hints = get_type_hints(kind, include_extras=True)
    record = kind(**{name: huge(hint, text) for name, hint in hints.items() if name != "event"})
    written = line(record)
    assert len(written) < ESCAPED * (MOST_TEXT * len(hints) + 2 * MOST_LIST), len(written)
    assert len(written) < LAST_LINE, "it would not be found at the end of the journal"
    assert type(read(json.loads(written))) is kind


def test_what_is_left_out_of_a_list_is_counted_and_the_end_of_a_text_is_marked() -> None:
    nodes = tuple(f"node-{n:06d}" for n in range(MANY))
    fields = AllocationLost(allocation="7", nodes=nodes, reason="w" * MANY, state=None).fields
    assert fields["nodes"] == list(nodes[: len(fields["nodes"])])
    assert len(fields["nodes"]) > 1000
    assert fields["cut"] == {"nodes": MANY}
    assert fields["reason"].endswith("w...")
    assert len(fields["reason"]) == MOST_TEXT


def test_all_groups_of_the_largest_run_fit_into_a_line() -> None:
    missing = tuple(range(MOST_GROUPS))
    fields = RunFinished(outcome="succeeded", reason="", steps=1, restarts=0, missing=missing).fields
    assert fields["missing"] == list(missing)
    assert "cut" not in fields
