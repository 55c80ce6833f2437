"""`ftslurm stop`: end a run, or all runs of a sweep."""

from __future__ import annotations

import argparse
from pathlib import Path

from ftslurm.api import sweeps
from ftslurm.cli.run_argument import find_run
from ftslurm.errors import EnvironmentProblem


def main(args: argparse.Namespace) -> int:
    """End a run, or all runs of a sweep."""
    if args.sweep is None:
        print(find_run(args).stop(args.save))
        return 0
    if args.run is not None:
        raise EnvironmentProblem(f"RUN ({args.run}) and --sweep: name one of them (ftslurm stop --help)")
    for line in sweeps.stop(Path(args.root), args.sweep, args.save):
        print(line, flush=True)
    return 0
