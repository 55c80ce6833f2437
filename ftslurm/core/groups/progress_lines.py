"""How often a group's progress is in the journal. Pure.

A group tells once a second how far it is. Up to eight groups all of that is written down; of more groups about eight
lines a second altogether, or a journal of 64 groups would grow by 230,000 lines an hour, which every successor of the
controller has to read. What is left out is added to the group's next line; nothing is lost when its attempt ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ftslurm.config.schema import Config
from ftslurm.core.state.actions import Action, Record
from ftslurm.core.state.model import RunState, Unit
from ftslurm.core.state.units import swap

LINES_PER_S = 8  # of all groups together; each tells at most one a second


def every_s(groups: int) -> float:
    """How far apart the lines of one group are, at most."""
    return max(1.0, groups / LINES_PER_S)


def reported(unit: Unit, fields: Mapping[str, object], now: float, groups: int) -> tuple[Unit, list[Action]]:
    """A group has reported: its line, if it is time for one; else that is kept for its next.

    Args:
        fields: of that line, with `committed` and `aborted` since the last report, and `gap_s`.
        groups: how many the run has.
    """
    fields = fields if unit.current.untold is None else _added(unit.current.untold[1], fields)
    unit = replace(unit, current=replace(unit.current, untold=(now, fields)))
    return told(unit, now) if _is_due(unit, now, groups) else (unit, [])


def told(unit: Unit, now: float) -> tuple[Unit, list[Action]]:
    """The line of all that a group has reported and that is in none yet."""
    if unit.current.untold is None:
        return unit, []
    time, fields = unit.current.untold
    late = {} if time == now else {"at": time}
    return replace(unit, current=replace(unit.current, untold=None, last_told=now)), [
        Record("progress", {**fields, **late})
    ]


def tell(state: RunState, now: float, config: Config) -> tuple[RunState, list[Action]]:
    """The lines that are due although their groups report nothing new: they stand still."""
    actions: list[Action] = []
    for unit in state.groups:
        if unit.current.untold is not None and _is_due(unit, now, len(state.groups)):
            unit, line = told(unit, now)
            state, actions = swap(state, unit), actions + line
    return state, actions


def _is_due(unit: Unit, now: float, groups: int) -> bool:
    """Whether the group's turn has come since its last line. Each has its own, so that some group's always comes."""
    if groups <= LINES_PER_S or unit.current.last_told is None or unit.group is None:
        return True
    shift = unit.group / LINES_PER_S
    return (now - shift) // every_s(groups) > (unit.current.last_told - shift) // every_s(groups)


def _added(before: Mapping[str, object], now: Mapping[str, object]) -> dict[str, object]:
    """Two reports as one: the newer one, the counts of both, the longer gap."""
    counts = {name: _number(before, name) + _number(now, name) for name in ("committed", "aborted")}
    gaps = [gap for gap in (before.get("gap_s"), now.get("gap_s")) if isinstance(gap, float)]
    return {**now, **counts, "gap_s": max(gaps, default=None)}


def _number(fields: Mapping[str, object], name: str) -> int:
    value = fields[name]
    assert isinstance(value, int)
    return value
