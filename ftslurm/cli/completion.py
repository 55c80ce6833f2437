"""Answers a TAB of the shell (`ftslurm completion SHELL` sets it up): verbs, their options, runs, settings, presets.

It must answer while a person waits. So it imports neither the verbs nor the settings, which takes a second on a busy
login node, but reads their source: which options a verb has, and which keys the settings.
"""

from __future__ import annotations

import argparse
import ast
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from argcomplete.completers import SuppressCompleter
from argcomplete.finders import CompletionFinder

SHELLS = ("bash", "zsh", "fish")
PACKAGE = Path(__file__).parents[1]
HYDRA = {"--help": False, "--multirun": False, "--cfg": True, "--config-dir": True}  # the options of run and plan
OVERRIDDEN = ("run", "plan", "resume")  # verbs that take key=value
WITHOUT_RUN = ("run", "plan", "list", "doctor", "help", "completion", "templates", "prune")
PATHS = ("job.script", "run.root", "run.dir", "checkpoint.dir")
FOLDERS = ("--root", "--config-dir")


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
    from ftslurm.cli.main import VERBS

    verb = before[0] if before and before[0] in VERBS else "run"
    takes_value = options(verb)
    if before and takes_value.get(before[-1]):
        yield from paths(prefix) if before[-1] in FOLDERS else ()
        return
    if not before:
        yield from VERBS
    if prefix.startswith("-"):
        yield from takes_value
    elif verb in OVERRIDDEN:
        yield from settings(prefix, before)
    if verb not in WITHOUT_RUN and "=" not in prefix:
        yield from runs(before)
    if verb == "inject":
        yield from literal("config/validate.py", "FAULTS")
    if verb in ("templates", "prune"):
        yield from paths(prefix)
    if verb == "help":
        yield "settings"
        yield from (page.stem for page in _shipped("docs").glob("*.md"))
    if verb == "completion":
        yield from SHELLS


def runs(before: Sequence[str]) -> Iterator[str]:
    """Generate the ids of the runs under --root."""
    root = Path(before[before.index("--root") + 1] if "--root" in before[:-1] else "runs")
    try:
        yield from (path.name for path in root.iterdir() if (path / "config.yaml").exists())
    except OSError:
        return


def settings(prefix: str, before: Sequence[str]) -> Iterator[str]:
    """Generate key=, or the values of the key that is typed already."""
    key, given, text = prefix.partition("=")
    sections = _sections()
    if not given:
        yield from (f"{name}=" for name in sections if _presets(name, before))
        if key:  # there are more than a hundred
            yield from (f"{setting}=" for setting in keys())
        return
    values = _presets(key, before) if key in sections else keys().get(key, [])
    yield from (f"{key}={value}" for value in (paths(text) if key in PATHS else values))


@cache
def keys() -> dict[str, list[str]]:
    """Return every setting, dotted, and its choices, as the schema's source has them."""
    classes = {node.name: node for node in _parsed("config/schema.py").body if isinstance(node, ast.ClassDef)}

    def of(name: str, section: str) -> Iterator[tuple[str, list[str]]]:
        for line in classes[name].body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                kind, key = ast.unparse(line.annotation), f"{section}{line.target.id}"
                if kind != "Internal":
                    yield from of(kind, f"{key}.") if kind in classes else [(key, _choices(kind, line.value))]

    return dict(of("Config", ""))


def _choices(kind: str, default: ast.expr | None) -> list[str]:
    if isinstance(default, ast.Call) and ast.unparse(default.func) == "one_of":
        return [ast.literal_eval(arg) for arg in default.args]
    return ["true", "false"] if kind.partition(" | ")[0] == "bool" else []


def options(verb: str) -> dict[str, bool]:
    """Return the options of a verb, and whether a value follows, as its source has them."""
    if verb in ("run", "plan"):
        return HYDRA
    found = {"--help": False}
    for call in ast.walk(_parsed(f"cli/{verb}_verb.py")):
        if not isinstance(call, ast.Call):
            continue
        if isinstance(call.func, ast.Name) and call.func.id == "parser_for":
            found["--root"] = True
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            flags = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and str(arg.value).startswith("-")]
            takes_value = not any(keyword.arg == "action" and _stores(keyword.value) for keyword in call.keywords)
            found |= {str(flag): takes_value for flag in flags}
    return found


def _stores(action: ast.expr) -> bool:
    return isinstance(action, ast.Constant) and str(action.value).startswith(("store_", "count", "version"))


def literal(file: str, name: str) -> Any:
    """Return a constant of a module without importing it."""
    for line in _parsed(file).body:
        targets = (
            line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return ast.literal_eval(line.value)  # type: ignore[attr-defined]
    raise KeyError(name)


def paths(prefix: str) -> Iterator[str]:
    """Generate the folders and files whose path begins so."""
    start = prefix[: prefix.rfind("/") + 1]
    try:
        for entry in os.scandir(os.path.expanduser(start) or "."):  # noqa: PTH111
            yield f"{start}{entry.name}" + ("/" if entry.is_dir() else "")
    except OSError:
        return


def _sections() -> set[str]:
    return {key.partition(".")[0] for key in keys() if "." in key}


def _presets(section: str, before: Sequence[str]) -> list[str]:
    folders = [_shipped("conf")]
    if "--config-dir" in before[:-1]:
        folders.append(Path(before[before.index("--config-dir") + 1]))
    return sorted({path.stem for folder in folders for path in (folder / section).glob("*.yaml")})


@cache
def _parsed(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text(encoding="utf-8"))


def _shipped(folder: str) -> Path:
    return PACKAGE / folder if (PACKAGE / folder).is_dir() else PACKAGE.parent / folder
