"""Draws the table of `ftslurm list`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ftslurm.api.brief import Brief
from ftslurm.security.terminal import visible
from ftslurm.words import about, clock, speed

_STYLES = {
    "running": "green",
    "waiting": "yellow",
    "silent": "red",
    "lost": "bold red",
    "succeeded": "blue",
    "failed": "bold red",
    "unreadable": "dim",
}
NUMBERS = frozenset(("step", "rate", "left", "groups", "restarts", "rst", "age", "value"))
WIDE = 120  # columns from which on users and notes have a column


def render(rows: Sequence[Brief], width: int) -> RenderableType:
    """Return the table, at most `width` columns wide; ids are never cut off."""
    names, cells = cells_of(rows, width)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in names:
        side = "right" if name in NUMBERS else "left"
        table.add_column(name, justify=side, overflow="fold", min_width=24 if name == "run" else None)
    for row in rows:
        table.add_row(*cells[row.dir])
    return table


def cells_of(rows: Sequence[Brief], width: int) -> tuple[list[str], dict[str, list[Text]]]:
    """Return the names of the columns for this width, and the cells of each run by its folder."""
    now, wide = time.time(), width >= WIDE
    names = [
        "run",
        "state",
        "step",
        "rate",
        *(["left"] if wide else []),
        "groups",
        "restarts" if wide else "rst",
        "job",
    ]
    more: dict[str, Callable[[Brief], str]] = {
        "age": lambda row: about(now - row.created) if row.created else "-",
        "value": lambda row: " ".join("-" if one is None else f"{one:.6g}" for one in row.value or [None]),
        "sweep": lambda row: row.sweep or "",
        "user": lambda row: row.user,
        "note": lambda row: row.note or "",
    }
    told = {
        "value": any(row.value for row in rows),
        "sweep": any(row.sweep for row in rows),
        "user": len({row.user for row in rows}) > 1,
        "note": wide,
    }
    more = {name: cell for name, cell in more.items() if told.get(name, True)}
    cells = {
        row.dir: [
            Text(visible(row.id)),
            Text(row.state, _STYLES.get(row.state, "")),
            *(
                Text(visible(words))
                for words in (*_numbers(row, wide), _job(row, wide), *(f(row) for f in more.values()))
            ),
        ]
        for row in rows
    }
    return [*names, *more], cells


def _numbers(row: Brief, wide: bool) -> list[str]:
    step = "-" if row.step is None else f"{row.step}" if row.total_steps is None else f"{row.step}/{row.total_steps}"
    groups = "-" if row.groups is None else str(row.groups)
    if row.state == "running" and row.groups_at_work is not None:
        groups = f"{row.groups_at_work}/{groups}"
    rate = "-" if row.steps_per_s is None else speed(row.steps_per_s)
    to_go = row.steps_per_s and row.total_steps and max(0, row.total_steps - (row.step or 0)) / row.steps_per_s
    left = [] if not wide else [clock(to_go) if to_go else "-"]
    return [step, rate, *left, groups, "-" if row.restarts is None else str(row.restarts)]


def _job(row: Brief, wide: bool) -> str:
    """Return the Slurm job of a run. A local run has none: the number in its place is the process of its controller."""
    if row.cluster != "local":
        return row.job or "-"
    return f"local (pid {row.job})" if wide and row.job and row.finished is None else "local"
