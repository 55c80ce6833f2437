"""The screens of `ftslurm top`, by textual: all runs, and one run."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import ClassVar, Generic, NamedTuple, TypeVar

from rich.console import Group
from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer, RichLog, Static

from ftslurm.api import listing
from ftslurm.api.brief import Brief, brief
from ftslurm.cli import list_table
from ftslurm.config import compose
from ftslurm.errors import FtslurmError
from ftslurm.monitor import group_rows, table
from ftslurm.monitor.group_rows import ORDERS, Rows
from ftslurm.monitor.log_tail import log_of, tail
from ftslurm.monitor.sentences import short_log
from ftslurm.monitor.status import RunStatus, aged
from ftslurm.monitor.status_fold import StatusFold
from ftslurm.protocol.run_states import STATES
from ftslurm.run import deliveries, liveness
from ftslurm.run.directory import RunDir
from ftslurm.run.entries import entries
from ftslurm.run.facts import QUEUE_S, Queue, Watcher
from ftslurm.run.run_reader import RunReader
from ftslurm.security.terminal import readable, visible

_AFTER_ERROR_S = 10.0
_BLANKS = 10  # that the grid adds to the columns of a row
Seen = TypeVar("Seen")


class Grid(DataTable[Text]):
    """A table that is filled again and again, and draws only what has changed. The marked row stays marked."""

    def __init__(self) -> None:
        super().__init__(cursor_type="row")
        self._widths: Mapping[str, int | None] = {}
        self._filled: Mapping[str, Sequence[Text]] = {}

    @property
    def marked(self) -> str | None:
        """The key of the marked row."""
        return list(self._filled)[self.cursor_row] if self.is_valid_row_index(self.cursor_row) else None

    def fill(
        self, columns: Mapping[str, int | None], rows: Mapping[str, Sequence[Text]], numbers: Container[str]
    ) -> None:
        """Show these rows, by key, in columns of these widths (None: that fit); those of numbers end at the right."""
        for cells in rows.values():
            for name, cell in zip(columns, cells, strict=True):
                cell.justify = "right" if name in numbers else "left"
        marked = self.marked
        if columns == self._widths and list(rows) == list(self._filled):
            for key, cells in rows.items():
                for name, cell, before in zip(columns, cells, self._filled[key], strict=True):
                    if cell != before:
                        self.update_cell(key, name, cell, update_width=columns[name] is None)
        else:
            self.clear(columns=True)
            for name, wide in columns.items():
                self.add_column(Text(name, justify="right" if name in numbers else "left"), width=wide, key=name)
            for key, cells in rows.items():
                self.add_row(*cells, key=key)
        self._widths, self._filled = columns, rows
        if marked is not None and marked in rows:
            self.move_cursor(row=list(rows).index(marked), scroll=False)


class Watching(Screen[None], Generic[Seen]):
    """A screen of what a thread of its own looks at again and again, so that keys never wait for a file or Slurm."""

    every_s: ClassVar[float]
    orders: ClassVar[Iterable[str]]  # in which rows can be sorted
    BINDINGS: ClassVar[list[BindingType]] = [("s", "sort", "sort"), ("q", "app.quit", "leave")]

    def __init__(self) -> None:
        super().__init__()
        self.seen: Seen | None = None
        self.order, *_ = self.orders
        self._over = threading.Event()

    def on_mount(self) -> None:
        self._watch()

    def on_unmount(self) -> None:
        self._over.set()

    @work(thread=True)
    def _watch(self) -> None:
        pause = 0.0
        while not self._over.wait(pause):
            began = time.monotonic()
            try:
                self.call_later(self._show, self.look())
                pause = max(self.every_s, time.monotonic() - began)
            except (FtslurmError, OSError) as error:
                self.app.notify(visible(str(error)), severity="error", markup=False)
                pause = _AFTER_ERROR_S

    def _show(self, seen: Seen) -> None:
        self.seen = seen
        self.draw()

    def action_sort(self) -> None:
        names = list(self.orders)
        self.order = names[(names.index(self.order) + 1) % len(names)]
        self.notify(f"sorted by {self.order}")
        self.draw()

    @abstractmethod
    def look(self) -> Seen:
        """Return what there is, in the thread."""

    @abstractmethod
    def draw(self) -> None:
        """Show what has been seen."""


_ORDERS: Mapping[str, Callable[[Brief], tuple[object, ...]]] = {
    "newest": lambda row: (-row.created,),
    "state": lambda row: (STATES.index(row.state), -row.created),
    "name": lambda row: (row.id,),
}


class Runs(Watching[list[Brief]]):
    """All runs below a folder."""

    every_s = 2.0
    orders = _ORDERS

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root, self._heard = root, liveness.Watch()
        self._queue, self._asked = Queue(), float("-inf")

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Grid()
        yield Footer()

    def look(self) -> list[Brief]:
        found, now = entries(self._root), time.monotonic()
        if now >= self._asked + QUEUE_S:
            self._queue, self._asked = listing.queue_of(found), now
        return [brief(entry, self._queue, self._heard, wait=False) for entry in found]

    def draw(self) -> None:
        rows = sorted(self.seen or (), key=_ORDERS[self.order])
        counts = Counter(row.state for row in rows)
        said = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]) or "no run"
        self.query_one("#head", Static).update(Text(visible(f"{self._root.absolute()}: {said}"), "bold"))
        names, cells = list_table.cells_of(rows, self.size.width)
        self.query_one(Grid).fill(dict.fromkeys(names), cells, list_table.NUMBERS)

    @on(DataTable.RowSelected)
    def open(self, event: DataTable.RowSelected) -> None:
        """Show the run of a row."""
        try:
            self.app.push_screen(Groups(RunDir(Path(str(event.row_key.value)))))
        except FtslurmError as error:
            self.notify(visible(str(error)), severity="error", markup=False)


class _Run(NamedTuple):
    """A run, as seen once."""

    status: RunStatus
    note: str | None
    log: Path | None  # of the marked group
    text: str  # its end


class Groups(Watching[_Run]):
    """The groups of a run, and the log of the marked one."""

    every_s = 0.25
    orders = ORDERS
    BINDINGS: ClassVar[list[BindingType]] = [("l", "log", "log"), ("escape", "back", "back")]

    def __init__(self, run: RunDir) -> None:
        """Open a run.

        Raises:
            FtslurmError: its settings cannot be read.
        """
        super().__init__()
        self._run, self._config = run, compose.load(run.config, own=False)
        self._reader = RunReader(run)
        self._events = self._reader.up_to_now
        self._folding = StatusFold(RunStatus(run_id=visible(run.root.name)))
        self._note: str | None = None  # why the run has not started, or what is wrong with its controller
        self._status = self._folding.status  # a copy of it, once it has been looked at
        self._watcher, self._noted = Watcher(self._config, run), float("-inf")
        self._marked: str | None = None  # number of the marked group
        self._named, self._shown = "", ""  # the log in the pane, and its text

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Grid()
        yield Static(id="reason", markup=False)
        yield Static(id="foot", markup=False)
        yield RichLog(wrap=True, min_width=0)
        yield Footer()

    def look(self) -> _Run:
        news, noted = list(map(readable, self._events())), time.monotonic() < self._noted + table.NOTE_S
        for event in news:
            self._folding.apply(event)
        self._events = self._reader.iter_new
        if not noted:
            found = self._watcher.look()
            self._noted, self._note = time.monotonic(), None if found.over and not found.never else found.note
            self._folding.status.hooks = deliveries.read(self._run)
        if news or not noted:
            self._status = deepcopy(self._folding.status)
        status = aged(self._status, time.time())
        group = next((group for group in status.groups if str(group.group) == self._marked), None)
        log = log_of(group, self._run) if group is not None else None
        return _Run(status, self._note, log, tail(log) if log is not None else "")

    def draw(self) -> None:
        if self.seen is None:
            return
        status, now, width = self.seen.status, time.time(), self.size.width
        self.query_one("#head", Static).update(Group(*table.head(status, now, width, self.seen.note, low=True)))
        self.query_one("#foot", Static).update(Group(*table.foot(status)))
        rows, grid = Rows(status, now, width - _BLANKS), self.query_one(Grid)
        cells = {str(g.group): rows.cells(g) for g in sorted(status.groups, key=ORDERS[self.order])}
        grid.fill(rows.columns | {"node": rows.room}, cells, group_rows.NUMBERS)
        self._marked = grid.marked
        self.query_one("#reason", Static).update(cells[self._marked][-1] if self._marked is not None else "")
        self._draw_log(self.seen)

    def _draw_log(self, seen: _Run) -> None:
        """Show the end of the log, unless the user has scrolled up in it."""
        pane, title = self.query_one(RichLog), visible("no log yet" if seen.log is None else short_log(str(seen.log)))
        if title != self._named or (seen.text != self._shown and pane.is_vertical_scroll_end):
            self._named, self._shown = title, seen.text
            pane.border_title = Text(title)
            pane.clear().write(Text(seen.text.rstrip()))

    @on(DataTable.RowHighlighted)
    def mark(self) -> None:
        """Follow the log of the marked group."""
        self._marked = self.query_one(Grid).marked

    def action_log(self) -> None:
        pane = self.query_one(RichLog)
        pane.display = not pane.display

    def action_back(self) -> None:
        if len(self.app.screen_stack) > 2:  # it was opened from the list
            self.app.pop_screen()
        else:
            self.app.exit()


class Top(App[None]):
    """`ftslurm top`."""

    CSS = """
    Grid { height: 1fr; }
    RichLog { height: 40%; border: round $secondary; border-title-style: bold; }
    #reason { color: $text-muted; }
    """
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, root: Path, run: RunDir | None) -> None:
        super().__init__()
        self._first: Screen[None] = Runs(root) if run is None else Groups(run)

    def on_mount(self) -> None:
        self.push_screen(self._first)
