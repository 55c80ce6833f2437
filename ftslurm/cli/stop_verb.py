"""`ftslurm stop`: end a run, or all runs of a sweep."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from ftslurm.api import listing
from ftslurm.api.run import Run
from ftslurm.cli.run_argument import find_run
from ftslurm.errors import EnvironmentProblem, FtslurmError, NotDone, RunNotFound
from ftslurm.protocol.run_states import GOING

OPEN = (*GOING, "lost")  # states of a run that has no end


def main(args: argparse.Namespace) -> int:
    """End a run, or all runs of a sweep."""
    if args.sweep is None:
        print(find_run(args).stop(args.save))
        return 0
    if args.run is not None:
        raise EnvironmentProblem(f"RUN ({args.run}) and --sweep: name one of them (ftslurm stop --help)")
    for line in _stop_all(Path(args.root), args.sweep, args.save):
        print(line, flush=True)
    return 0


def _stop_all(root: Path, sweep: str, save: bool = False) -> Iterator[str]:
    """End all runs of a sweep that are not over. Yield what has happened to each, for a person.

    Raises:
        RunNotFound: there is no such sweep below the folder.
    """
    mine = [row for row in listing.under(root) if row.sweep == sweep]
    if not mine:
        raise RunNotFound(f"there is no run of a sweep {sweep!r} under {root.absolute()}; see: ftslurm list")
    going = [row for row in mine if row.state in OPEN]
    if not going:
        yield f"all {len(mine)} runs of {sweep} are over already"
    failed = list[str]()
    for row in reversed(going):  # the oldest first
        try:
            yield Run(row.dir).stop(save)
        except FtslurmError as error:
            failed.append(f"{row.id}: {error}")
    if failed:
        raise NotDone("; ".join(failed))
