"""`ftslurm inject`: ask the controller to inject one real fault, and print the result."""

from __future__ import annotations

import argparse
import sys

from ftslurm.cli.run_argument import agreed, find_run
from ftslurm.errors import NotDone
from ftslurm.protocol.run_states import FAULTS


def main(args: argparse.Namespace) -> int:
    """Inject one fault."""
    run = find_run(args)
    if not args.yes and sys.stdin.isatty():
        given = [f"{name} {value}" for name in ("group", "rank") if (value := getattr(args, name)) is not None]
        if not agreed(f"{run.dir}: {', '.join([args.fault, *given])} ({FAULTS[args.fault]})?"):
            raise NotDone("nothing is done")
    print(run.inject(args.fault, args.group, args.rank))
    return 0
