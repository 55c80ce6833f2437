"""`ftslurm inject`: ask the controller to inject one real fault, and print the result."""

from __future__ import annotations

import argparse
import sys

from ftslurm.cli.run_argument import agreed, find_run
from ftslurm.errors import NotDone


def main(args: argparse.Namespace) -> int:
    """Inject one fault."""
    run = find_run(args)
    if not args.yes and sys.stdin.isatty():
        whom = "the lowest group that runs" if args.group is None else f"group {args.group}"
        if not agreed(f"{args.fault} for rank {args.rank or 0} of {whom} of {run.dir}?"):
            raise NotDone("nothing is done")
    print(run.inject(args.fault, args.group, args.rank))
    return 0
