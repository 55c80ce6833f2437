"""`ftslurm status`: show the phase, step and attempts of a run's groups."""

from __future__ import annotations

import argparse
import json

from ftslurm.api.state import look
from ftslurm.cli import following
from ftslurm.cli.interrupts import Interrupts
from ftslurm.cli.run_argument import find_run
from ftslurm.config.schema import Config
from ftslurm.monitor import summary, table
from ftslurm.run.directory import RunDir

HISTORY_LINES = 10  # of the journal, above the live table


def main(args: argparse.Namespace) -> int:
    """Show how a run stands; with -w show the run until it ends before."""
    run = find_run(args)
    if args.json:
        print(json.dumps(run.status(), indent=2))
        return 0
    if args.watch:
        with Interrupts() as interrupts:
            interrupts.heed()  # so that the terminal is as before
            following.follow(run.config, run.files, console=table.console(), history=HISTORY_LINES)
    _show(run.config, run.files)
    return 0


def _show(config: Config, run: RunDir) -> None:
    seen = look(config, run)
    status, note = seen.status, seen.note
    if note and status.started is None:
        print(f"{run.root.name}: {note}")
        if (command := summary.next_command(status, run)) is not None:
            print(command)
        return
    console = table.console()
    console.print(table.render(status, seen.moment, width=console.width, height=10_000, note=note))
    if status.outcome != "running":
        console.print("", summary.summary(status, run), sep="\n")
    elif (failures := summary.failures(status.groups)) is not None:
        console.print("", failures, sep="\n")
