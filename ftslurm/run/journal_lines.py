"""Read lines of the journal as typed records (ftslurm/protocol/records.py).

Another version may have written a line, or a disk may have damaged it: an unknown event, or a line without its key
fields, is an UnknownEvent; any other field of a wrong type reads like a missing one (None, "", 0 or empty).
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from ftslurm.protocol.records import EVENTS, KEY, JournalEvent, RankRow, StuckGroup, UnknownEvent
from ftslurm.run.journal import Event, integer, names, number, numbers, text

UNKNOWN = UnknownEvent()


def read(line: Event) -> JournalEvent:
    """Return a line as its record; UNKNOWN if this version does not know it."""
    name = line.get("event")
    known = _KNOWN.get(name) if isinstance(name, str) else None
    if known is None:
        return UNKNOWN
    record, fields = known
    values: dict[str, Any] = {}
    for field, reader, is_key in fields:
        value = reader(line, field)
        if value is None and is_key:
            return UNKNOWN
        values[field] = value
    return record(**values)  # type: ignore[return-value]  # EVENTS are the members of the union


def _readers(record: type) -> tuple[tuple[str, Callable[[Event, str], object], bool], ...]:
    """Return of each field its name, its reader, and whether it is a key."""
    hints = get_type_hints(record, include_extras=True)
    return tuple((name, _reader(hint), is_key(hint)) for name, hint in hints.items() if name != "event")


def is_key(hint: object) -> bool:
    """Whether a line is unreadable without this field."""
    return get_origin(hint) is Annotated and KEY in get_args(hint)


def members(hint: object) -> tuple[object, ...]:
    """Return the types that a field may have: `Annotated[int | None, "..."]` -> (int, NoneType)."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (NoneType if hint is None else hint,)


def _reader(hint: object) -> Callable[[Event, str], object]:
    types = members(hint)
    read_one = _READERS[types[0]] if len(set(types) - {NoneType}) < 2 else _either
    neutral = _NEUTRAL.get(types[0]) if NoneType not in types and not is_key(hint) else None
    if neutral is None:
        return read_one
    return lambda line, name: neutral if (value := read_one(line, name)) is None else value


def _boolean(line: Event, name: str) -> bool | None:
    value = line.get(name)
    return value if isinstance(value, bool) else None


def _texts(line: Event, name: str) -> dict[str, str]:
    value = line.get(name)
    return {key: item for key, item in value.items() if isinstance(item, str)} if isinstance(value, dict) else {}


def _integers(line: Event, name: str) -> dict[str, int]:
    return {key: int(value or 0) for key, value in numbers(line, name).items()}


def _integers_of_list(line: Event, name: str) -> tuple[int, ...]:
    value = line.get(name)
    return tuple(item for item in value if type(item) is int) if isinstance(value, list) else ()


def _numbers(line: Event, name: str) -> dict[str, float]:
    return {key: value for key, value in numbers(line, name).items() if value is not None}


def _either(line: Event, name: str) -> str | int | None:
    return text(line, name) or integer(line, name)


def _nothing(line: Event, name: str) -> None:
    del line, name


def _rows(line: Event, name: str) -> tuple[dict[str, Any], ...]:
    value = line.get(name)
    return tuple(row for row in value if isinstance(row, dict)) if isinstance(value, list) else ()


_READERS: dict[object, Callable[[Event, str], object]] = {
    int: integer,
    float: number,
    str: text,
    bool: _boolean,
    NoneType: _nothing,
    tuple[str, ...]: names,
    tuple[int, ...]: _integers_of_list,
    tuple[RankRow, ...]: _rows,
    tuple[StuckGroup, ...]: _rows,
    dict[str, str]: _texts,
    dict[str, int]: _integers,
    dict[str, float]: _numbers,
    dict[str, float | None]: lambda line, name: numbers(line, name) or None,
}
_NEUTRAL: dict[object, object] = {int: 0, float: 0.0, str: "", bool: False}
_KNOWN = {record.event: (record, _readers(record)) for record in EVENTS}
