"""Describes every setting in words: what it may be, its default, its meaning; for the terminal and for the pages.

Everything is read from the schema: the meaning of a setting is the comment beside it.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from dataclasses import MISSING as REQUIRED
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from ftslurm.config import schema
from ftslurm.config.value_limits import CHOICES, LIMITS, MAX_TIME

_KINDS = {int: "whole number", float: "number", str: "text", bool: "true or false", Any: "see the meaning"}


class Setting(NamedTuple):
    """One setting, in words."""

    key: str
    value: str  # what it may be
    default: str | None  # None: it must be given
    meaning: str


def described(section: Any = schema.Config, prefix: str = "") -> Iterator[Setting]:
    """Generate the settings of a dataclass, and of those inside it, in the order of the schema."""
    comments, hints = field_comments(), get_type_hints(section)
    for field in fields(section):
        key, hint = f"{prefix}{field.name}", hints[field.name]
        if is_dataclass(hint):
            yield from described(hint, f"{key}.")
            continue
        default = field.default if field.default_factory is REQUIRED else field.default_factory()
        shown = None if default == schema.MISSING else _written(default)
        yield Setting(key, value(key, hint), shown, comments[section.__name__, field.name])


def value(key: str, hint: Any) -> str:
    """Return what a setting may be: its choices, or its type and limits."""
    if key in CHOICES:
        return ", ".join(CHOICES[key])
    least, most = LIMITS.get(key, (None, None))
    limits = [f"at least {least}"] if least is not None else []
    limits += [f"at most {most}"] if most is not None and most != MAX_TIME else []
    return ", ".join([_kind(hint), *limits])


@cache
def field_comments() -> dict[tuple[str, str], str]:
    """Return the comment of each field, by class and name: the lines above it, or what follows on its line."""
    source = Path(schema.__file__).read_text()
    lines = source.splitlines()
    found = {}
    for made in (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)):
        for field in (node for node in made.body if isinstance(node, ast.AnnAssign)):
            above = []
            for line in reversed(lines[: field.lineno - 1]):
                if not line.strip().startswith("# "):
                    break
                above.insert(0, line.strip().removeprefix("# "))
            after = lines[(field.end_lineno or field.lineno) - 1][field.end_col_offset or 0 :].strip()
            words = " ".join([*above, after.removeprefix("# ")]).strip()
            found[made.name, ast.unparse(field.target)] = words
    return found


def _kind(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_kind(one) for one in get_args(hint) if one is not type(None))
    if get_origin(hint) is list:
        (inner,) = get_args(hint)
        return "list, see below" if is_dataclass(inner) else "list" if inner is Any else f"list of {_kind(inner)}"
    if get_origin(hint) is dict:
        inner = get_args(hint)[1]
        return "mapping" if inner is Any else f"mapping to {_kind(inner)}"
    return _KINDS[hint]


def _written(default: object) -> str:
    if isinstance(default, list):
        return "[" + ",".join(str(item) for item in default) + "]"
    if isinstance(default, float) and default.is_integer():
        return str(int(default))
    if default is None or isinstance(default, bool):
        return "null" if default is None else str(default).lower()
    return str(default)
