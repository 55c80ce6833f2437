"""`ftslurm prune`: remove runs that are over."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from ftslurm.api import pruning
from ftslurm.cli.logs_verb import since
from ftslurm.cli.parser import Parser
from ftslurm.errors import EnvironmentProblem, NotDone
from ftslurm.security.terminal import visible
from ftslurm.words import size

HELP = """\
examples
  ftslurm prune --older-than 30d        runs that ended more than 30 days ago
  ftslurm prune --keep 5 --keep-logs    of all but the newest five: checkpoints and code; journal, logs, report stay

What would be removed is shown first, with its size. A run stays if it may be going (also if Slurm does not say), if it
is lost (resume it, or remove its folder by hand), if another run resumes from it or saves in its checkpoints, or if it
is not yours. Checkpoints in a checkpoint.dir outside of the run directory stay.
Exit code: 0 it is done, 1 you have said no, or something could not be removed, 2 it could not be asked."""


def main(words: list[str]) -> int:
    """Show what can be removed, ask, and remove it.

    Raises:
        EnvironmentProblem: there is no terminal to ask at.
        NotDone: the user has said no, or something could not be removed.
    """
    about = "Remove runs that are over, with their checkpoints, code and logs. You are asked first."
    parser = Parser(prog="ftslurm prune", description=about, epilog=HELP)
    parser.add_argument(
        "root", nargs="?", default="runs", metavar="DIR", help="where run directories lie; default: runs"
    )
    parser.add_argument("--older-than", type=since, metavar="TIME", help="that ended before: 7d, 2026-11-23")
    parser.add_argument("--keep", type=int, default=0, metavar="N", help="the newest N of those that are over stay")
    parser.add_argument("--keep-logs", action="store_true", help="remove checkpoints and code only")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    args = parser.parse_args(words)
    root, only = Path(args.root).absolute(), pruning.BULK if args.keep_logs else None
    before = time.time() if args.older_than is None else args.older_than
    judged = pruning.survey(root, before, args.keep)
    shown = [one.root for one in judged if one.kept is None and pruning.holds(one.root, only)]
    for one in (one for one in judged if one.kept or one.root in shown):
        told = f"stays: {one.kept}" if one.kept else size(pruning.size([one.root], only))
        print(visible(f"{one.root.name}  {told}"))
    if not shown:
        print(f"nothing to remove under {root}")
        return 0
    what = "checkpoints and code" if only else "run directories, with checkpoints, code and logs"
    print(f"{len(shown)} {what}: frees {size(pruning.size(shown, only))}")
    if not args.yes:
        if not sys.stdin.isatty():
            raise EnvironmentProblem(
                "nothing is removed: there is no terminal to ask at (--yes removes without asking)"
            )
        print("remove them? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise NotDone("nothing is removed")
    failed = list[str]()
    for one in pruning.survey(root, before, args.keep):  # again: a run may have been resumed meanwhile
        if one.kept is None and one.root in shown:
            try:
                pruning.remove(one, only)
            except OSError as error:
                failed.append(f"{one.root}: {error}")
    if failed:
        raise NotDone("not all could be removed: " + "; ".join(failed))
    return 0
