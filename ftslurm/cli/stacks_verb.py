"""`ftslurm stacks`: print the stacks of a rank, or of all ranks of a group, as they are now."""

from __future__ import annotations

import argparse

from ftslurm.cli.run_argument import find_run
from ftslurm.monitor.stack_text import users_first


def main(args: argparse.Namespace) -> int:
    """Print stacks."""
    for found in find_run(args).stacks(args.group, None if args.all else args.rank):
        print(f"rank {found.rank} of group {args.group} on {found.node}, complete in {found.path}")
        print(*users_first(found.text), sep="\n")
    return 0
