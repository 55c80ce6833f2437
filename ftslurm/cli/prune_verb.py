"""`ftslurm prune`: remove runs that are over."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.filesize import decimal as size

from ftslurm.api import pruning
from ftslurm.cli.run_argument import agreed
from ftslurm.errors import EnvironmentProblem, NotDone
from ftslurm.security.terminal import visible
from ftslurm.words import plural


def main(args: argparse.Namespace) -> int:
    """Show what can be removed, ask, and remove it.

    Raises:
        EnvironmentProblem: there is no terminal to ask at.
        NotDone: the user has said no, or something could not be removed.
    """
    root, only = Path(args.root).absolute(), pruning.BULK if args.keep_logs else None
    before = time.time() if args.older_than is None else args.older_than
    judged = pruning.survey(root, before, args.keep)
    shown = [one.root for one in judged if one.kept is None and pruning.holds(one.root, only)]
    for one in judged:
        if one.kept or one.root in shown:
            told = f"stays: {one.kept}" if one.kept else size(pruning.size([one.root], only))
            print(visible(f"{one.root.name}  {told}"))
    if not shown:
        print(f"nothing to remove under {root}")
        return 0
    what = "checkpoints and code" if only else "checkpoints, code and logs"
    print(f"{plural(len(shown), 'run')}, {what}: frees {size(pruning.size(shown, only))}")
    if not args.yes:
        if not sys.stdin.isatty():
            raise EnvironmentProblem(
                "nothing is removed: there is no terminal to ask at (--yes removes without asking)"
            )
        if not agreed("remove them?"):
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
