"""Make the JSON of a value from its type: what a key of a TypedDict holds is the attribute of its name."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints, is_typeddict

from ftslurm.run.journal_lines import members

Kind = TypeVar("Kind")
DIGITS = 4  # of a number after its point


_hints = cache(get_type_hints)


def packed(kind: type[Kind], *values: object, **known: object) -> Kind:
    """Return the keys of a TypedDict.

    Args:
        values: each key is the attribute of the first of these that has it.
        known: keys that are called or computed otherwise.
    """
    made: Any = {}
    for name, hint in _hints(cast(Hashable, kind)).items():
        owner = next((value for value in values if hasattr(value, name)), None)
        made[name] = _packed(hint, known[name] if name in known else getattr(owner, name))
    return cast(Kind, made)


def _packed(hint: object, value: Any) -> Any:
    (one,) = set(members(hint)) - {NoneType}
    if value is None or (is_typeddict(one) and isinstance(value, dict)):
        return value
    if is_typeddict(one):
        return packed(cast(type, one), value)
    if get_origin(one) is list:
        return [_packed(get_args(one)[0], item) for item in value]
    if get_origin(one) is dict:
        return {str(name): _packed(get_args(one)[1], item) for name, item in dict(value).items()}
    return round(value, DIGITS) if one is float else value
