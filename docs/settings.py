"""Print the page of all settings, from ftslurm/config/schema.py and conf/: `python docs/settings.py`."""

from __future__ import annotations

import re
import types
from collections.abc import Collection
from dataclasses import Field, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ftslurm.config import schema
from ftslurm.config.described import described
from ftslurm.config.setting_names import INTERNAL

CONF = Path(__file__).parents[1] / "conf"
BEGIN = """\
# All settings

Write `section.name=value` on the command line of `ftslurm`, or `section=preset` for a preset; in Python give the same
words to `ftslurm.submit`. `ftslurm run --cfg job` prints what a run would have. Arguments of the script, quotes and
sweeps: [scripts.md](scripts.md).

The unit is part of a name: `_s` seconds, `_mb` MiB. `null` means not set.
"""
_KINDS = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`", Any: "see the meaning"}
HEAD = "\n| setting | value | default | meaning |\n|---|---|---|---|\n"


def page() -> str:
    """Return the page."""
    sections = get_type_hints(schema.Config)
    text = BEGIN
    for name, kind in sections.items():
        if not is_dataclass(kind) or name == INTERNAL:
            continue
        text += f"\n## {name}\n\n{plain(kind.__doc__ or '')}\n" + presets(name) + table(kind, f"{name}.")
        for key, entry in get_type_hints(kind).items():
            for inner in _sections(entry):
                one = "One entry of " if get_origin(entry) is list else ""
                text += f"\n### {one}`{name}.{key}`\n\n{plain(inner.__doc__ or '')}\n"
                text += table(inner, "")
    others = {name for name, kind in sections.items() if not is_dataclass(kind)}
    return text + "\n## Without a section\n" + table(schema.Config, "", others)


def _sections(hint: Any) -> list[Any]:
    """Return the dataclasses that a value of this type may hold."""
    return [hint] if is_dataclass(hint) else [one for inner in get_args(hint) for one in _sections(inner)]


def presets(section: str) -> str:
    """Return the list of a section's presets, each with the first sentence of its file."""
    found = ""
    for path in sorted((CONF / section).glob("*.yaml")):
        lines = [line.removeprefix("# ") for line in path.read_text().splitlines() if line.startswith("# ")]
        about = " ".join(line for line in lines if not line.startswith("@package"))
        sentence = re.split(r"(?<=\.)\s+(?=[A-Z])", about)[0]
        found += f"- `{section}={path.stem}`: {plain(sentence)}\n"
    return f"\nPresets:\n\n{found}" if found else ""


def table(section: Any, prefix: str, only: Collection[str] | None = None) -> str:
    """Return the table of a dataclass's settings."""
    rows = HEAD
    for one in described(section, prefix):
        name = one.key.removeprefix(prefix)
        if "." in name or (only is not None and name not in only):
            continue
        shown = "must be given" if one.default is None else f"`{one.default}`"
        rows += f"| `{one.key}` | {value(one.field, one.kind)} | {shown} | {plain(one.meaning)} |\n"
    return rows


def value(declared: Field[Any], hint: Any) -> str:
    """Return what a setting may be: its choices, or its type and limits."""
    least, most = declared.metadata.get("least"), declared.metadata.get("most")
    limits = [f"at least {least}"] if least is not None else []
    limits += [f"at most {most}"] if most is not None and most != schema.MAX_TIME else []
    return ", ".join([_kind(hint), *limits])


def _kind(hint: Any) -> str:
    if is_dataclass(hint):
        return "mapping, see below"
    if hint == schema.Option:
        return "text, number, truth or list"
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_kind(one) for one in get_args(hint) if one is not type(None))
    if get_origin(hint) is list:
        (inner,) = get_args(hint)
        if inner is Any:
            return "list"
        what = _kind(inner)
        return f"list, each {what}" if " or " in what else f"list of {what}".replace("list of mapping", "list")
    if get_origin(hint) is dict:
        inner = get_args(hint)[1]
        return "mapping" if inner is Any else f"mapping to {_kind(inner)}"
    return _KINDS[hint]


def plain(text: str) -> str:
    """Return text as it shows in a table of Markdown: nothing in it is markup, except what is between backquotes."""
    pieces = text.replace("|", r"\|").split("`")
    pieces[::2] = [re.sub(r"([*<])", r"\\\1", piece) for piece in pieces[::2]]
    return "`".join(pieces)


if __name__ == "__main__":
    print(page(), end="")
