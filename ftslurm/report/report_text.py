"""The report of a run as text for a terminal of 80 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ftslurm.report.tables import Cell, Listing, Sheet

WIDTH = 80


def render(sheet: Sheet) -> RenderableType:
    """Return the report."""
    head = Text.assemble("run ", (sheet.run_id, "bold"), " ", (sheet.outcome, "bold" if sheet.facts else ""))
    parts: list[RenderableType] = [Text("\n").join([head, *map(Text, sheet.lines)])]
    if sheet.facts:
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="bold")
        facts.add_column(justify="right", no_wrap=True)
        facts.add_column(style="dim")
        for fact in sheet.facts:
            facts.add_row(*map(Text, fact))
        parts += [Text(), facts]
    for listing in sheet.listings:
        parts += [Text(), _table(listing)]
    return Group(*parts)


def _table(listing: Listing) -> RenderableType:
    table = Table(
        title=listing.title,
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        header_style="dim",
    )
    for n, name in enumerate(listing.columns):
        table.add_column(
            name, justify="right" if n in listing.numbers else "left", no_wrap=name not in ("what", "causes")
        )
    for row in listing.rows[: listing.short]:
        table.add_row(*map(_cell, row))
    more = len(listing.rows) - listing.short
    return Group(table, Text(f"{more} more: see report.html or --json", "dim")) if more > 0 else table


def _cell(cell: Cell) -> Text:
    text = Text(cell.text, "red" if cell.bad else "")
    for note in cell.notes:
        text.append(f"\n{note}", "dim")
    return text
