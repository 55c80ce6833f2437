"""The command line: find the verb, run it, and turn errors into one line and an exit code.

Exit codes: 0 the run succeeded, 1 it failed, 2 bad input, 130 interrupted. Each verb has a module of its own, imported
only when it is asked for, so that `ftslurm --help` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

from ftslurm import __version__
from ftslurm.cli import command_line
from ftslurm.errors import EnvironmentProblem, FtslurmError, NotDone
from ftslurm.monitor import closed_output
from ftslurm.security.terminal import guarded_output
from ftslurm.words import offer


class Verb(NamedTuple):
    """One verb, as the overview shows it. Its module is `ftslurm/cli/NAME_verb.py`."""

    name: str
    arguments: str
    about: str


VERBS_BY_PURPOSE = {
    "start a run": (
        Verb("run", "[SETTING...]", "check the settings, submit, follow; the default verb"),
        Verb("plan", "[SETTING...]", "show what run would do: nodes, ranks, sbatch, srun"),
        Verb("resume", "[RUN] ...", "go on from the newest checkpoint, as a new run"),
        Verb("templates", "DIR", "write batch scripts, to call sbatch yourself"),
    ),
    "look at runs": (
        Verb("list", "", "all runs under a folder, or --user U's; -w live"),
        Verb("status", "[RUN]", "phase, step, node of each group; -w live"),
        Verb("logs", "[RUN]", "what the scripts printed, merged in time order"),
        Verb("events", "[RUN]", "what has happened, as lines: --since 22:00, -f"),
        Verb("report", "[RUN]", "where the time went: goodput, failures, nodes"),
        Verb("wait", "[RUN]", "until it is over, with its exit code"),
        Verb("stacks", "[RUN] ...", "what a rank does now: --group N --rank R"),
        Verb("attach", "[RUN] ...", "a shell beside a rank: --group N --rank R"),
    ),
    "change a run that is going": (
        Verb("stop", "[RUN]", "end a run: SIGTERM, after stop.grace_s SIGKILL"),
        Verb("save", "[RUN]", "save a checkpoint now, and wait for it"),
        Verb("restart", "[RUN] ...", "have one group leave and start again: --group N"),
        Verb("drain", "[RUN] NODE", "move everything off a node, and leave it out"),
        Verb("undrain", "[RUN] NODE", "use a drained node again"),
        Verb("scale", "[RUN] N", "more groups or fewer while it trains"),
    ),
    "check, try out, tidy up": (
        Verb("doctor", "", "what will hurt a run on this cluster, with its fix"),
        Verb("inject", "[RUN] FAULT", "do one real fault to a running run, to see it recover"),
        Verb("prune", "", "remove runs that are over, with their checkpoints"),
        Verb("completion", "SHELL", "code for bash, zsh or fish: TAB completes words"),
        Verb("help", "[PAGE]", "the documentation; help settings: every setting"),
    ),
}
VERBS = tuple(verb.name for verbs in VERBS_BY_PURPOSE.values() for verb in verbs)
# Words of other tools, with what does the same here.
ELSEWHERE = {
    **dict.fromkeys(("follow", "watch", "top", "show"), "status"),
    **dict.fromkeys(("tail", "log", "output"), "logs -f"),
    **dict.fromkeys(("cancel", "kill", "end"), "stop"),
    **dict.fromkeys(("submit", "start", "launch", "train"), "run"),
    **dict.fromkeys(("ps", "ls", "runs", "queue", "squeue"), "list"),
    **dict.fromkeys(("continue", "retry"), "resume"),
    **dict.fromkeys(("check", "test"), "doctor"),
    **dict.fromkeys(("rm", "clean", "remove", "delete", "gc"), "prune"),
}

OVERVIEW = """\
ftslurm trains with torchft replica groups and restarts only those that fail.

  ftslurm job=ddp          the example: on Slurm where there is one
  ftslurm job.script=train.py groups.count=4 groups.nodes=2 groups.workers=8
                           your script: 4 groups of 2 nodes with 8 workers
{verbs}
RUN is a run directory, a run id or its beginning, any of its Slurm jobs, or its
name; default: the newest under runs/ (--root DIR: another folder), for verbs
that change a run the only one that is going.
`ftslurm VERB --help` has the options of a verb.
"""


def overview() -> str:
    """Return the text of `ftslurm --help`: every verb below its purpose, at most 80 columns wide."""
    lines = list[str]()
    for purpose, verbs in VERBS_BY_PURPOSE.items():
        lines.append(f"to {purpose}")
        lines.extend(f"  {verb.name:<10} {verb.arguments:<13} {verb.about}" for verb in verbs)
    return OVERVIEW.format(verbs="\n".join(lines))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    if "_ARGCOMPLETE" in os.environ:
        import_module("ftslurm.cli.completion").answer()  # to a TAB; exits
    closed_output.open_missing()
    with guarded_output():
        try:
            return _dispatch(list(sys.argv[1:] if argv is None else argv))
        except FtslurmError as error:
            print(f"ftslurm: {error}", file=sys.stderr)
            return 1 if isinstance(error, NotDone) else 2
        except KeyboardInterrupt:  # also SIGTERM and SIGHUP while a run is followed
            return 130
        except BrokenPipeError:
            closed_output.discard()  # the reader of the output has exited: no error
            return 0


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(overview(), end="")
        return 0 if words else 2
    if len(words[0]) > 2 and "--version".startswith(words[0]):
        print(f"ftslurm {__version__}")
        return 0
    verb = words[0] if words[0] in VERBS else None
    if verb in ("run", "plan", None):
        if {"-h", "--help"} & set(words):
            print(import_module("ftslurm.cli.settings_help").of_verb(verb or "run"))
            return 0
        command_line.refuse(words if verb is None else words[1:])
    if verb is not None:
        return _verb(verb)(words[1:])
    if "=" in words[0] or words[0].startswith(("-", "~", "+")):
        return _verb("run")(words)
    verbs = offer(words[0], VERBS, ELSEWHERE.get(words[0].lower()))
    raise EnvironmentProblem(f"there is no verb {words[0]!r}; {verbs} (ftslurm --help)")


def _verb(name: str) -> Callable[[list[str]], int]:
    """Import the module of a verb and return its main function."""
    verb: Callable[[list[str]], int] = import_module(f"ftslurm.cli.{name}_verb").main
    return verb
