"""The state of a run as JSON, whole or as changes, and back.

    decode(encode(state)) == state
    merge(before, changes(before, after)) == after

Both hold for every field that is kept: all but those in ANEW, and those derived from other fields (compare=False).
One notation serves both. It describes a value relative to what is already there: the previous value, the default of the
field, or nothing (MISSING).

    int, float, str, bool, None    itself
    Enum                           the name of the member
    tuple                          [value, ...]
    frozenset                      [value, ...], sorted
    Mapping, Map                   [[key that is gone, ...], [[key, value], ...]]
    Value                          {field that differs: value, ...}; a new one also has "is": the name of its class

A whole state begins {"is": "RunState", ...}. The change of one unit is {"table": {"by_name": [[], [["group-0001",
{"phase": "STOPPING"}]]]}}. A Mapping keeps its order. The readers are made from the types of the fields, so a new field
is kept without further code. A type without a notation raises TypeError when this module is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from immutables import Map

from ftslurm.core.state.model import Attempt, Comparisons, Reached, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.unit_table import UnitTable
from ftslurm.protocol.value_class import Value

Json: TypeAlias = Any
Reader: TypeAlias = Callable[[Json, Any], Any]  # notation, what is there -> value

# Fields that are not kept, because most reports change them -> why a new controller does not need them.
ANEW: Mapping[type, Mapping[str, str]] = {
    Unit: {"pulses": "the next heartbeat of each task brings it"},
    Attempt: {
        "untold": "the next progress report brings it",
        "last_told": "the next progress line may come earlier",
        "looked": "what the attempt waits for is looked at earlier",
    },
    Comparisons: {"steps": "the next digests are compared"},
    Reached: {"next": "it looks at once whether groups stand still"},
    RunState: {"told": "the orders are sent again"},
}
SCALARS = {bool, int, float, str, NoneType}
CLASS = "is"  # a keyword of Python, so no field has this name


class Unreadable(ValueError):
    """The JSON is not a state, or not changes of the given state."""


def encode(state: RunState) -> Json:
    """Return the whole state."""
    return _fields(MISSING, state)


def decode(json: Json) -> RunState:
    """Return the state that was encoded.

    Raises:
        Unreadable: something is malformed, missing or unknown.
    """
    return _readable(json, MISSING)


def changes(before: RunState, after: RunState) -> Json:
    """Return what `merge` needs to turn `before` into `after`, or {} if no field differs that is kept."""
    return _fields(before, after)


def merge(state: RunState, changes: Json) -> RunState:
    """Return the state with these changes applied. Fields that are not kept stay as they are.

    Raises:
        Unreadable: something is malformed or unknown, or the changes do not apply to this state.
    """
    return _readable(changes, state)


# --- writing ---------------------------------------------------------------------------------------------------------


def _difference(before: Any, after: Any) -> Json:
    """Return the notation of a value, or MISSING if it is the same as what is there."""
    if before is after:
        return MISSING
    if isinstance(after, Value):
        return _fields(before, after) or MISSING
    if isinstance(after, Mapping):
        return _entries(before, after)
    now = _whole(after)
    return now if now != _whole(before) else MISSING


def _whole(value: Any) -> Json:
    """Return the notation of a value that has no changes of its own: it is always written as a whole."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple | frozenset):
        items = [_difference(MISSING, one) for one in value]
        return items if isinstance(value, tuple) else sorted(items, key=repr)
    return value


def _fields(before: Any, after: Value) -> Json:
    kind: Any = type(after)
    kept, now = _kept(kind), vars(after)
    was, found = (vars(before), {}) if type(before) is kind else (kept, {CLASS: kind.__name__})
    for name in kept:
        if (difference := _difference(was[name], now[name])) is not MISSING:
            found[name] = difference
    return found


