"""Describes every setting: its default and its meaning, for the terminal and for the pages.

Everything is read from the schema: the meaning of a setting is the comment beside it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import MISSING as REQUIRED
from dataclasses import Field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ftslurm.config import schema
from ftslurm.config.setting_names import declared
from ftslurm.config.typed_values import written


class Setting(NamedTuple):
    """One setting."""

    key: str
    default: str | None  # None: it must be given
    meaning: str
    kind: Any  # its type
    field: Field[Any]


def described(section: Any = schema.Config, prefix: str = "") -> Iterator[Setting]:
    """Generate the settings of a dataclass, and of those inside it, in the order of the schema."""
    comments = field_comments()
    for inside, key, kind, field in declared(section, prefix):
        default = field.default if field.default_factory is REQUIRED else field.default_factory()
        shown = None if default == schema.MISSING else written(default)
        yield Setting(key, shown, comments[inside.__name__, field.name], kind, field)


@cache
def field_comments() -> dict[tuple[str, str], str]:
    """Return the comment of each field, by class and name: the lines above it, or what follows on its line."""
    source = Path(schema.__file__).read_text()
    lines = source.splitlines()
    found = {}
    for made in (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)):
        for field in (node for node in made.body if isinstance(node, ast.AnnAssign)):
            above: list[str] = []
            for line in reversed(lines[: field.lineno - 1]):
                if not line.strip().startswith("# "):
                    break
                above.insert(0, line.strip().removeprefix("# "))
            after = lines[(field.end_lineno or field.lineno) - 1][field.end_col_offset or 0 :].strip()
            words = " ".join([*above, after.removeprefix("# ")]).strip()
            found[made.name, ast.unparse(field.target)] = words
    return found
