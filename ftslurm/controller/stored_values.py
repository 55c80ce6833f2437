"""Converts dataclasses, named tuples and enums to JSON and back. The JSON names no class.

`unpack` checks all data against the types, so a file of another origin can only raise an error.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_hints = lru_cache(get_type_hints)


def pack(value: object) -> Any:
    """Convert a value to what json.dumps accepts."""
    if is_dataclass(value):
        return {field.name: pack(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return [[pack(key), pack(item)] for key, item in value.items()]
    if isinstance(value, (set, frozenset)):
        return [pack(item) for item in sorted(value)]
    if isinstance(value, (tuple, list)):
        return [pack(item) for item in value]
    return value


def unpack(kind: type[T], data: object) -> T:
    """Convert packed data back to a value of this type.

    Raises:
        ValueError: the data is no such value, or of a version with other fields.
    """
    try:
        made: T = _unpack(kind, data)
    except (TypeError, KeyError) as error:
        raise ValueError(f"no {kind.__name__}: {error!r}") from error
    return made


def _unpack(kind: Any, data: Any) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (other,) = (option for option in inner if option is not type(None))
        return None if data is None else _unpack(other, data)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return _record(kind, data)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if origin in (dict, Mapping):
        return {_unpack(inner[0], key): _unpack(inner[1], item) for key, item in _list(data)}
    if origin is tuple and inner[-1] is not Ellipsis:
        return tuple(_unpack(part, item) for part, item in zip(inner, _list(data), strict=True))
    if origin in (tuple, list, set, frozenset):
        return origin(_unpack(inner[0], item) for item in _list(data))
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if type(data) is not kind:
        raise ValueError(f"{data!r:.80} is no {kind.__name__}")
    return data


def _record(kind: Any, data: Any) -> Any:
    hints = _hints(kind)
    if is_dataclass(kind):
        hints = {field.name: hints[field.name] for field in fields(kind)}
    else:
        data = dict(zip(kind._fields, _list(data), strict=True))
    if not isinstance(data, dict) or data.keys() != hints.keys():
        raise ValueError(f"other fields than those of {kind.__name__}")
    return kind(**{name: _unpack(hints[name], data[name]) for name in hints})


def _list(data: object) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError(f"{data!r:.80} is no list")
    return data
