"""`ftslurm inject`: ask the controller to inject one real fault, and print the result."""

from __future__ import annotations

import argparse
import sys

from ftslurm.api import steered
from ftslurm.cli.run_argument import agreed, find_run
from ftslurm.config.schema import AUTO
from ftslurm.errors import NotDone


def main(args: argparse.Namespace) -> int:
    """Inject one fault."""
    steered.check_fault(args.fault)
    run = find_run(args)
    if not args.yes and sys.stdin.isatty():
        whom = "the lowest group that runs" if args.group is None else f"group {args.group}"
        if not agreed(f"{args.fault} for rank {args.rank or 0} of {whom} of {run.dir}?"):
            raise NotDone("nothing is done")
    print(run.inject(args.fault, args.group, args.rank))
    if args.fault == "stop" and run.config.health.hang_after_s == 0:
        print(
            "all groups may wait for it, and nobody looks for who hangs (health.hang_after_s=0): ftslurm inject kill "
            "on the same rank ends it",
            file=sys.stderr,
        )
    elif args.fault == "stop" and run.config.health.hang_after_s == AUTO:
        print(
            "it is found after the limit that `ftslurm status` shows (health.hang_after_s=auto, at least "
            f"{run.config.hang_least_s:g} s)",
            file=sys.stderr,
        )
    return 0
