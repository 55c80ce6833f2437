"""Limit the rate of progress lines in the journal. Pure.

A group reports its progress once a second. Up to eight groups every report is journaled; of more groups about eight
lines a second in total, or a journal of 64 groups would grow by 230,000 lines an hour, which every successor of the
controller has to read. An omitted report is added to the group's next line; nothing is lost when its attempt ends.
"""

from __future__ import annotations

from ftslurm.core.state.model import Unit
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.values import replace
from ftslurm.protocol.records import Progress

LINES_PER_S = 8  # of all groups together; each reports at most once a second


def every_s(groups: int) -> float:
    """Return the longest time between two lines of one group that reports, in seconds."""
    return max(1.0, groups / LINES_PER_S)


def reported(turn: Turn, unit: Unit, report: Progress) -> Unit:
    """Add a report of a group: journal its line if one is due, else keep the report for its next line.

    Args:
        turn: the decision.
        unit: the group.
        report: its counts are those since the previous report.
    """
    report = report if unit.current.untold is None else _added(unit.current.untold[1], report)
    unit = turn.attempt(unit, untold=(turn.now, report))
    return told(turn, unit) if _is_due(turn, unit) else unit


def line(unit: Unit, now: float) -> Progress | None:
    """Return the line of all that a group has reported since its last line; None: nothing."""
    if unit.current.untold is None:
        return None
    time, report = unit.current.untold
    return report if time == now else replace(report, at=time)


def told(turn: Turn, unit: Unit) -> Unit:
    """Journal the line of all that a group has reported since its last line."""
    report = line(unit, turn.now)
    if report is None:
        return unit
    turn.do(report)
    return turn.attempt(unit, untold=None, last_told=turn.now)


def tell(turn: Turn) -> None:
    """Journal the due lines of groups that report nothing new because they stand still."""
    for unit in turn.attended():
        if unit.current.untold is not None and _is_due(turn, unit):
            told(turn, unit)


def _is_due(turn: Turn, unit: Unit) -> bool:
    """Return whether the group's time slot has come since its last line. The slots of groups are spread evenly."""
    groups = turn.table.groups
    if groups <= LINES_PER_S or unit.current.last_told is None or unit.group is None:
        return True
    shift, every = unit.group / LINES_PER_S, every_s(groups)
    return turn.due(((unit.current.last_told - shift) // every + 1) * every + shift, unit.name)


def _added(before: Progress, now: Progress) -> Progress:
    """Return two reports as one: the newer one, with the counts of both and the longer gap."""
    return replace(
        now,
        committed=(before.committed or 0) + (now.committed or 0),
        aborted=(before.aborted or 0) + (now.aborted or 0),
        gap_s=max((gap for gap in (before.gap_s, now.gap_s) if gap is not None), default=None),
    )
