"""`ftslurm list`: show many runs, one line each."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from ftslurm.api import listing
from ftslurm.cli import list_table
from ftslurm.monitor import table


def main(args: argparse.Namespace) -> int:
    """Print the runs below a folder, or of a user of the cluster."""
    rows = listing.under(args.root) if args.user is None else listing.of_user(args.user)
    shown = [row for row in rows if args.sweep in (None, row.sweep)]
    if args.json:
        print(json.dumps({"runs": [asdict(row) for row in shown]}, indent=2))
        return 0
    if not shown:
        where = f"under {args.root.absolute()}" if args.user is None else f"in the Slurm jobs of {args.user}"
        sweep = "" if args.sweep is None else f" of the sweep {args.sweep}"
        print(f"there is no run{sweep} {where}")
        return 0
    console = table.console()
    console.print(list_table.render(shown, console.width))
    return 0
