"""Write docs/settings.md from ftslurm/config/schema.py and conf/: `python docs/settings.py`."""

from __future__ import annotations

import ast
import re
import types
from dataclasses import MISSING as REQUIRED
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from ftslurm.config import schema
from ftslurm.config.overrides import INTERNAL

PAGE = Path(__file__).with_suffix(".md")
CONF = PAGE.parents[1] / "conf"
BEGIN = """\
# All settings

Write `section.name=value` on the command line of `ftslurm`, or `section=preset` for a preset; in Python give the same
words to `ftslurm.submit`. `ftslurm run --cfg job` prints what a run would have. Arguments of the script, quotes and
sweeps: [scripts.md](scripts.md).

The unit is part of a name: `_s` seconds, `_mb` MiB. `null` means not set.

This page is made by `docs/settings.py` from `ftslurm/config/schema.py` and `conf/`.
"""
HEAD = "\n| setting | value | default | meaning |\n|---|---|---|---|\n"
_KINDS = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`", Any: "see the meaning"}


def page() -> str:
    """Return the text of docs/settings.md."""
    comments = field_comments()
    sections = get_type_hints(schema.Config)
    text = BEGIN
    for name, kind in sections.items():
        if not is_dataclass(kind) or name == INTERNAL:
            continue
        text += f"\n## {name}\n\n{plain(kind.__doc__ or '')}\n" + presets(name) + table(kind, f"{name}.", comments)
        for key, entry in get_type_hints(kind).items():
            entries = [inner for inner in get_args(entry) if is_dataclass(inner)]
            for inner in entries:
                one = "One entry of " if get_origin(entry) is list else ""
                text += f"\n### {one}`{name}.{key}`\n\n{plain(inner.__doc__ or '')}\n"
                text += table(inner, "", comments)
    others = {name for name, kind in sections.items() if not is_dataclass(kind)}
    return text + "\n## Without a section\n" + table(schema.Config, "", comments, others)


def presets(section: str) -> str:
    """Return the list of a section's presets, each with the first sentence of its file."""
    found = ""
    for path in sorted((CONF / section).glob("*.yaml")):
        lines = [line.removeprefix("# ") for line in path.read_text().splitlines() if line.startswith("# ")]
        about = " ".join(line for line in lines if not line.startswith("@package"))
        sentence = re.split(r"(?<=\.)\s+(?=[A-Z])", about)[0]
        found += f"- `{section}={path.stem}`: {plain(sentence)}\n"
    return f"\nPresets:\n\n{found}" if found else ""


def table(section: Any, prefix: str, comments: dict[tuple[str, str], str], only: set[str] | None = None) -> str:
    """Return the table of a dataclass's settings."""
    hints = get_type_hints(section)
    rows = HEAD
    for field in fields(section):
        if only is not None and field.name not in only:
            continue
        key = f"{prefix}{field.name}"
        default = field.default if field.default_factory is REQUIRED else field.default_factory()
        shown = "must be given" if default == schema.MISSING else f"`{_written(default)}`"
        meaning = plain(comments[section.__name__, field.name])
        rows += f"| `{key}` | {value(field, hints[field.name])} | {shown} | {meaning} |\n"
    return rows


def value(declared: Field[Any], hint: Any) -> str:
    """Return what a setting may be: its choices, or its type and limits."""
    if choices := declared.metadata.get("choices"):
        return ", ".join(f"`{choice}`" for choice in choices)
    least, most = declared.metadata.get("least"), declared.metadata.get("most")
    limits = [f"at least {least}"] if least is not None else []
    limits += [f"at most {most}"] if most is not None and most != schema.MAX_TIME else []
    return ", ".join([_kind(hint), *limits])


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


def plain(text: str) -> str:
    """Return text as it shows in a table of Markdown: nothing in it is markup, except what is between backquotes."""
    pieces = text.replace("|", r"\|").split("`")
    pieces[::2] = [re.sub(r"([*<])", r"\\\1", piece) for piece in pieces[::2]]
    return "`".join(pieces)


def _kind(hint: Any) -> str:
    if is_dataclass(hint):
        return "mapping, see below"
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


if __name__ == "__main__":
    print(page(), end="")
