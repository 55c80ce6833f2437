"""`ftslurm attach`: a shell beside a rank, on its node and with its environment."""

from __future__ import annotations

import argparse
import os
import sys

from ftslurm.cli.run_argument import find_run
from ftslurm.errors import EnvironmentProblem
from ftslurm.slurm import commands


def main(args: argparse.Namespace) -> int:
    """Start a shell beside a rank.

    Raises:
        EnvironmentProblem: this is no terminal, or srun is not there.
    """
    command = find_run(args).attach(args.group, args.rank)
    if args.print:
        import shlex

        print(shlex.join(command))
        return 0
    if not sys.stdin.isatty():
        raise EnvironmentProblem("attach needs a terminal: the standard input is none (--print shows the command)")
    try:
        os.execvpe(command[0], command, commands.scrubbed(os.environ))  # noqa: S606 an argument list
    except OSError as error:
        raise EnvironmentProblem(f"{command[0]} cannot be started: {error.strerror}") from error
