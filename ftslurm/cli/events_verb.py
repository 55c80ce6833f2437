"""`ftslurm events`: what has happened in a run, a line for each event."""

from __future__ import annotations

import argparse

from ftslurm.cli.run_argument import find_run
from ftslurm.monitor import table
from ftslurm.run.journal import number


def main(args: argparse.Namespace) -> int:
    """Print the events."""
    lines = table.Lines(table.console())
    for event in find_run(args).lines(args.follow, progress=False):
        lines.tell(event, shown=(number(event, "time") or 0.0) >= args.since)
    return 0
