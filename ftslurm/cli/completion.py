"""Answers a TAB of the shell (`ftslurm completion SHELL` sets it up): verbs, their options, runs, settings, presets.

It must answer while a person waits: verbs and options come from the parsers (cli/verbs.py), and the settings are
imported only where one is being typed.
"""

from __future__ import annotations

import argparse
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args, get_origin

from argcomplete.completers import SuppressCompleter
from argcomplete.finders import CompletionFinder

from ftslurm.cli.verbs import VERBS, options, positionals
from ftslurm.protocol.run_states import FAULTS


class Finder(CompletionFinder):
    """argcomplete's splitting and quoting of words, for every shell; which words there are is said here."""

    def collect_completions(
        self, active_parsers: list[argparse.ArgumentParser], parsed_args: argparse.Namespace, cword_prefix: str
    ) -> list[str]:
        del active_parsers, parsed_args
        line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT") or 0)]
        words = line.split()[1:]
        found = candidates(words if line[-1:].isspace() else words[:-1], cword_prefix)
        return [word for word in found if word.startswith(cword_prefix)]


def answer() -> None:
    """Print what the word under the cursor may become, as the code of the shell reads it, and exit."""
    Finder()(argparse.ArgumentParser(), default_completer=SuppressCompleter())


def candidates(before: Sequence[str], prefix: str) -> Iterator[str]:
    """Generate what a word may become.

    Args:
        before: the words between `ftslurm` and this one.
        prefix: what of it is typed; candidates may begin in another way.
    """
    verb = VERBS.get(before[0] if before else "", VERBS["run"])
    awaited = options(verb).get(before[-1]) if before else None
    if awaited is not None and awaited.nargs != 0:
        actions = [awaited]
    else:
        actions = positionals(verb)
        yield from () if before else VERBS
        if prefix.startswith("-"):
            yield from options(verb)
        elif verb.settings:
            yield from settings(prefix, before)
    for action in actions if "=" not in prefix else ():
        yield from action.choices or ()
        if action.metavar in ("DIR", "FILE"):
            yield from paths(prefix)
        elif action.metavar == "RUN":
            yield from runs(before)
        elif action.metavar == "FAULT":
            yield from FAULTS


def runs(before: Sequence[str]) -> Iterator[str]:
    """Generate the ids of the runs under --root."""
    root = Path(before[before.index("--root") + 1] if "--root" in before[:-1] else "runs")
    yield from (config.parent.name for config in root.glob("*/config.yaml"))


def settings(prefix: str, before: Sequence[str]) -> Iterator[str]:
    """Generate key=, or the values of the key that is typed already."""
    from ftslurm.config.described import described

    key, given, text = prefix.partition("=")
    known = {one.key: one for one in described()}
    sections = {name.partition(".")[0] for name in known if "." in name}
    if not given:
        yield from (f"{name}=" for name in sections if _presets(name, before))
        if key:  # there are more than a hundred
            yield from (f"{name}=" for name in known)
        return
    values: Sequence[str] = ()
    if key in sections:
        values = _presets(key, before)
    elif key in known:
        kind = known[key].kind
        if "path" in known[key].field.metadata:
            values = [*paths(text)]
        elif get_origin(kind) is Literal:
            values = get_args(kind)
        elif kind in (bool, bool | None):
            values = ("true", "false")
    yield from (f"{key}={value}" for value in values)


def paths(prefix: str) -> Iterator[str]:
    """Generate the folders and files whose path begins so."""
    for path in glob.iglob(f"{glob.escape(prefix)}*"):  # noqa: PTH207
        yield f"{path}/" if Path(path).is_dir() else path


def _presets(section: str, before: Sequence[str]) -> list[str]:
    from ftslurm.config.schema import shipped

    folders = [shipped("conf")]
    if "--config-dir" in before[:-1]:
        folders.append(Path(before[before.index("--config-dir") + 1]))
    return sorted({path.stem for folder in folders for path in (folder / section).glob("*.yaml")})
