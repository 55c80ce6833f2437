"""The live screen of `ftslurm list -w`: the runs below a folder, a line each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ftslurm.api import listing
from ftslurm.api.brief import Brief, brief
from ftslurm.cli import list_table
from ftslurm.errors import FtslurmError
from ftslurm.monitor import table
from ftslurm.monitor.keys import Keys
from ftslurm.protocol.run_states import STATES
from ftslurm.run.directory import RunDir
from ftslurm.run.entries import entries
from ftslurm.run.facts import QUEUE_S, Queue
from ftslurm.run.liveness import Watch

EVERY_S = 2.0  # between two looks at the runs, or five times what a look takes
KEYS = "s: sort ({order})  up, down: choose  enter: open  q: leave"
_ORDERS: dict[str, Callable[[Brief], tuple[object, ...]]] = {
    "newest": lambda row: (-row.created,),
    "state": lambda row: (STATES.index(row.state), -row.created),
    "name": lambda row: (row.id,),
}


def show(
    root: Path, keys: Keys, wanted: Callable[[Iterable[Brief]], list[Brief]], open_run: Callable[[RunDir], bool]
) -> None:
    """Show the runs until the user leaves.

    Args:
        wanted: chooses those that are shown.
        open_run: shows one run; returns whether the user has left it, so that nothing that it has printed matters.
    """
    screen = _Screen(root, wanted)
    while (chosen := screen.live(keys)) is not None:
        screen.problem = None
        try:
            if open_run(chosen):
                continue
        except FtslurmError as error:
            screen.problem = str(error)
            continue
        print("enter: back to all runs", flush=True)
        with keys:
            while not {"enter", "q", "escape"} & set(keys.wait(60.0)):
                pass


class _Screen:
    """The runs, and which of them is marked."""

    def __init__(self, root: Path, wanted: Callable[[Iterable[Brief]], list[Brief]]) -> None:
        self._wanted, self._watch = wanted, Watch()
        self._root, self._rows, self._order = root, list[Brief](), "newest"
        self._queue, self._asked, self._next = Queue(), float("-inf"), float("-inf")
        self._chosen: str | None = None  # folder of the marked run
        self.problem: str | None = None

    def live(self, keys: Keys) -> RunDir | None:
        """Show the runs until one is opened, which is returned; None: the user leaves."""
        console = table.console()
        with keys, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                self._look()
                live.update(self._render(console), refresh=True)
                for key in keys.wait(0.5):
                    if key == "q":
                        return None
                    if key == "enter" and (run := self._marked()) is not None:
                        return run
                    self._press(key)

    def _look(self) -> None:
        """Read the runs again if it is time."""
        began = time.monotonic()
        if began < self._next:
            return
        found = entries(self._root)
        if began >= self._asked + QUEUE_S:
            self._queue, self._asked = listing.queue_of(found), began
        rows = (brief(entry, self._queue, self._watch, wait=False) for entry in found)
        self._rows = sorted(self._wanted(rows), key=_ORDERS[self._order])
        now = time.monotonic()
        self._next = now + max(EVERY_S, 5 * (now - began))

    def _press(self, key: str) -> None:
        folders = [row.dir for row in self._rows]
        at = folders.index(self._chosen) if self._chosen in folders else None
        if key == "s":
            orders = list(_ORDERS)
            self._order = orders[(orders.index(self._order) + 1) % len(orders)]
            self._rows.sort(key=_ORDERS[self._order])
        elif key in ("up", "down", "k", "j") and folders:
            step = 1 if key in ("down", "j") else -1
            self._chosen = folders[0 if at is None else min(max(at + step, 0), len(folders) - 1)]

    def _marked(self) -> RunDir | None:
        if self._chosen is None and self._rows:
            self._chosen = self._rows[0].dir
        return None if self._chosen is None else RunDir(Path(self._chosen))

    def _render(self, console: Console) -> RenderableType:
        counts = {state: sum(row.state == state for row in self._rows) for state in STATES}
        title = f"{self._root.absolute()}: " + ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        size = console.size
        keys = Text(KEYS.format(order=self._order), "dim", no_wrap=True, overflow="ellipsis")
        head = [Text(title if self._rows else f"{self._root.absolute()}: no run", "bold"), Text()]
        head += [Text(self.problem, "red")] if self.problem else []
        room = size.height - 2 - sum(len(console.render_lines(line, pad=False)) for line in head)
        at = next((n for n, row in enumerate(self._rows) if row.dir == self._chosen), 0)
        for count in range(min(len(self._rows), max(1, room)), -1, -1):
            shown, more = _around(self._rows, at, count)
            below = [Text(f"... {more} more", "dim")] if more else []
            runs = list_table.render(shown, size.width, self._chosen)
            if len(console.render_lines(runs, pad=False)) + len(below) <= room:
                return Group(*head, runs, *below, Text(), keys)
        return Group(*head, keys)


def _around(rows: Sequence[Brief], at: int, count: int) -> tuple[Sequence[Brief], int]:
    """Return `count` rows with the one at `at` among them, and how many others there are."""
    first = min(max(0, at - count // 2), max(0, len(rows) - count))
    return rows[first : first + count], len(rows) - count
