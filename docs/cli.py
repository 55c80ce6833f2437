"""The page of the command line, from its own parsers: `python docs/cli.py`."""

from __future__ import annotations

import argparse

from ftslurm.checks import shipped_check
from ftslurm.cli.settings_help import EXAMPLES
from ftslurm.cli.verbs import VERBS, parser_of

BEGIN = """\
# The command line

`ftslurm VERB ...`; without a verb, `ftslurm job=ddp` is `ftslurm run job=ddp`. `RUN` is a run directory, a run id or
its beginning, any of its Slurm jobs, or its name; default: the newest run under `runs/`, for verbs that change a run
the only one that is going. `ftslurm --version` prints the version, `ftslurm VERB --help` what stands here.

Exit codes: 0 it is done, or the run has succeeded; 1 the run has failed, or the request was refused; 2 bad input,
before anything is done; 130 Ctrl-C. Where a verb differs, its section says so.
"""


def page() -> str:
    """Return the page."""
    text = BEGIN
    for verb in VERBS.values():
        text += f"\n## ftslurm {verb.name}\n\n{described(parser_of(verb))}"
        if verb.name == "run":
            text += f"\n```text\n{EXAMPLES.format(verb='run').strip()}\n```\n"
    return text + "\n## ftslurm-preflight\n\n" + described(shipped_check.parser())


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


def _escaped(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*").replace("<", r"\<")


if __name__ == "__main__":
    print(page(), end="")
