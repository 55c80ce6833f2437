"""What verbs ask: which run they are about, and whether the user means it."""

from __future__ import annotations

import argparse
import sys

from ftslurm.api import start
from ftslurm.api.run import Run
from ftslurm.code import own_copy


def find_run(args: argparse.Namespace) -> Run:
    """Find the run that RUN and --root name. If another ftslurm has started it, that one goes on with the command.

    Raises:
        RunNotFound: there is none, or more than one.
    """
    find = start.only_run if args.only else start.find
    run = find(args.run, args.root)
    if args.words is not None:
        own_copy.hand_over(run.files, args.words)
    return run


def agreed(question: str) -> bool:
    """Ask on the terminal; anything but yes is no."""
    print(f"{question} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
