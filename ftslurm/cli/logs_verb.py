"""`ftslurm logs`: print what the scripts printed, merged in time order."""

from __future__ import annotations

import sys

from ftslurm.cli.run_argument import find_run, parser_for
from ftslurm.config import compose
from ftslurm.monitor import logs
from ftslurm.submission import jobs_of_run


def main(words: list[str]) -> int:
    """Print logs, with --follow until the run ends."""
    parser = parser_for(
        "logs", "Print what the scripts printed, in time order. Without --group: rank 0 of every group."
    )
    parser.add_argument("--group", type=int, metavar="N", help="only this group, all its ranks")
    parser.add_argument("--rank", type=int, metavar="N", help="only this rank of each group")
    parser.add_argument("--attempt", type=int, metavar="N", help="only this attempt of each group (default: all)")
    parser.add_argument("--lighthouse", action="store_true", help="the Lighthouse's log")
    parser.add_argument("--controller", action="store_true", help="the controller's log")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    args = parser.parse_args(words)
    run = find_run(args).files
    wanted = logs.Wanted(args.group, args.rank, args.attempt, args.lighthouse, args.controller)
    there = jobs_of_run.still_there(compose.load(run.config, own=False), run)
    colours = sys.stdout.isatty()
    logs.show(run, wanted, sys.stdout.buffer, follow=args.follow, until=lambda: not there(), colours=colours)
    return 0
