"""Read what people type: `key=value` on a command line or in the API.

A setting's type decides how its value is read. Text arrives as the characters that were typed. Only these have a
meaning in text: quotes around all of it, which are removed; `${...}`, the value of another setting; and in a sweep (-m)
a comma. Brackets make a list or a mapping only where the schema has one; where it has text, too, what is no whole list
or mapping is text, as {RANK}-{WORLD_SIZE}. What chooses a preset is Hydra's, as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ftslurm.config.schema import Config
from ftslurm.config.setting_names import INTERNAL, no_setting
from ftslurm.config.typed_values import PLAIN, below, takes
from ftslurm.errors import ConfigError

# Quotes count where a word begins and ends: those in it's and 5" do not.
_QUOTED = r"""(?<!\w)(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')(?!\w)"""
_SWEEP = r"(choice|range|shuffle|sort|tag|interval|glob)\((.*)\)"  # of several values; the last five only Hydra has


class Override(NamedTuple):
    """One override, as `groups.count=3`, `+experiment=mine` or `~faults`."""

    word: str  # as it was typed
    key: str
    text: str  # what follows the "="
    kinds: tuple[Any, ...]  # the types that the setting may have; (): it chooses a preset


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
    if key.startswith("hydra"):
        raise ConfigError(
            f"{word}: Hydra only composes presets here, so its own settings are refused; -m makes a run of each "
            f"combination of values, --config-dir names a folder of your presets, and the page scripts (ftslurm help "
            f"scripts) has a loop that chooses values by the results of earlier runs"
        )
    if is_group or "/" in group.partition(".")[0]:
        return Override(word, key, text, ())
    kinds: tuple[Any, ...] = (Config,)
    for name in key.split("."):
        kinds = below(kinds, name)
    if not kinds or key.startswith(INTERNAL):
        raise no_setting(key)
    return Override(word, key, text, kinds)


def value(kinds: Sequence[Any], text: str, key: str) -> Any:
    """Return what a text means for a setting that may have these types.

    Raises:
        ConfigError: it cannot be told where its words begin and end.
    """
    ends, inner = text[:1] + text[-1:], text[1:-1].strip()
    if (unquoted := without_quotes(text)) != text:
        return unquoted
    with suppress(*[ConfigError] * (str in kinds)):
        if ends == "[]" and takes(kinds, list):
            return [value(below(kinds, "0"), part, key) for part in split(inner, key)] if inner else []
        if ends == "{}" and takes(kinds, dict):
            pairs = [split(part, key, ":") for part in split(inner, key)] if inner or str in kinds else []
            if all(rest for _, *rest in pairs):
                return {
                    (name := without_quotes(head)): value(below(kinds, name), ":".join(rest), key)
                    for head, *rest in pairs
                }
    return PLAIN.get(text, text)


def split(text: str, key: str, at: str = ",") -> list[str]:
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
            f"{key}: brackets do not match, or nothing is between two commas: {text:.200}; put quotes around a word "
            f'with such signs, as in "a(b", and write "" for an empty one'
        )
    return parts


# --- quotes -----------------------------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    """Return a text in quotes. In an override it arrives as it is."""
    return in_quotes(without_references(text))


def without_references(text: str) -> str:
    """Return a text in which ${ refers to no setting."""
    return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + "\\${", text)


def without_quotes(text: str) -> str:
    """Return a text without the quotes around it, if it has some."""
    if re.fullmatch(_QUOTED, text, re.DOTALL) is None:
        return text
    return re.sub(rf"(\\+)({text[0]}|\Z)", lambda found: found[1][: len(found[1]) // 2] + found[2], text[1:-1])


def in_quotes(text: str) -> str:
    return '"' + re.sub(r'(\\*)("|\Z)', lambda found: found[1] * 2 + (found[2] and '\\"'), text) + '"'


# --- sweeps -----------------------------------------------------------------------------------------------------------


def check_single(one: Override) -> None:
    """Refuse an override that has several values.

    Raises:
        ConfigError: it has.
    """
    if str not in one.kinds and len(alternatives(one)) > 1:
        raise ConfigError(
            f"{one.word} has several values: add --multirun (-m) for one run with each, or write {one.key}=[...] for a "
            f"list"
        )


def alternatives(one: Override) -> list[Override]:
    """Return an override for each of the values that one has in a sweep: 1,2 or choice(1,2) or range(1,3).

    Raises:
        ConfigError: it has another notation of Hydra's.
    """
    if not one.text:
        return [one]
    head = one.word.partition("=")[0]
    return [one._replace(word=f"{head}={text}", text=text) for text in _values(one)]


def _values(one: Override) -> list[str]:
    """Return the texts between which an override has a run of a sweep choose."""
    found = re.fullmatch(_SWEEP, one.text, re.DOTALL)
    if found is None or found[1] == "choice":
        return split(one.text if found is None else found[2], one.key)
    if found[1] == "range":
        with suppress(ValueError, TypeError):
            return list(map(str, range(*map(int, found[2].split(",")))))
    raise ConfigError(f"{one.word}: write the values, as in {one.key}=1,2, or whole numbers as {one.key}=range(1,9,2)")
