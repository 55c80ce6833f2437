"""`ftslurm stop`: end a run, or all runs of a sweep."""

from __future__ import annotations

import argparse

from ftslurm.api import listing
from ftslurm.api.run import Run
from ftslurm.cli.run_argument import find_run
from ftslurm.errors import EnvironmentProblem, FtslurmError, NotDone, RunNotFound
from ftslurm.protocol.run_states import GOING

OPEN = (*GOING, "lost")  # states of a run that has no end


def main(args: argparse.Namespace) -> int:
    """End a run, or all runs of a sweep that are not over.

    Raises:
        EnvironmentProblem: both a run and a sweep are named.
        RunNotFound: there is no such run, or no run of such a sweep below the folder.
        NotDone: some could not be ended.
    """
    if args.sweep is None:
        print(find_run(args).stop(args.save))
        return 0
    if args.run is not None:
        raise EnvironmentProblem(f"RUN ({args.run}) and --sweep: name one of them (ftslurm stop --help)")
    mine = [row for row in listing.under(args.root) if row.sweep == args.sweep]
    if not mine:
        raise RunNotFound(f"there is no run of a sweep {args.sweep!r} under {args.root.absolute()}; see: ftslurm list")
    going = [row for row in mine if row.state in OPEN]
    if not going:
        print(f"all {len(mine)} runs of {args.sweep} are over already")
    failed = list[str]()
    for row in reversed(going):  # the oldest first
        try:
            print(Run(row.dir).stop(args.save), flush=True)
        except FtslurmError as error:
            failed.append(f"{row.id}: {error}")
    if failed:
        raise NotDone("; ".join(failed))
    return 0
