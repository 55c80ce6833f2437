"""Draws the table of `ftslurm list`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ftslurm.api.brief import Brief
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
WIDE = 120  # columns from which on users and notes have a column


def render(rows: Sequence[Brief], width: int, chosen: str | None = None, headings: bool = False) -> RenderableType:
    """Return the table, at most `width` columns wide; ids are never cut off.

    Args:
        chosen: the folder of a marked run.
        headings: a line with the name of a sweep stands above its runs, which follow one another.
    """
    now, wide = time.time(), width >= WIDE
    users = len({row.user for row in rows}) > 1
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("run", overflow="fold", min_width=24)
    for name in ("state", "step", "rate", *(["left"] if wide else []), "groups", "restarts", "job", "age"):
        right = name in ("step", "rate", "left", "groups", "restarts", "age")
        table.add_column("rst" if name == "restarts" and not wide else name, justify="right" if right else "left")
    values = any(row.value for row in rows)
    if values:
        table.add_column("value", justify="right")
    if users:
        table.add_column("user")
    if wide:
        table.add_column("note", overflow="fold")
    sweep = None
    for row in rows:
        if headings and row.sweep is not None and row.sweep != sweep:
            table.add_row(Text(f"sweep {row.sweep}", "bold"))
        sweep = row.sweep
        cells: list[str | Text] = [
            f"  {row.id}" if headings and row.sweep else row.id,
            Text(row.state, _STYLES.get(row.state, "")),
            *_numbers(row, wide),
            _job(row, wide),
        ]
        cells += [about(now - row.created) if row.created else "-"]
        cells += (
            [" ".join("-" if number is None else f"{number:.6g}" for number in row.value or [None])] if values else []
        )
        more = ([row.user] if users else []) + ([row.note or ""] if wide else [])
        table.add_row(*cells, *more, style="reverse" if row.dir == chosen else None)
    return table


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
