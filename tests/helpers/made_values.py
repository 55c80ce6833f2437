"""Values of the core made from the types of their fields, so that tests try fields which nobody has listed.

Every number, text and member of an enum depends on a seed: values of two seeds differ, where their types allow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from functools import cache
from math import inf
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from immutables import Map

from ftslurm.core.state.kept import ANEW
from ftslurm.core.state.model import Unit, replace
from ftslurm.core.state.unit_names import LIGHTHOUSE, group_unit, standby_unit
from ftslurm.core.state.unit_table import UnitTable
from ftslurm.protocol.value_class import Value

FLOATS = (0.25, -inf, 1e300, inf, 7)
SEEDS = range(1, 9)


class Field(NamedTuple):
    """A field of a class of Values."""

    kind: Any
    name: str
    hint: Any
    default: Any  # MISSING: it has none

    def __str__(self) -> str:
        return f"{self.kind.__name__}.{self.name}"


def made(kind: Any, seed: int = 1) -> Any:
    """Return a value of a type; no field of a Value in it is its default."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        some = [one for one in inside if one is not NoneType]
        return made(some[seed % len(some)], seed)
    if origin in (Mapping, Map):
        make = dict if origin is Mapping else Map
        return make({made(inside[0], one): made(inside[1], one) for one in (seed + 1, seed)})
    if origin in (tuple, frozenset):
        fixed = origin is tuple and inside[-1] is not ...
        items = enumerate(inside) if fixed else ((one, inside[0]) for one in range(1 + seed % 2))
        return origin(made(item, seed + one) for one, item in items)
    if kind is UnitTable:
        return table(seed)
    return _of_class(kind, seed)


def _of_class(kind: type, seed: int) -> Any:
    simple = {bool: seed % 2 == 0, int: 1000 + seed, float: FLOATS[seed % len(FLOATS)], str: f"é\udce9\n{seed}"}
    if kind in simple:
        return simple[kind]
    if issubclass(kind, Enum):
        members = list(kind)
        return members[seed % len(members)]
    if issubclass(kind, Value):
        below = kind.__subclasses__()
        return (
            _of_class(below[seed % len(below)], seed)
            if below
            else kind(**{one.name: _set(one, seed) for one in of(kind)})
        )
    if issubclass(kind, tuple):
        return kind(*(made(hint, seed) for hint in get_type_hints(kind).values()))
    raise TypeError(f"no value of {kind}")


def _set(one: Field, seed: int) -> Any:
    return next(value for n in SEEDS if (value := made(one.hint, seed + n)) != one.default)


def table(seed: int = 1, groups: int = 1, standbys: int = 1) -> UnitTable:
    """Return a table of such units: the Lighthouse, groups and standbys."""
    names = [(LIGHTHOUSE, None), *((group_unit(one), one) for one in range(groups))]
    names += [(standby_unit(one), None) for one in reversed(range(standbys))]
    units = ((name, group, made(Unit, seed + one)) for one, (name, group) in enumerate(names))
    return UnitTable.of(replace(unit, name=name, group=group) for name, group, unit in units)


def of(kind: Any) -> tuple[Field, ...]:
    """Return the fields of a class that hold what the others do not."""
    return _of(kind)


@cache
def _of(kind: Any) -> tuple[Field, ...]:
    hints = get_type_hints(kind)
    return tuple(Field(kind, one.name, hints[one.name], one.default) for one in fields(kind) if one.compare)


def fields_below(kind: Any) -> list[Field]:
    """Return the fields of all Values that a value of this type can hold in fields that are kept."""
    found: dict[str, Field] = {}

    def look(kind: Any) -> None:
        for inside in get_args(kind):
            look(inside)
        if isinstance(kind, type) and issubclass(kind, Value):
            for one in of(kind):
                if str(one) not in found:
                    found[str(one)] = one
                    if one.name not in ANEW.get(kind, ()):
                        look(one.hint)
            for below in kind.__subclasses__():
                look(below)

    look(kind)
    return list(found.values())


def others(one: Field) -> Iterator[Any]:
    """Return values for a field: some that are made, its default, None if it may be None."""
    yield from (made(one.hint, seed) for seed in (3, 4))
    if one.default is not MISSING:
        yield one.default
    if NoneType in get_args(one.hint):
        yield None


Changes = Mapping[Any, Mapping[str, Any]]  # class -> field -> its new value


def changed(value: Any, changes: Changes) -> Any:
    """Return the value with these fields changed wherever it has them."""
    if isinstance(value, UnitTable):
        return UnitTable.of(changed(unit, changes) for unit in value)
    kind: Any = type(value)
    if issubclass(kind, Value):
        inside = {one.name: changed(getattr(value, one.name), changes) for one in of(kind)}
        return replace(value, **{**inside, **changes.get(kind, {})})
    if isinstance(value, Mapping):
        entries = {changed(key, changes): changed(one, changes) for key, one in value.items()}
        return Map(entries) if isinstance(value, Map) else entries
    if kind in (tuple, frozenset):
        return kind(changed(one, changes) for one in value)
    return value
