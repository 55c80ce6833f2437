"""Answers a TAB of the shell (`ftslurm completion SHELL` sets it up): verbs, their options, runs, settings, presets.

It must answer while a person waits: verbs and options come from the parsers (cli/verbs.py), and the settings are
imported only where one is being typed.
"""

from __future__ import annotations

import argparse
import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from argcomplete.finders import CompletionFinder

from ftslurm.cli.verbs import VERBS, parser_of


class Finder(CompletionFinder):
    """argcomplete's, for words in any order: those that are no options are offered also behind options."""

    def collect_completions(
        self, active_parsers: list[Any], parsed_args: argparse.Namespace, cword_prefix: str
    ) -> list[str]:
        parser = active_parsers[0]
        if not any(action.option_strings for action in parser.active_actions):
            parser.active_actions = parser._get_positional_actions()
        return super().collect_completions(active_parsers, parsed_args, cword_prefix)


def answer() -> None:
    """Print what the word under the cursor may become, as the code of the shell reads it, and exit."""
    words = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split(" ")
    first = next(filter(None, words[1:-1]), "")
    os.environ["_ARGCOMPLETE"] = str(1 + (first in VERBS))  # from which word on the parser reads
    Finder()(parser(first), always_complete_options=False, default_completer=complete)  # type: ignore[arg-type]


def parser(first: str) -> argparse.ArgumentParser:
    """Return the parser of what follows the first word, if that is a verb; else, or if it is "", that of `run`."""
    made = parser_of(VERBS.get(first, VERBS["run"]))
    made.set_defaults(first=not first)
    return made


def complete(prefix: str, action: argparse.Action, parsed_args: argparse.Namespace, **_: object) -> Iterator[str]:
    """Generate what a word may become, as the value of an option or as an argument; it may begin in another way."""
    if action.metavar in ("DIR", "FILE"):
        yield from paths(prefix)
    elif action.metavar == "RUN":
        yield from (config.parent.name for config in Path(parsed_args.root).glob("*/config.yaml"))
    elif action.dest == "overrides":
        yield from VERBS if parsed_args.first else ()
        yield from settings(prefix, getattr(parsed_args, "config_dir", None))


def settings(prefix: str, own: str | None) -> Iterator[str]:
    """Generate key=, or the values of the key that is typed already. `own`: a folder with presets of the user's."""
    from ftslurm.config.setting_names import declared

    key, given, text = prefix.partition("=")
    known = {one.key: one for one in declared()}
    sections = {name.partition(".")[0] for name in known if "." in name}
    if not given:
        yield from (f"{name}=" for name in sections if _presets(name, own))
        if key:  # there are more than a hundred
            yield from (f"{name}=" for name in known)
        return
    values: Iterable[str] = ()
    if key in sections:
        values = _presets(key, own)
    elif key in known:
        kind = known[key].kind
        if "path" in known[key].field.metadata:
            values = paths(text)
        elif get_origin(kind) is Literal:
            values = get_args(kind)
        elif kind in (bool, bool | None):
            values = ("true", "false")
    yield from (f"{key}={value}" for value in values)


def paths(prefix: str) -> Iterator[str]:
    """Generate the folders and files whose path begins so."""
    for path in glob.iglob(f"{glob.escape(prefix)}*"):  # noqa: PTH207
        yield f"{path}/" if os.path.isdir(path) else path


def _presets(section: str, own: str | None) -> set[str]:
    from ftslurm.config.schema import shipped

    folders = (shipped("conf"), Path(own or shipped("conf")))
    return {path.stem for folder in folders for path in (folder / section).glob("*.yaml")}
