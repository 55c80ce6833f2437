"""The command line: find the verb, run it, and turn errors into one line and an exit code.

Exit codes: 0 the run succeeded, 1 it failed, 2 bad input, 130 interrupted. Each verb has a module of its own, imported
only when it is asked for, so that `ftslurm --help` is quick.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from ftslurm import __version__
from ftslurm.errors import EnvironmentProblem, FtslurmError
from ftslurm.security.terminal import guarded_output

OVERVIEW = """\
ftslurm trains with torchft replica groups and restarts only the group that failed.

  ftslurm job=ddp                        run the example: on Slurm if it answers, else on this machine
  ftslurm job=ddp cluster=local groups.count=3 faults=kill_one
                                         three groups here; one is killed half way and comes back
  ftslurm job.script=train.py groups.count=4 groups.nodes=2 groups.workers=8 cluster.partition=gpu
                                         your script: 4 groups of 2 nodes with 8 workers on each node

verbs (the default is run: ftslurm key=value ...)
  run    [OVERRIDE...]     compose the configuration, check it, submit, follow      `ftslurm run --help`
  plan   [OVERRIDE...]     show what run would do: nodes, ranks, sbatch and srun lines, and the loss of each node
  status [RUN]             phase, step, quorum, attempt and node of each group      `--json`, `--once`
  logs   [RUN]             what the scripts printed, merged in time order           `--group N --rank N -f`
  stop   [RUN]             end a run: SIGTERM, after stop.grace_s SIGKILL
  scale  [RUN] N           more groups or fewer while it trains, up to groups.max   `ftslurm scale --help`
  inject [RUN] FAULT       do one real fault to a running run, to see it recover    `--group N --rank R`

RUN is a run directory, a run id or its beginning, or the Slurm job of its controller. The default is the newest run
under runs/ (--root DIR: another folder).
"""
VERBS = ("run", "plan", "status", "logs", "stop", "scale", "inject")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    with guarded_output():
        try:
            return _dispatch(list(sys.argv[1:] if argv is None else argv))
        except FtslurmError as error:
            print(f"ftslurm: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:  # also SIGTERM and SIGHUP while a run is followed
            return 130
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader of the output has exited: no error
            return 0


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(OVERVIEW, end="")
        return 0 if words else 2
    if words[0] == "--version":
        print(f"ftslurm {__version__}")
        return 0
    if words[0] in VERBS:
        return _verb(words[0])(words[1:])
    if "=" in words[0] or words[0].startswith(("-", "~", "+")):
        return _verb("run")(words)
    near = difflib.get_close_matches(words[0].lower(), VERBS, n=1)
    hint = f"did you mean {near[0]}? There" if near else "there"
    raise EnvironmentProblem(f"there is no verb {words[0]!r}; {hint} are: {', '.join(VERBS)} (ftslurm --help)")


def _verb(name: str) -> Callable[[list[str]], int]:
    """Import the module of a verb and return its main function."""
    verb: Callable[[list[str]], int] = import_module(f"ftslurm.cli.{name}_verb").main
    return verb
