"""Ends the runs of a sweep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ftslurm.api import listing
from ftslurm.api.run import Run
from ftslurm.errors import FtslurmError, NotDone, RunNotFound
from ftslurm.protocol.run_states import GOING

OPEN = (*GOING, "lost")  # states of a run that has no end


def stop(root: Path, sweep: str, save: bool = False) -> Iterator[str]:
    """End all runs of a sweep that are not over. Yield what has happened to each, for a person.

    Raises:
        RunNotFound: there is no such sweep below the folder.
    """
    mine = [row for row in listing.under(root) if row.sweep == sweep]
    if not mine:
        raise RunNotFound(f"there is no run of a sweep {sweep!r} under {root.absolute()}; see: ftslurm list")
    going = [row for row in mine if row.state in OPEN]
    if not going:
        yield f"all {len(mine)} runs of {sweep} are over already"
    failed = list[str]()
    for row in reversed(going):  # the oldest first
        try:
            yield Run(row.dir).stop(save)
        except FtslurmError as error:
            failed.append(f"{row.id}: {error}")
    if failed:
        raise NotDone("; ".join(failed))
