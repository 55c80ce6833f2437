"""Read what people type: `key=value` on a command line or in the API, and what a sweeper asks for.

A setting's type decides how its value is read. Text arrives as the characters that were typed. Only these have a
meaning in text: quotes around all of it, which are removed; `${...}`, the value of another setting; and in a sweep (-m)
a comma. Brackets make a list or a mapping only where the schema has one. What is no setting is Hydra's, as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ftslurm.config.schema import Config
from ftslurm.config.setting_names import INTERNAL, no_setting
from ftslurm.config.typed_values import PLAIN, below, takes
from ftslurm.errors import ConfigError

# Quotes count where a word begins and ends: those in it's and 5" do not.
_QUOTED = r"""(?<!\w)(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')(?!\w)"""
_SWEEP = r"(choice|shuffle|sort|tag|range|interval|glob)\((.*)\)"  # Hydra's notation of several values


class Override(NamedTuple):
    """One override, as `groups.count=3`, `+experiment=mine` or `~faults`."""

    word: str  # as it was typed
    key: str
    text: str  # what follows the "="
    kinds: tuple[Any, ...]  # the types that the setting may have; (): it chooses a preset, or is Hydra's own setting


def parse(word: str, folders: Sequence[Path]) -> Override:
    """Parse one override.

    Args:
        folders: those of presets.

    Raises:
        ConfigError: it is none, or there is no such setting.
    """
    head, sign, text = word.partition("=")
    key = head.lstrip("+~")
    if key.split() != [key] or not (sign or head.startswith("~")):
        raise ConfigError(
            f"{word!r} is no setting: write key=value, without spaces in the key, as in job.script=train.py, and the "
            f"arguments of the script after --, as in: -- {word}"
        )
    group = key.partition("@")[0]
    is_group = not text.startswith("{") and any(os.path.isdir(folder / group) for folder in folders)
    if is_group or "/" in group.partition(".")[0] or key.startswith("hydra."):
        return Override(word, key, text, ())
    kinds: tuple[Any, ...] = (Config,)
    for name in key.split("."):
        kinds = below(kinds, name)
    if not kinds or key.startswith(INTERNAL):
        raise no_setting(key)
    return Override(word, key, text, kinds)


def value(kinds: Sequence[Any], text: str) -> Any:
    """Return what a text means for a setting that may have these types.

    Raises:
        ConfigError: it cannot be told where its words begin and end.
    """
    ends, inner = text[:1] + text[-1:], text[1:-1].strip()
    if (unquoted := without_quotes(text)) != text:
        return unquoted
    if ends == "[]" and takes(kinds, list):
        return [value(below(kinds, "0"), part) for part in split(inner)] if inner else []
    if ends == "{}" and takes(kinds, dict):
        pairs = [split(part, ":") for part in split(inner)] if inner else []
        if all(rest for _, *rest in pairs):
            return {(name := without_quotes(head)): value(below(kinds, name), ":".join(rest)) for head, *rest in pairs}
    return PLAIN.get(text, text)


def split(text: str, at: str = ",") -> list[str]:
    """Return the parts of a text between those signs that are neither in brackets nor in quotes.

    Raises:
        ConfigError: its brackets do not match, or a part is empty.
    """
    parts, depth, least = [""], 0, 0
    for piece in re.findall(f"{_QUOTED}|.", text, re.DOTALL):
        depth += (piece in "([{") - (piece in ")]}")
        least = min(least, depth)
        if piece == at and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    parts = [part.strip() for part in parts]
    if depth or least or "" in parts:
        raise ConfigError(
            f"{text:.200}: brackets do not match, or nothing is between two commas; put quotes around a word with "
            f'such signs, as in "a(b", and write "" for an empty one'
        )
    return parts


# --- quotes -----------------------------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    """Return a text in quotes. In an override it arrives as it is."""
    return _in_quotes(without_references(text))


def without_references(text: str) -> str:
    """Return a text in which ${ refers to no setting."""
    return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + "\\${", text)


def without_quotes(text: str) -> str:
    """Return a text without the quotes around it, if it has some."""
    if re.fullmatch(_QUOTED, text, re.DOTALL) is None:
        return text
    return re.sub(rf"(\\+)({text[0]}|\Z)", lambda found: found[1][: len(found[1]) // 2] + found[2], text[1:-1])


def _in_quotes(text: str) -> str:
    return '"' + re.sub(r'(\\*)("|\Z)', lambda found: found[1] * 2 + (found[2] and '\\"'), text) + '"'


# --- sweeps -----------------------------------------------------------------------------------------------------------


def is_swept(one: Override, multirun: bool) -> bool:
    """Return whether an override has several values, as 1,2 or interval(0,1), of which each run of a sweep has one.

    Raises:
        ConfigError: it has, and it is to be one run.
    """
    if one.key == "hydra/launcher" and one.text != "basic":
        raise ConfigError(
            f"{one.word}: ftslurm submits each run itself, to Slurm where there is one; leave the launcher out. With "
            f"-m it makes a run of each combination, and what a launcher would ask of Slurm are settings here: "
            f"cluster.partition, cluster.time, groups.nodes, groups.gpus, ... (ftslurm help scripts)"
        )
    if not one.text or one.key.startswith("hydra") or (str in one.kinds and not multirun):
        return False
    several = re.fullmatch(_SWEEP, one.text, re.DOTALL) is not None or len(split(one.text)) > 1
    if several and not multirun:
        raise ConfigError(
            f"{one.word} has several values: add --multirun (-m) for one run with each, or write {one.key}=[...] for a "
            f"list"
        )
    return several


def for_sweeper(one: Override) -> str:
    """Return an override with several values in Hydra's notation. Each is in quotes: Hydra would change 1.10 to 1.1."""
    return f"{one.word.partition('=')[0]}={_in_hydras_notation(one.text)}"


def _in_hydras_notation(text: str) -> str:
    found = re.fullmatch(_SWEEP, text, re.DOTALL)
    if found is None:
        return ",".join(map(_in_quotes, split(text)))
    name, inside = found.groups()
    last = split(inside)[-1]
    if name in ("range", "interval", "glob") or (name == "tag" and not last.startswith("choice")):
        return text
    inside = _in_hydras_notation(last if name == "tag" else inside)  # tags are for numbers
    return inside if name in ("tag", "choice") else f"{name}({inside})"
