"""Find the run that the user names: a path, a run id or its beginning, a Slurm job, a name, or the newest run."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ftslurm.errors import RunNotFound
from ftslurm.run import by_job, leadership
from ftslurm.run.directory import RunDir
from ftslurm.run.entries import entries, entry_of, not_readable
from ftslurm.run.journal import first_line, text
from ftslurm.words import few, listed

_ID = re.compile(r"(.+)-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}")  # of a run whose folder is not set (submission/submit.py)
_MORE = "give more of its id"
_SHOWN = 5  # how many existing runs an error names


def find(run: str | None, root: Path) -> RunDir:
    """Return the run directory for RUN of the command line.

    Args:
        run: a run directory, a run id, an unambiguous beginning of one, any of its Slurm jobs, its name (of several
            the one that is not over, else the newest), or None for the newest run under `root`.

    Raises:
        RunNotFound: there is none, or several match; the message names the places searched and the existing runs.
    """
    if run is None:
        known = newest(root)
        if not known:
            raise RunNotFound(
                f"there is no run under {root.absolute()}: start one, or name its directory (--root: another folder)"
            )
        return known[0]
    places = (Path(run), root / run) if run else (root,)
    candidates = list(dict.fromkeys(path.absolute() for path in places))
    for path in candidates:
        if os.path.exists(RunDir(path).config):
            return RunDir(path)
        _check_readable(path)
    found = _named(run, newest(root)) if run else None
    if found is None:
        where = listed(candidates, "or")
        raise RunNotFound(f"there is no run {run!r}, with a config.yaml, at {where}. {_present(root)}")
    _check_readable(found.root)
    return found


def _named(run: str, known: list[RunDir]) -> RunDir | None:
    """Return the run that has this Slurm job, this name, or an id that begins so; None: none has.

    Raises:
        RunNotFound: several match.
    """
    job = by_job.job_in(run)
    path = None if job is None else by_job.of_job(job, known)
    if path is not None:
        return RunDir(path)
    if same := [one for one in known if _name(one) == run]:
        going_on = [one for one in same if not leadership.is_over(one)]
        if len(going_on) > 1:
            raise RunNotFound(
                f"{run!r} is the name of {len(going_on)} runs that are not over, {_few(going_on)}: {_MORE}"
            )
        return (going_on or same)[0]
    begins = [one for one in known if one.root.name.startswith(run)]
    if len(begins) > 1:
        raise RunNotFound(f"{run!r} could be any of {_few(begins)}: {_MORE}")
    return begins[0] if begins else None


def _name(run: RunDir) -> str | None:
    """Return the run.name of a run, which is also the name of its Slurm jobs."""
    if found := _ID.fullmatch(run.root.name):
        return found[1]
    line = first_line(run.events)
    return None if line is None else text(line, "name")


def _check_readable(path: Path) -> None:
    entry = entry_of(path)
    if entry is not None and not entry.readable:
        raise RunNotFound(not_readable(entry))


def newest(root: Path) -> list[RunDir]:
    """Return all runs under `root` that this user may read: first its own, then those of others; the newest first."""
    known = [entry for entry in entries(root) if entry.readable]
    return [entry.run for entry in sorted(known, key=lambda entry: not entry.own)]


def _present(root: Path) -> str:
    known = newest(root)
    if not known:
        return f"There is no run at all under {root.absolute()} (--root)"
    return f"Under {root.absolute()} (--root), newest first: {_few(known)}"


def _few(runs: list[RunDir]) -> str:
    return few([run.root.name for run in runs], _SHOWN, "older")