def _entries(before: Any, after: Any) -> Json:
    was = before if isinstance(before, Mapping) else {}
    stay = {key: was[key] for key in was if key in after}
    if type(after) is dict and [*stay] != [*after][: len(stay)]:
        stay = {}  # the order has changed: remove all entries and add them again
    gone = [_difference(MISSING, key) for key in was if key not in stay]
    put = [
        [_difference(MISSING, key), difference]
        for key, value in after.items()
        if (difference := _difference(stay.get(key, MISSING), value)) is not MISSING
    ]
    return [gone, put] if gone or put or was is not before else MISSING


@cache
def _kept(kind: Any) -> dict[str, Any]:
    """Return the kept fields of a class and their defaults. A default that a function makes counts as MISSING."""
    return {one.name: one.default for one in fields(kind) if one.compare and one.name not in ANEW.get(kind, ())}


# --- reading ---------------------------------------------------------------------------------------------------------


def _readable(json: Json, before: Any) -> RunState:
    """Read a state. Readers leave it to Python to refuse most malformed JSON, so its errors are caught here."""
    try:
        state: RunState = _STATE(json, before)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error
    return state


@cache
def _reader(kind: Any) -> Reader:
    """Return the reader of a type."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _of_union({*inside})
    if origin in (Mapping, Map):
        return _of_mapping(dict if origin is Mapping else Map, *map(_reader, inside))
    if origin is frozenset or inside[1:] == (...,):
        item = _reader(inside[0])
        return lambda json, _: origin([item(one, MISSING) for one in _list(json)])
    if origin is tuple:
        items = [_reader(one) for one in inside]
        return lambda json, _: tuple([read(one, MISSING) for read, one in zip(items, _list(json), strict=True)])
    if kind in SCALARS:
        return _of_union({kind})
    if kind is UnitTable:
        return _of_units()
    if issubclass(kind, Enum):
        return lambda json, _: kind[json]
    return _of_values([kind])


def _of_union(kinds: set[Any]) -> Reader:
    """Return the reader of scalars, or of another type or several Values, which may be None."""
    some = kinds - {NoneType}
    if some <= SCALARS:
        types = (*kinds, int) if float in kinds else (*kinds,)
        return lambda json, _: _of_type(json, types)
    read = _reader(*some) if len(some) == 1 else _of_values(some)
    return lambda json, before: None if json is None and some != kinds else read(json, before)


def _of_mapping(make: Any, key: Reader, value: Reader) -> Reader:
    def read(json: Json, before: Any) -> Any:
        entries = {**before} if isinstance(before, Mapping) else {}
        gone, put = map(_list, _list(json))
        for one in gone:
            del entries[key(one, MISSING)]
        for one, now in map(_list, put):
            name = key(one, MISSING)
            entries[name] = value(now, entries.get(name, MISSING))
        return make(entries)

    return read


def _of_values(kinds: Iterable[Any]) -> Reader:
    """Return the reader of Values of these classes, and of the classes below them."""
    known, those = {}, [*kinds]
    for kind in those:
        those += kind.__subclasses__()
        hints = get_type_hints(kind)
        known[kind.__name__] = kind, {name: _reader(hints[name]) for name in _kept(kind)}

    def read(json: Json, before: Any) -> Any:
        kind, readers = known[json.get(CLASS, type(before).__name__)]
        was = {} if CLASS in json else vars(before)
        there = {**_kept(kind), **was}
        values = {name: readers[name](one, there[name]) for name, one in json.items() if name != CLASS}
        return kind(**{**was, **values})

    return read


def _of_units() -> Reader:
    read_fields = _of_values([UnitTable])

    def read(json: Json, before: Any) -> UnitTable:
        table: UnitTable = read_fields(json, before)
        if sorted(unit.name for unit in table) != sorted(table.by_name):
            raise ValueError("these are not the Lighthouse, groups from 0 on and standbys")
        return table.indexed(UnitTable() if before is MISSING else before)

    return read


def _list(json: Json) -> Any:
    return _of_type(json, list)


def _of_type(json: Json, types: Any) -> Json:
    if not isinstance(json, types):
        raise TypeError(f"{json!r:.80} is no {types}")
    return json


_STATE = _reader(RunState)
