"""The end of a group's log: its last line while it starts, and a pane of it beside the group's row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ftslurm.core.state.model import Phase
from ftslurm.core.state.unit_names import group_unit
from ftslurm.monitor.status import GroupStatus, RunStatus
from ftslurm.run.directory import RunDir
from ftslurm.run.last_words import end_of, printed_last
from ftslurm.security.terminal import LogText

MOST = 1 << 16  # bytes that are shown; `ftslurm logs` shows all
LONGEST = 80  # characters of the last line
LOGS_READ = 64  # a run may have 1,000 groups that start


def log_of(group: GroupStatus, run: RunDir) -> Path | None:
    """Return the log to look at: of the rank that failed, of the one that a start waits for, or of rank 0."""
    if group.attempt is None:
        return None
    failed = Path(group.last.log) if group.down and group.last is not None and group.last.log else None
    if failed is not None and failed.is_relative_to(run.logs) and ".." not in failed.parts and failed.exists():
        return failed
    path = _log_of_start(group, run)
    return path if path.exists() else run.step_log(group_unit(group.group), group.attempt)


def tail(log: Path) -> str:
    """Return the last lines, with control characters written out."""
    return LogText(colours=False).feed(end_of(log, MOST), final=True).decode()


def _log_of_start(group: GroupStatus, run: RunDir) -> Path:
    """Return the log of the rank that the start of a group waits for, else of rank 0."""
    rank = 0 if group.starting is None else next(iter(group.starting.missing), 0)
    return run.rank_log(group_unit(group.group), group.attempt or 0, rank)


def with_last_lines(status: RunStatus, run: RunDir) -> RunStatus:
    """Return the status with the last line that each starting group has printed."""
    found = dict[int, str]()
    for group in status.groups:
        going = group.attempt is not None and group.phase in (Phase.STARTING, Phase.RUNNING) and not group.joined
        if going and status.outcome == "running" and len(found) < LOGS_READ:
            found[group.group] = printed_last(_log_of_start(group, run), LONGEST)
    return replace(status, groups=tuple(replace(g, last_line=found.get(g.group) or None) for g in status.groups))
