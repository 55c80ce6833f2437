"""What verbs ask: which run they are about, and whether the user means it."""

from __future__ import annotations

import argparse
import sys

from ftslurm.api import start
from ftslurm.api.run import Run


def find_run(args: argparse.Namespace) -> Run:
    """Find the run that RUN and --root name.

    Raises:
        RunNotFound: there is none, or more than one.
    """
    find = start.only_run if args.only else start.find
    return find(args.run, args.root)


def agreed(question: str) -> bool:
    """Ask on the terminal; anything but yes is no."""
    print(f"{question} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
