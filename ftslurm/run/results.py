"""Reads the value of a run: the numbers that its script has written to the file named by FTSLURM_RESULT."""

from __future__ import annotations

from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files

MOST = 16  # objectives


def read(run: RunDir) -> list[float] | None:
    """Return the numbers of the group that has written last; None: no group has written any.

    Every group has a file of its own, because groups end at the same moment, with the same weights.

    Raises:
        ValueError: what it has written are no numbers.
    """
    try:
        newest = max(run.results.glob("group-*"), key=lambda path: (path.lstat().st_mtime_ns, path.name))
        text = owned_files.read_text(newest)
    except (OSError, ValueError):  # ValueError: there is no file
        return None
    try:
        numbers = [float(word) for word in text.replace(",", " ").split()]
    except ValueError:
        numbers = []
    if not 0 < len(numbers) <= MOST:
        raise ValueError(f"{newest} has {text[:40]!r}, not a number (or up to {MOST}, one for each objective)")
    return numbers
