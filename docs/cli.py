"""The page of the command line, from its own parsers: `python docs/cli.py`."""

from __future__ import annotations

import argparse
from importlib import import_module
from unittest import mock

from ftslurm.checks import shipped_check
from ftslurm.cli.completion import HYDRA
from ftslurm.cli.main import VERBS_BY_PURPOSE, Verb
from ftslurm.cli.settings_help import EXAMPLES

BEGIN = """\
# The command line

`ftslurm VERB ...`; without a verb, `ftslurm job=ddp` is `ftslurm run job=ddp`. `RUN` is a run directory, a run id or
its beginning, any of its Slurm jobs, or its name; default: the newest run under `runs/`, for verbs that change a run
the only one that is going. `ftslurm --version` prints the version, `ftslurm VERB --help` what stands here.

Exit codes: 0 it is done, or the run has succeeded; 1 the run has failed, or the request was refused; 2 bad input,
before anything is done; 130 Ctrl-C. Where a verb differs, its section says so.
"""
ABOUT = {  # Hydra's options
    "--help": "the settings and presets",
    "--multirun": "a sweep: one run for each combination of values; also -m",
    "--cfg": "`job`: print the configuration that these words give, and do nothing",
    "--config-dir": "a folder with presets of your own: `DIR/job/mine.yaml` is `job=mine`",
}


class _Found(BaseException):
    """Raised in the place of parsing, with the parser."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def page() -> str:
    """Return the page."""
    text = BEGIN
    for verb in (verb for verbs in VERBS_BY_PURPOSE.values() for verb in verbs):
        text += f"\n## ftslurm {verb.name}\n\n"
        text += _of_hydra(verb) if verb.name in ("run", "plan") else described(parser_of(verb))
    return text + "\n## ftslurm-preflight\n\n" + described(shipped_check.parser())


def parser_of(verb: Verb) -> argparse.ArgumentParser:
    """Return the parser of a verb: its function is called, up to where it would parse."""

    def found(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        raise _Found(parser)

    methods = dict.fromkeys(("parse_args", "parse_intermixed_args", "parse_known_args"), found)
    with mock.patch.multiple(argparse.ArgumentParser, **methods):
        try:
            import_module(f"ftslurm.cli.{verb.name}_verb").main([])
        except _Found as stopped:
            return stopped.parser
    raise AssertionError(f"{verb.name} parses nothing")


def described(parser: argparse.ArgumentParser) -> str:
    """Return what `--help` prints, as Markdown. argparse's own text differs between versions of Python."""
    text = f"{_escaped(parser.description or '')}\n"
    rows = "".join(_row(parser, action) for group in parser._action_groups for action in group._group_actions)
    text += f"\n| argument | meaning |\n|---|---|\n{rows}" if rows else ""
    if parser.epilog:
        text += f"\n```text\n{parser.epilog.strip()}\n```\n"
    return text


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    if isinstance(action, argparse._HelpAction):
        return ""
    metavar = str(action.metavar or action.dest.upper())
    *others, last = action.option_strings or [""]
    names = [*others, f"{last} {metavar}".strip() if action.nargs != 0 else last]
    about = _escaped((action.help or "") % {**vars(action), "prog": parser.prog})
    choices = "one of " + ", ".join(f"`{choice}`" for choice in action.choices) if action.choices else ""
    return f"| {', '.join(f'`{name}`' for name in names)} | {'; '.join(filter(None, (about, choices)))} |\n"


def _of_hydra(verb: Verb) -> str:
    rows = "".join(f"| `{name}{' VALUE' if takes else ''}` | {ABOUT[name]} |\n" for name, takes in HYDRA.items())
    text = f"{verb.about[0].upper()}{verb.about[1:]}.\n\n| argument | meaning |\n|---|---|\n"
    text += f"| `OVERRIDE` | `section.name=value` or `section=preset`: [settings.md](settings.md) |\n{rows}"
    if verb.name == "run":
        text += "| `--config FILE` | repeat a run with its `config.yaml`; takes no overrides |\n"
        text += f"\n```text\n{EXAMPLES.partition('options')[0].format(verb='run').strip()}\n```\n"
    return text


def _escaped(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*").replace("<", r"\<")


if __name__ == "__main__":
    print(page(), end="")
