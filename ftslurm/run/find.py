"""Find the run that the user names: a path, a run id or its beginning, a Slurm job, or the newest run."""

from __future__ import annotations

from pathlib import Path

from ftslurm.errors import RunNotFound
from ftslurm.run.directory import RunDir
from ftslurm.run.entries import entries

_SHOWN = 5  # how many existing runs an error names


def find(run: str | None, root: Path) -> RunDir:
    """Return the run directory for RUN of the command line.

    Args:
        run: a run directory, a run id, an unambiguous beginning of one, the id of the controller's Slurm job, or None
            for the newest run under `root`.

    Raises:
        RunNotFound: there is none, or several match; the message names the places searched and the existing runs.
    """
    if run is None:
        known = newest(root)
        if not known:
            raise RunNotFound(f"there is no run under {root.absolute()}: start one, or name its directory (run.root)")
        return known[0]
    places = (Path(run), root / run) if run else (root,)
    candidates = list(dict.fromkeys(path.absolute() for path in places))
    for path in candidates:
        if _there(RunDir(path).config):
            return RunDir(path)
    if run and run.isdigit() and (of_job := next((known for known in newest(root) if known.job() == run), None)):
        return of_job
    begins = [known for known in newest(root) if run and known.root.name.startswith(run)]
    if len(begins) == 1:
        return begins[0]
    if begins:
        raise RunNotFound(f"{run!r} could be any of {_few(begins)}: give more of its id")
    raise RunNotFound(f"there is no run {run!r}: {_searched(candidates)}. {_present(root)}")


def newest(root: Path) -> list[RunDir]:
    """Return all runs under `root` that this user may read: first its own, then those of others; the newest first."""
    known = [entry for entry in entries(root) if entry.readable]
    return [entry.run for entry in sorted(known, key=lambda entry: not entry.own)]


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long or with a zero byte, or a folder without permission to read
        return False


def _searched(candidates: list[Path]) -> str:
    for path in candidates:
        if _there(path):
            return f"{path} is no run directory, it holds no {RunDir(path).config.name}"
    return f"looked for {' and '.join(str(path) for path in candidates)}"


def _present(root: Path) -> str:
    known = newest(root)
    if not known:
        return f"There is no run at all under {root.absolute()} (run.root)"
    return f"Under {root.absolute()} (run.root), newest first: {_few(known)}"


def _few(runs: list[RunDir]) -> str:
    more = f" and {len(runs) - _SHOWN} older" if len(runs) > _SHOWN else ""
    return ", ".join(run.root.name for run in runs[:_SHOWN]) + more
