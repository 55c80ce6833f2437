"""`ftslurm status`: show the phase, step and attempts of a run's groups."""

from __future__ import annotations

import argparse
import json

from ftslurm.api.state import look
from ftslurm.cli import following
from ftslurm.cli.interrupts import Interrupts
from ftslurm.cli.run_argument import find_run
from ftslurm.config.schema import Config
from ftslurm.monitor import status_json, summary, table
from ftslurm.run.directory import RunDir

HISTORY_LINES = 10  # of the journal, above the live table


def main(args: argparse.Namespace) -> int:
    """Show the status once, or with -w until the run ends."""
    run = find_run(args)
    if args.watch:
        show_live(run.config, run.files)
    else:
        _show_once(run.config, run.files, as_json=args.json)
    return 0


def _show_once(config: Config, run: RunDir, as_json: bool) -> None:
    seen = look(config, run, raw=as_json)  # JSON escapes control characters itself
    status, moment, note = seen.status, seen.moment, seen.note
    if as_json:
        print(json.dumps(status_json.to_json(status, moment, note, seen.state), indent=2))
        return
    if note and status.started is None:
        print(f"{run.root.name}: {note}")
        if (command := summary.next_command(status, run)) is not None:
            print(command)
        return
    console = table.console()
    console.print(table.render(status, moment, width=console.width, height=10_000, note=note))
    if status.outcome != "running":
        console.print("", summary.summary(status, run), sep="\n")
    elif (failures := summary.failures(status.groups)) is not None:
        console.print("", failures, sep="\n")


def show_live(config: Config, run: RunDir) -> None:
    """Show a run until it ends."""
    console = table.console()
    with Interrupts() as interrupts:
        interrupts.heed()  # so that the terminal is as before
        following.follow(config, run, console=console, history=HISTORY_LINES)
    seen = look(config, run)
    if seen.status.started is None:
        return _show_once(config, run, as_json=False)
    return console.print(summary.summary(seen.status, run))
