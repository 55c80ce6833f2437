"""Parses the arguments that every verb on an existing run takes: RUN and --root."""

from __future__ import annotations

import argparse

from ftslurm.api import start
from ftslurm.api.run import Run
from ftslurm.cli.parser import Parser

STEERING = ("stop", "inject", "drain", "undrain", "scale", "restart", "save")  # without RUN they must not guess


def parser_for(verb: str, about: str, epilog: str | None = None) -> Parser:
    """Make a parser for a verb on a run."""
    parser = Parser(prog=f"ftslurm {verb}", description=about, epilog=epilog)
    find, default = start.find_run, "newest"
    if verb in STEERING:
        find, default = start.only_run, "the only one that is going"
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help=f"directory, id or its beginning, any of its Slurm jobs, name; default: {default}",
    )
    parser.set_defaults(find=find)
    parser.add_argument("--root", default="runs", help="where run directories lie (run.root; default: runs)")
    return parser


def find_run(args: argparse.Namespace) -> Run:
    """Find the run that the arguments name.

    Raises:
        RunNotFound: there is none, or more than one.
    """
    run: Run = args.find(args.run, args.root)
    return run
