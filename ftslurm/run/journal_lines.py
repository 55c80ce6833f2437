"""Read lines of the journal as typed records (ftslurm/protocol/records.py).

Another version may have written a line, or a disk may have damaged it: an unknown event, or a line without its key
fields, is an UnknownEvent; any other field of a wrong type reads like a missing one (None, "", 0 or empty).
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from ftslurm.protocol.records import EVENTS, KEY, JournalRecord, UnknownEvent
from ftslurm.run.journal import Event, integer, number, text

UNKNOWN = UnknownEvent()


def read(line: Event) -> JournalRecord:
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
    return record(**values)


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


def _reader(hint: object, inside: bool = False) -> Callable[[Event, str], object]:
    """Return what reads a field of this type.

    Args:
        inside: it is of an item of a list or mapping, which is left out if it is of another type.
    """
    kinds, nullable = [kind for kind in members(hint) if kind is not NoneType], NoneType in members(hint)
    if len(kinds) != 1:
        return lambda line, name: (text(line, name) or integer(line, name)) if kinds else None
    kind: Any = kinds[0]
    if (of := get_origin(kind)) in (tuple, dict):
        inner = get_args(kind)[of is dict]
        item, any_value = _reader(inner, inside=True), NoneType in members(inner)

        def found(line: Event, name: str) -> object:
            given = _typed(line, name, dict if of is dict else list) or {}
            pairs = given.items() if of is dict else enumerate(given)
            values = ((key, item({name: value}, name)) for key, value in pairs)
            read = {key: value for key, value in values if value is not None or any_value}
            return tuple(read.values()) if of is tuple else read or (None if nullable else read)

        return found
    read_one = _SCALARS.get(kind) or (lambda line, name: _typed(line, name, dict if is_typeddict(kind) else kind))
    if nullable or inside or is_key(hint):
        return read_one
    return lambda line, name: kind() if (value := read_one(line, name)) is None else value


def _typed(line: Event, name: str, kind: type) -> Any:
    value = line.get(name)
    return value if isinstance(value, kind) else None


_SCALARS: dict[object, Callable[[Event, str], object]] = {int: integer, float: number, str: text}
_KNOWN = {record.event: (record, _readers(record)) for record in EVENTS}


class Fold:
    """A reader that keeps something of each record: how a run stands, where its time went, what comes next.

    Takes in the records of a journal one by one, each by the method that has the name of its event. Unknown events and
    fields are ignored, so that a journal of another version can be read.
    """

    time: float | None = None  # of the last record that has one

    @property
    def now(self) -> float:
        """Return that time, or 0 if there is none yet."""
        return self.time or 0.0

    def apply(self, event: Event) -> None:
        """Take in the next line."""
        record, time = read(event), number(event, "time")
        self.time = self.time if time is None else time
        handle = getattr(self, record.event, None)
        if handle is not None:
            handle(record)
