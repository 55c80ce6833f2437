"""`ftslurm prune`: remove runs that are over."""

from __future__ import annotations

import argparse
import sys
import time

from rich.filesize import decimal as size

from ftslurm.api import pruning
from ftslurm.cli.run_argument import agreed
from ftslurm.errors import EnvironmentProblem, NotDone
from ftslurm.run.directory import RunDir
from ftslurm.security.terminal import visible
from ftslurm.words import plural


def main(args: argparse.Namespace) -> int:
    """Show what can be removed, ask, and remove it.

    Raises:
        EnvironmentProblem: there is no terminal to ask at, or --yes does not say what may go.
        NotDone: the user has said no, or something could not be removed.
    """
    root, only = args.root.resolve(), pruning.BULK if args.keep_logs else None
    named = RunDir(root).config.exists()  # it is one run
    if args.yes and not named and args.older_than is None and args.keep is None:
        raise EnvironmentProblem(
            "--yes alone would remove all runs that are over, also those that could be resumed: name a run, or say "
            "which with --older-than or --keep"
        )
    before = time.time() if args.older_than is None else args.older_than

    def survey() -> list[pruning.Judged]:
        if not named:
            return pruning.survey(root, before, args.keep or 0)
        return [one for one in pruning.survey(root.parent, before, args.keep or 0, root) if one.root == root]

    judged = survey()
    shown = [one.root for one in judged if one.kept is None and pruning.holds(one.root, only)]
    for one in judged:
        if one.kept or one.root in shown:
            told = f"stays: {one.kept}" if one.kept else size(pruning.size([one.root], only))
            print(visible(f"{one.root.name}  {told}"))
    if not shown:
        print(f"nothing to remove under {root}")
        return int(named and any(one.kept for one in judged))
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
    for one in survey():  # again: a run may have been resumed meanwhile
        if one.root in shown:
            try:
                if one.kept is not None:
                    raise OSError(one.kept)
                pruning.remove(one, only)
            except OSError as error:
                failed.append(f"{one.root}: {error}")
    if failed:
        raise NotDone("not all could be removed: " + "; ".join(failed))
    return 0
