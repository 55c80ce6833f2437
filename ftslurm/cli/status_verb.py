"""`ftslurm status`: show the phase, step and attempts of a run's groups."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from ftslurm.api.state import look
from ftslurm.cli import all_runs, following, list_verb
from ftslurm.cli.run_argument import find_run, parser_for
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.errors import EnvironmentProblem
from ftslurm.monitor import keys, status_json, summary, table
from ftslurm.run import liveness
from ftslurm.run.directory import RunDir
from ftslurm.submission import jobs_of_run

HISTORY_LINES = 10  # of the journal, above the live table


def main(words: list[str]) -> int:
    """Show the status once, or on a terminal until the run ends."""
    parser = parser_for("status", "Show how a run stands. On a terminal the table lives until the run ends or Ctrl-C.")
    parser.add_argument("--once", action="store_true", help="print the table once")
    parser.add_argument("--json", action="store_true", help="print it as JSON, once")
    parser.add_argument("--all", action="store_true", help="all runs below --root, a line each; enter opens one")
    args = parser.parse_args(words)
    if args.all:
        return _show_all(args)
    run = find_run(args).files
    config = compose.load(run.config, own=False)
    if args.json or args.once or not sys.stdout.isatty():
        _show_once(config, run, as_json=args.json)
    else:
        _show_live(config, run)
    return 0


def _show_all(args: argparse.Namespace) -> int:
    """Show all runs once, as `ftslurm list` does, or on a terminal until the user leaves."""
    if args.run is not None:
        raise EnvironmentProblem("status --all shows every run below --root and takes no RUN")
    pressed = keys.of_terminal(may_quit=True) if sys.stdout.isatty() else None
    if args.json or args.once or pressed is None:
        return list_verb.main(["--root", args.root, *(["--json"] if args.json else [])])
    all_runs.show(Path(args.root), pressed, lambda run: _show_live(compose.load(run.config, own=False), run))
    return 0


def _show_once(config: Config, run: RunDir, as_json: bool) -> None:
    seen = look(config, run, harmless=not as_json)  # JSON escapes control characters itself
    status, moment, note = seen.status, seen.moment, seen.note
    if as_json:
        print(json.dumps(status_json.to_json(status, moment, note), indent=2))
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


def _show_live(config: Config, run: RunDir) -> bool:
    """Show a run until it ends. Return True if the user has left before."""
    there = jobs_of_run.still_there(config, run)
    if config.cluster.kind != "local" and jobs_of_run.never_started(config, run) is None:
        following.wait_for_start(run, there)
    if jobs_of_run.never_started(config, run) is not None:
        _show_once(config, run, as_json=False)
        return False
    console = table.console()
    note = partial(jobs_of_run.silence, config, run, liveness.Watch())
    pressed = keys.of_terminal(may_quit=True)
    table.follow(run, console=console, until=lambda: not there(), history=HISTORY_LINES, keys=pressed, note=note)
    if pressed is not None and pressed.quit:
        return True
    console.print(summary.summary(look(config, run, harmless=True).status, run))
    return False
