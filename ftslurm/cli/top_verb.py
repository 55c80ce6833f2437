"""`ftslurm top`: all runs, and the groups of one with their logs, on one screen with keys."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec

from ftslurm.cli.run_argument import find_run
from ftslurm.errors import EnvironmentProblem
from ftslurm.run.entries import entries


def main(args: argparse.Namespace) -> int:
    """Show the runs below a folder, or one run, until the user leaves."""
    if find_spec("textual") is None:
        raise EnvironmentProblem("top needs textual: pip install 'ftslurm[top]'; without it there is status -w")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise EnvironmentProblem("top needs a terminal; status and list print the same as text")
    from ftslurm.cli.top_screens import Top

    entries(args.root)  # says why, if they cannot be read
    Top(args.root, None if args.run is None else find_run(args).files).run()
    return 0
