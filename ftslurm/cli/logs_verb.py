"""`ftslurm logs`: print what the scripts printed, merged in time order."""

from __future__ import annotations

import argparse
import re
import sys
import time
from datetime import datetime, timedelta

from ftslurm.api.state import check_started, show_logs
from ftslurm.cli.run_argument import find_run, parser_for
from ftslurm.monitor import log_failure
from ftslurm.monitor.log_files import Wanted
from ftslurm.monitor.log_page import View
from ftslurm.words import plural

PREFIX = """\
Each line of several logs has a prefix: [g1.a0.r2] is rank 2 of group 1 in its attempt 0, that is, its first launch.
With --time it is [09:12:25 g1.a0.r2]: the line was written in the second before. Logs are not changed by any option.

  ftslurm logs --failure                    why the last failed attempt has ended
  ftslurm logs --group 1 --tail 50 -f       the last lines of all ranks of group 1, and what comes
  ftslurm logs --since 10m --time --grep 'loss|lr'
"""
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def main(words: list[str]) -> int:
    """Print logs, with --follow until the run ends; 1 if there is no failure to show."""
    args = _parser().parse_args(words)
    run = find_run(args)
    wanted = Wanted(args.group, args.rank, args.attempt, args.lighthouse, args.controller)
    out = sys.stdout.buffer
    view = View(args.time, args.since, args.tail, args.grep, args.raw, colours=sys.stdout.isatty())
    if args.failure:
        failure = log_failure.last_failure(run.files, wanted)
        if failure is None:
            check_started(run.config, run.files)
            print(f"ftslurm: nothing has failed in run {run.id}", file=sys.stderr)
            return 1
        left_out = log_failure.show_failure(run.files, wanted, failure, out, view)
    else:
        left_out = show_logs(run.config, run.files, wanted, out, view, follow=args.follow)
    if left_out:
        print(f"ftslurm: {plural(left_out, 'line')} of known noise left out (--raw prints them)", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_for(
        "logs", "Print what the scripts printed, in time order. Without --group: rank 0 of every group.", PREFIX
    )
    which = parser.add_argument_group("which logs")
    which.add_argument("--group", type=int, metavar="N", help="only this group, all its ranks")
    which.add_argument("--rank", type=int, metavar="N", help="only this rank of each group")
    which.add_argument("--attempt", type=int, metavar="N", help="only this attempt of each group (default: all)")
    which.add_argument("--lighthouse", action="store_true", help="the Lighthouse's log")
    which.add_argument("--controller", action="store_true", help="the controller's log")
    which.add_argument(
        "--failure", action="store_true", help="the evidence of the last failure: its signs, traceback, stacks, log"
    )
    lines = parser.add_argument_group("which lines")
    lines.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    lines.add_argument("--tail", type=_count, metavar="N", help="only the last N lines of what there is")
    lines.add_argument(
        "--since",
        type=since,
        default=0.0,
        metavar="TIME",
        help="only what was written since: 10m, 14:30, 2026-11-23T14:30",
    )
    lines.add_argument("--grep", type=_pattern, metavar="PATTERN", help="only lines that match (regular expression)")
    lines.add_argument("--raw", action="store_true", help="also the known noise of torch, torchft, Gloo and NCCL")
    lines.add_argument("--time", action="store_true", help="the time before each line")
    return parser


def since(text: str) -> float:
    """Convert 10m, 14:30[:05] (today, or yesterday if that is to come) or an ISO time to unix seconds.

    Raises:
        argparse.ArgumentTypeError: it is none of them.
    """
    if ago := re.fullmatch(r"(\d{1,9})([smhd])", text):
        return time.time() - timedelta(**{_UNITS[ago[2]]: int(ago[1])}).total_seconds()
    try:
        now = datetime.now().astimezone()
        if re.fullmatch(r"\d{1,2}:\d\d(:\d\d)?", text):
            at = datetime.combine(
                now.date(), datetime.strptime(text, "%H:%M:%S" if text.count(":") > 1 else "%H:%M").time()
            )
            return at.timestamp() if at.timestamp() <= now.timestamp() else (at - timedelta(days=1)).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"no time: {text!r}; write 10m, 14:30 or 2026-11-23T14:30") from None


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"not a number of lines: {text!r}")
    return int(text)


def _pattern(text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(text.encode())
    except (re.error, UnicodeEncodeError) as error:
        raise argparse.ArgumentTypeError(f"no regular expression: {error} in {text!r}") from None
