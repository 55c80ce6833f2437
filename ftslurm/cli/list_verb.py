"""`ftslurm list`: show many runs, one line each."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from ftslurm.api import listing, sweeps
from ftslurm.api.brief import Brief
from ftslurm.cli import list_table
from ftslurm.errors import EnvironmentProblem
from ftslurm.monitor import keys, table
from ftslurm.words import listed


def main(args: argparse.Namespace) -> int:
    """Print the runs below a folder, or of a user of the cluster."""
    if args.watch:
        return _watch(args)
    rows = listing.under(Path(args.root)) if args.user is None else listing.of_user(args.user)
    shown = sweeps.together(_wanted(args, rows))
    if args.json:
        print(json.dumps({"runs": [asdict(row) for row in shown]}, indent=2))
        return 0
    if not shown:
        where = f"under {Path(args.root).absolute()}" if args.user is None else f"in the Slurm jobs of {args.user}"
        which = "" if args.state is None or not rows else f" that is {listed(args.state, 'or')}, of {len(rows)}"
        which = f" of sweep {args.sweep}{which}" if args.sweep is not None else which
        print(f"there is no run {where}{which}")
        return 0
    console = table.console()
    console.print(list_table.render(shown, console.width, headings=True))
    return 0


def _wanted(args: argparse.Namespace, rows: Iterable[Brief]) -> list[Brief]:
    rows = [row for row in rows if args.state is None or row.state in args.state]
    return [row for row in rows if args.sweep is None or row.sweep == args.sweep]


def _watch(args: argparse.Namespace) -> int:
    """Show the runs until the user leaves."""
    from ftslurm.cli import all_runs, status_verb

    if args.json or args.user is not None:
        raise EnvironmentProblem("-w shows the runs below --root, as a table: leave --json and --user out")
    pressed = keys.of_terminal(may_quit=True) if sys.stdout.isatty() else None
    if pressed is None:
        raise EnvironmentProblem("-w needs a terminal: leave it out")
    all_runs.show(Path(args.root), pressed, partial(_wanted, args), status_verb.show_live)
    return 0
