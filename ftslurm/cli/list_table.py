"""Draws the table of `ftslurm list`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ftslurm.api.brief import Brief
from ftslurm.security.terminal import visible
from ftslurm.words import about, speed

_STYLES = {
    "running": "green",
    "waiting": "yellow",
    "silent": "red",
    "lost": "bold red",
    "succeeded": "blue",
    "failed": "bold red",
    "unreadable": "dim",
}
NUMBERS = frozenset(("step", "rate", "groups", "restarts", "age", "value"))
WIDE = 120  # columns from which on notes have a column


def render(rows: Sequence[Brief], width: int) -> RenderableType:
    """Return the table, at most `width` columns wide; ids are never cut off."""
    names, cells = cells_of(rows, width)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in names:
        side: Literal["left", "right"] = "right" if name in NUMBERS else "left"
        table.add_column(name, justify=side, overflow="fold", min_width=24 if name == "run" else None)
    for row in rows:
        table.add_row(*cells[row.dir])
    return table


def cells_of(rows: Sequence[Brief], width: int) -> tuple[list[str], dict[str, list[Text]]]:
    """Return the names of the columns for this width, and the cells of each run by its folder."""
    told = {
        "value": any(row.value for row in rows),
        "sweep": any(row.sweep for row in rows),
        "user": len({row.user for row in rows}) > 1,
        "note": width >= WIDE,
    }
    names = [name for name in _COLUMNS if told.get(name, True)]
    cells = {
        row.dir: [
            Text(visible(_COLUMNS[name](row)), _STYLES.get(row.state, "") if name == "state" else "") for name in names
        ]
        for row in rows
    }
    return names, cells


def _step(row: Brief) -> str:
    step = "-" if row.step is None else str(row.step)
    return step if row.step is None or row.total_steps is None else f"{step}/{row.total_steps}"


def _groups(row: Brief) -> str:
    groups = "-" if row.groups is None else str(row.groups)
    return f"{row.groups_at_work}/{groups}" if row.state == "running" and row.groups_at_work is not None else groups


_COLUMNS: Mapping[str, Callable[[Brief], str]] = {
    "run": lambda row: row.id,
    "state": lambda row: row.state,
    "step": _step,
    "rate": lambda row: "-" if row.steps_per_s is None else speed(row.steps_per_s),
    "groups": _groups,
    "restarts": lambda row: "-" if row.restarts is None else str(row.restarts),
    "job": lambda row: "local" if row.cluster == "local" else row.job or "-",
    "age": lambda row: about(time.time() - row.created) if row.created else "-",
    "value": lambda row: " ".join("-" if one is None else f"{one:.6g}" for one in row.value or [None]),
    "sweep": lambda row: row.sweep or "",
    "user": lambda row: row.user,
    "note": lambda row: row.note or "",
}
