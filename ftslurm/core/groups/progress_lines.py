"""Limit the rate of progress lines in the journal. Pure.

A group reports its progress once a second. Up to eight groups every report is journaled; of more groups about eight
lines a second in total, or a journal of 64 groups would grow by 230,000 lines an hour, which every successor of the
controller has to read. An omitted report is added to the group's next line; nothing is lost when its attempt ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from ftslurm.config.schema import Config
from ftslurm.core.state.actions import Action
from ftslurm.core.state.model import Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.units import swap
from ftslurm.core.state.values import replace
from ftslurm.protocol.records import Progress

LINES_PER_S = 8  # of all groups together; each reports at most once a second


def every_s(groups: int) -> float:
    """Return the longest time between two lines of one group that reports, in seconds."""
    return max(1.0, groups / LINES_PER_S)


def reported(unit: Unit, report: Progress, now: float, groups: int) -> tuple[Unit, list[Action]]:
    """Add a report of a group: return its line if one is due, else keep the report for its next line.

    Args:
        report: its counts are those since the previous report.
        groups: number of groups of the run.
    """
    report = report if unit.current.untold is None else _added(unit.current.untold[1], report)
    unit = replace(unit, current=replace(unit.current, untold=(now, report)))
    return told(unit, now) if _is_due(unit, now, groups) else (unit, [])


def told(unit: Unit, now: float) -> tuple[Unit, list[Action]]:
    """Return the line of all that a group has reported since its last line."""
    if unit.current.untold is None:
        return unit, []
    time, report = unit.current.untold
    line = report if time == now else replace(report, at=time)
    return replace(unit, current=replace(unit.current, untold=None, last_told=now)), [line]


def tell(state: RunState, now: float, config: Config) -> tuple[RunState, list[Action]]:
    """Return the due lines of groups that report nothing new because they stand still."""
    actions: list[Action] = []
    for unit in state.attended():
        if unit.current.untold is not None and _is_due(unit, now, state.table.groups):
            unit, line = told(unit, now)
            state, actions = swap(state, unit), actions + line
    return state, actions


def due_times(unit: Unit, groups: int) -> Iterator[float]:
    """Yield the time of a group's next line if it has an unwritten report."""
    if unit.current.untold is not None and not _is_due(unit, -inf, groups):
        shift, every = (unit.group or 0) / LINES_PER_S, every_s(groups)
        yield (((unit.current.last_told or 0.0) - shift) // every + 1) * every + shift


def _is_due(unit: Unit, now: float, groups: int) -> bool:
    """Return whether the group's time slot has come since its last line. The slots of groups are spread evenly."""
    if groups <= LINES_PER_S or unit.current.last_told is None or unit.group is None:
        return True
    shift = unit.group / LINES_PER_S
    return (now - shift) // every_s(groups) > (unit.current.last_told - shift) // every_s(groups)


def _added(before: Progress, now: Progress) -> Progress:
    """Return two reports as one: the newer one, with the counts of both and the longer gap."""
    return replace(
        now,
        committed=(before.committed or 0) + (now.committed or 0),
        aborted=(before.aborted or 0) + (now.aborted or 0),
        gap_s=max((gap for gap in (before.gap_s, now.gap_s) if gap is not None), default=None),
    )
