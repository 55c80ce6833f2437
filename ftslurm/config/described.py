"""Describes every setting: its default and its meaning, for the terminal and for the pages.

Everything is read from the schema: the meaning of a setting is the comment beside it.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING as REQUIRED
from dataclasses import Field
from functools import cache
from itertools import takewhile
from types import ModuleType
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
    comments = field_comments(schema)
    for inside, key, kind, field in declared(section, prefix):
        default = field.default if field.default_factory is REQUIRED else field.default_factory()
        shown = None if default == schema.MISSING else written(default)
        yield Setting(key, shown, comments[inside.__name__, field.name], kind, field)


@cache
def field_comments(module: ModuleType) -> Mapping[tuple[str, str], str]:
    """Return the comment of each field of a class, by their names; that of a name of the module itself is below ""."""
    lines = (source := inspect.getsource(module)).splitlines()
    tree = ast.parse(source)
    scopes = [("", tree.body), *((one.name, one.body) for one in tree.body if isinstance(one, ast.ClassDef))]
    return {
        (scope, ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])): _comment(node, lines)
        for scope, body in scopes
        for node in body
        if isinstance(node, (ast.AnnAssign, ast.Assign))
    }


def _comment(node: ast.stmt, lines: Sequence[str]) -> str:
    """Return the lines of comment above a statement, and what follows on its last line."""
    above = reversed(lines[: node.lineno - 1])
    before = [*takewhile(lambda line: line.startswith("# "), map(str.strip, above))][::-1]
    after = lines[(node.end_lineno or 0) - 1][node.end_col_offset or 0 :].strip()
    return " ".join(line.removeprefix("# ") for line in (*before, after)).strip()
