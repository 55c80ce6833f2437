"""`ftslurm stacks`: print the stacks of a rank, or of all ranks of a group, as they are now."""

from __future__ import annotations

from ftslurm.cli.run_argument import find_run, parser_for
from ftslurm.monitor.stack_text import users_first

HELP = """\
example
  ftslurm stacks --group 1              rank 0 of group 1: every thread, innermost call first
  ftslurm stacks --group 1 --rank 3     rank 3
  ftslurm stacks --group 1 --all        every rank of the group

Python's faulthandler writes them, also while the rank is stuck in C; a stopped rank (SIGSTOP) is continued for a
moment. Where py-spy is installed, in the environment of job.python or on the PATH, its view from outside follows:
pip install py-spy. Each answer is also a file beside the rank's log: logs/group-NNNN/attempt-NNN/stacks-rank-R-N.txt.
Exit code: 0 they are printed, 1 there are none, 2 the run is over or has no controller.
"""


def main(words: list[str]) -> int:
    """Print stacks."""
    parser = parser_for("stacks", "Print what a rank is doing now: the stacks of all its threads.", HELP)
    parser.add_argument("--group", type=int, required=True, metavar="N", help="of this group")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, default=0, metavar="R", help="this rank of the group (default: 0)")
    which.add_argument("--all", action="store_true", help="every rank of the group")
    args = parser.parse_args(words)
    for found in find_run(args).stacks(args.group, None if args.all else args.rank):
        print(f"rank {found.rank} of group {args.group} on {found.node}, complete in {found.path}")
        print(*users_first(found.text), sep="\n")
    return 0
