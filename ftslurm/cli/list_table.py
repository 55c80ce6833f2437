"""Draws the table of `ftslurm list`."""

from __future__ import annotations

import time
from collections.abc import Sequence

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


def render(rows: Sequence[Brief], width: int) -> Table:
    """Return the table, at most `width` columns wide; ids are never cut off."""
    names, cells = cells_of(rows, width)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, justify="right" if name in NUMBERS else "left", overflow="fold")
    for row in rows:
        table.add_row(*cells[row.dir])
    return table


def cells_of(rows: Sequence[Brief], width: int) -> tuple[list[str], dict[str, list[Text]]]:
    """Return the names of the columns for this width, and the cells of each run by its folder."""
    told = {
        "value": any(row.value for row in rows),
        "sweep": width >= 100 and any(row.sweep for row in rows),  # in 80 there is no room
        "user": len({row.user for row in rows}) > 1,
        "note": width >= WIDE,
    }
    texts = {row.dir: _texts(row) for row in rows}
    names = [name for name in next(iter(texts.values()), {}) if told.get(name, True)]
    cells = {
        row.dir: [
            Text(visible(texts[row.dir][name]), _STYLES.get(row.state, "") if name == "state" else "") for name in names
        ]
        for row in rows
    }
    return names, cells


def _texts(row: Brief) -> dict[str, str]:
    """Return what stands in each column."""
    step, groups = _known(row.step), _known(row.groups)
    at_work = row.groups_at_work if row.state == "running" else None
    return {
        "run": row.id,
        "state": row.state,
        "step": step if row.step is None or row.total_steps is None else f"{step}/{row.total_steps}",
        "rate": "-" if row.steps_per_s is None else speed(row.steps_per_s),
        "groups": groups if at_work is None else f"{at_work}/{groups}",
        "restarts": _known(row.restarts),
        "job": "local" if row.cluster == "local" else row.job or "-",
        "age": about(time.time() - row.created) if row.created else "-",
        "value": " ".join("-" if one is None else f"{one:.6g}" for one in row.value or [None]),
        "sweep": row.sweep or "",
        "user": row.user,
        "note": row.note or "",
    }


def _known(number: int | None) -> str:
    return "-" if number is None else str(number)
