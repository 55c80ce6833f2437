"""Finds the run that a verb is about."""

from __future__ import annotations

import argparse

from ftslurm.api import start
from ftslurm.api.run import Run


def find_run(args: argparse.Namespace) -> Run:
    """Find the run that RUN and --root name.

    Raises:
        RunNotFound: there is none, or more than one.
    """
    find = start.only_run if args.only else start.find_run
    return find(args.run, args.root)
