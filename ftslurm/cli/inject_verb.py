"""`ftslurm inject`: ask the controller to inject one real fault, and print the result."""

from __future__ import annotations

import argparse
import sys

from ftslurm.cli.run_argument import agreed, find_run
from ftslurm.errors import NotDone, RunNotFound
from ftslurm.protocol.run_states import FAULTS


def main(args: argparse.Namespace) -> int:
    """Inject one fault."""
    try:
        run = find_run(args)
    except RunNotFound as error:
        if args.run not in FAULTS:
            raise
        raise RunNotFound(f"RUN comes before FAULT: ftslurm inject RUN {args.run}. {error}") from error
    if not args.yes and sys.stdin.isatty():
        whom = "the lowest group that runs" if args.group is None else f"group {args.group}"
        if not agreed(f"{args.fault} for rank {args.rank or 0} of {whom} of {run.dir}?"):
            raise NotDone("nothing is done")
    print(run.inject(args.fault, args.group, args.rank))
    return 0
