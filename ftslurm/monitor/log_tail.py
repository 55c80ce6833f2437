"""The end of a group's log, for a pane of it beside the group's row."""

from __future__ import annotations

from pathlib import Path

from ftslurm.core.state.unit_names import group_unit
from ftslurm.monitor.status import GroupStatus
from ftslurm.run.directory import RunDir
from ftslurm.run.last_words import end_of
from ftslurm.security.terminal import log_text

MOST = 1 << 16  # bytes that are shown; `ftslurm logs` shows all


def log_of(group: GroupStatus, run: RunDir) -> Path | None:
    """Return the log to look at: of the rank that failed, of the one that a start waits for, or of rank 0."""
    if group.attempt is None:
        return None
    rank = 0 if group.starting is None else next(iter(group.starting.missing), 0)
    if group.down and group.last is not None:
        rank = group.last.rank or 0
    path = run.rank_log(group_unit(group.group), group.attempt, rank)
    return path if path.exists() else run.step_log(group_unit(group.group), group.attempt)


def tail(log: Path) -> str:
    """Return the last lines, with control characters written out."""
    return log_text(end_of(log, MOST)).decode()
