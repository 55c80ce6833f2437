"""A page of the live display that shows the log of a group, from its end."""

from __future__ import annotations

from pathlib import Path

from rich.cells import chop_cells
from rich.console import Group, RenderableType
from rich.text import Text

from ftslurm.core.state.unit_names import group_unit
from ftslurm.monitor.status import GroupStatus
from ftslurm.run.directory import RunDir
from ftslurm.run.last_words import end_of
from ftslurm.security.terminal import LogText

MOST = 1 << 18  # bytes of the end of a log that can be seen; `ftslurm logs` shows all


class LogPage:
    """The end of a group's log. It follows the log until the user scrolls up."""

    def __init__(self, group: GroupStatus, run: RunDir) -> None:
        """Open the log of a group's last attempt."""
        self.group, self._run, self._up = group.group, run, 0
        self.path = log_of(group, run)

    def press(self, key: str, height: int) -> bool:
        """Scroll. Return False if the key closes the page."""
        page = max(1, height - 3)
        moves = {"up": 1, "k": 1, "page up": page, "b": page, "down": -1, "j": -1, "page down": -page, " ": -page}
        self._up = max(0, self._up + moves.get(key, 0))
        return key not in ("q", "escape", "l", "enter")

    def render(self, width: int, height: int) -> RenderableType:
        """Return the page: what it is, then the lines."""
        title = Text(f"group {self.group}  {self.path or 'has no log yet'}", "bold", no_wrap=True, overflow="ellipsis")
        keys = Text("up, down, space, b: scroll   q: back", "dim", no_wrap=True, overflow="ellipsis")
        room = max(1, height - 2)
        text = b"" if self.path is None else LogText(colours=False).feed(end_of(self.path, MOST), final=True)
        lines = [part for line in text.decode().splitlines() for part in chop_cells(line.expandtabs(), width) or [""]]
        self._up = min(self._up, max(0, len(lines) - room))
        end = len(lines) - self._up
        shown = lines[max(0, end - room) : end]
        return Group(title, *(Text(line, no_wrap=True) for line in shown), *[Text()] * (room - len(shown)), keys)


def log_of(group: GroupStatus, run: RunDir) -> Path | None:
    """Return the log to look at: of the rank that failed, of the one that a start waits for, or of rank 0."""
    if group.attempt is None:
        return None
    failed = Path(group.last.log) if group.down and group.last is not None and group.last.log else None
    if failed is not None and failed.is_relative_to(run.logs) and ".." not in failed.parts and failed.exists():
        return failed
    rank = group.starting.rank if group.starting is not None else 0
    path = run.rank_log(group_unit(group.group), group.attempt, rank)
    return path if path.exists() else run.step_log(group_unit(group.group), group.attempt)
