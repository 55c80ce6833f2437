"""`ftslurm logs`: print what the scripts printed, merged in time order."""

from __future__ import annotations

import argparse
import sys

from ftslurm.api.state import check_started, show_logs
from ftslurm.cli.run_argument import find_run
from ftslurm.errors import EnvironmentProblem
from ftslurm.monitor import log_failure
from ftslurm.monitor.log_files import Wanted
from ftslurm.monitor.log_page import View
from ftslurm.words import plural


def main(args: argparse.Namespace) -> int:
    """Print logs, with --follow until the run ends; 1 if there is no failure to show.

    Raises:
        EnvironmentProblem: options that do not go together.
    """
    if args.failure and args.follow:
        raise EnvironmentProblem("--failure shows what has happened: leave out --follow")
    if args.service and (args.group, args.rank, args.attempt) != (None, None, None):
        raise EnvironmentProblem(f"the {args.service}'s log has no --group, --rank or --attempt: leave them out")
    run = find_run(args)
    wanted = Wanted(args.group, args.rank, args.attempt, args.service)
    out = sys.stdout.buffer
    view = View(args.time, args.since, args.tail, args.grep, args.raw, colours=sys.stdout.isatty())
    if args.failure:
        failure = log_failure.last_failure(run.files, wanted, view.since)
        if failure is None:
            check_started(run.config, run.files)
            print(f"ftslurm: nothing of what is asked for has failed in run {run.id}", file=sys.stderr)
            return 1
        left_out = log_failure.show_failure(run.files, wanted, failure, out, view)
    else:
        left_out = show_logs(run.config, run.files, wanted, out, view, follow=args.follow)
    if left_out:
        print(f"ftslurm: {plural(left_out, 'line')} of known noise left out (--raw prints them)", file=sys.stderr)
    return 0
