"""The lines of a followed run about groups that start: those that wait for the same share one."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.monitor.sentences import called
from ftslurm.monitor.starting import of_start
from ftslurm.monitor.status import GroupStatus, RunStatus
from ftslurm.run.journal import Event, integer, number
from ftslurm.words import every, few

MOMENT_S = 0.5  # groups that were launched together report within this time
NAMED = 8  # groups that a line names
# What groups wait for whose ranks, or whose other groups, are not the same ones.
_DIFFERENT = {"launch": "ranks: launch", "import": "ranks: imports", "others": "other groups: all begin together"}


class StartingLines:
    """Holds each step_starting back for a moment, in which other groups may report the same."""

    def __init__(self) -> None:
        self._held: dict[int, Event] = {}  # group -> its last report
        self._since = 0.0  # the time of the first of them
        self._seen = False  # they were there at the end of the round before
        self._told: dict[int, tuple[int | None, str]] = {}  # group -> the attempt and the stage that had a line

    def take(self, event: Event) -> None:
        """Hold a report."""
        group = integer(event, "group")
        if group is not None:
            self._since = self._since if self._held else number(event, "time") or 0.0
            self._held[group] = event

    def before(self, event: Event, status: RunStatus) -> list[tuple[Event, str]]:
        """Return the lines that are due before this event is applied to the status."""
        late = self._held and (number(event, "time") or 0.0) > self._since + MOMENT_S
        return self._lines(status) if late else []

    def end_of_round(self, status: RunStatus) -> list[tuple[Event, str]]:
        """Return the lines of what was held at the end of the round before."""
        if self._held and self._seen:
            return self._lines(status)
        self._seen = bool(self._held)
        return []

    def _lines(self, status: RunStatus) -> list[tuple[Event, str]]:
        held, self._held, self._seen = self._held, {}, False
        at_stage: dict[str, list[GroupStatus]] = {}
        for group in status.groups:
            if group.starting is not None and of_start(group, status) is not None:
                at_stage.setdefault(group.starting.stage, []).append(group)
        lines, told = list[tuple[Event, str]](), dict[int, tuple[int | None, str]]()
        for stage, groups in at_stage.items():
            new = [group for group in groups if group.group in held]
            known = any(self._told.get(group.group) == (group.attempt, stage) for group in groups)
            if new and (not known or len(groups) == 1):
                lines.append((held[new[-1].group], _line(new, stage, status)))
            told |= {group.group: (group.attempt, stage) for group in new}
        self._told |= told
        return lines


def _line(groups: Sequence[GroupStatus], stage: str, status: RunStatus) -> str:
    """Return the line for groups that wait at the same stage."""
    whats = {of_start(group, status) for group in groups}
    what = str(whats.pop()) if len(whats) == 1 else _DIFFERENT.get(stage, stage)
    if len(groups) == 1:
        return f"{called(groups[0])} waits for {what}"
    who = few([str(group.group) for group in groups], NAMED)
    who = every(len(groups)) if len(groups) == len(status.groups) else f"groups {who}"
    return f"{who} wait for {what.replace('its ', 'their ')}"
