"""Follow a run: a live table of the groups on a terminal, plain lines anywhere else."""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from io import TextIOBase
from typing import IO, cast

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from ftslurm.monitor import sentences
from ftslurm.monitor.group_rows import SHEET, height_of, rows
from ftslurm.monitor.status import RunStatus, aged
from ftslurm.monitor.status_fold import StatusFold
from ftslurm.protocol import records
from ftslurm.run import deliveries
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event, number
from ftslurm.run.run_reader import RunReader
from ftslurm.security.terminal import beneath, readable, visible
from ftslurm.words import clock, plural, speed

_STYLES = {  # of the lines of events
    records.StepExited.event: "red",
    records.ReplicasDiffer.event: "red",
    records.GroupGivenUp.event: "bold red",
    records.GroupJoined.event: "green",
    records.Warned.event: "bold yellow",
    records.NoFirstStep.event: "bold yellow",
}
_IN_THE_TABLE = (records.Progress.event, records.StepStarting.event)
NOTE_S = 5.0  # seconds between two calls of `note`
_PLAIN_EVERY_S = 10.0  # between two lines about the progress, without a terminal
_BAR = 30  # columns of the bar of the progress


def console() -> Console:
    """Return a console for stdout. If it is no terminal, lines are neither wrapped nor padded."""
    out = beneath(sys.stdout)
    here = SafeConsole(file=out, markup=False, emoji=False)
    if not here.is_terminal:
        here.width, here.file = SHEET, cast("IO[str]", _Unpadded(out))
    return here


class SafeConsole(Console):
    """A console on which nothing in a text can steer the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render with control characters made visible, except rich's own."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else piece._replace(text=visible(piece.text, lines=True))

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit with 1, without a message


class _Unpadded(TextIOBase):
    """A stream that drops the spaces with which rich fills up the lines of a table."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def write(self, text: str) -> int:
        return self._out.write(re.sub(r"(?m) +$", "", text))

    def flush(self) -> None:
        self._out.flush()


def follow(
    run: RunDir,
    *,
    console: Console,
    until: Callable[[], bool],
    poll_s: float = 0.2,
    history: int | None = None,
    note: Callable[[], str | None] = lambda: None,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> RunStatus:
    """Show the run until it has finished or `until()` is true.

    Args:
        console: a terminal gets the live table, anything else plain lines.
        until: called once a round; true when no controller writes the journal any more.
        poll_s: time between two reads of the journal.
        note: called every NOTE_S seconds; returns a problem of the run to show with it, or None.
        history: how many lines about earlier events are shown (default: all).

    Returns:
        The status at the end.

    Raises:
        KeyboardInterrupt: passed on, after the terminal has been restored.
    """
    reader, noted, problem = RunReader(run), 0.0, None
    known = RunStatus(run_id=visible(run.root.name), hooks=deliveries.read(run))
    live = console.is_terminal and not console.is_dumb_terminal
    screen = _Table(console, clock, known) if live else Lines(console, _PLAIN_EVERY_S, known)
    with screen.live:
        while True:
            last = until()  # called before reading, so that everything written until then is shown
            lines: deque[tuple[Event, str]] = deque(maxlen=history)
            for event in map(readable, reader.iter_new() if history is None else reader.up_to_now()):
                screen.folding.apply(event)
                # The summary follows the end of the run, and says it.
                if event.get("event") != records.RunFinished.event and (line := screen.line(event)):
                    lines.append((event, line))
                history = None  # for the first lines only
            status = screen.folding.status
            if clock() - noted >= NOTE_S:
                noted, problem, status.hooks = clock(), note(), deliveries.read(run)
            screen.show(lines)
            screen.draw(problem)
            if last or status.outcome != "running":
                return status
            sleep(poll_s)


class Lines:
    """Output to a file or a pipe: a line for each event, and a line about the progress every `every_s` seconds."""

    live: AbstractContextManager[object] = nullcontext()

    def __init__(self, console: Console, every_s: float = 60.0, known: RunStatus | None = None) -> None:
        """Begin. `known`: continue from this status, another controller has shown the earlier events."""
        self.folding = StatusFold(known)
        self._console = console
        self._every_s = every_s
        self._last: float | None = None  # the time of the last line about the progress
        self._noted = False

    def tell(self, event: Event, shown: bool = True) -> None:
        """Show one event, or only take note of it."""
        event = readable(event)
        self.folding.apply(event)
        if shown and (line := self.line(event)) is not None:
            self.show([(event, line)])

    def line(self, event: Event) -> str | None:
        """Return the line for the event that was the last; None: it has no line."""
        status = self.folding.status
        if event.get("event") == records.FullRestart.event:
            self._last = None
        if event.get("event") != records.Progress.event:
            return sentences.describe(event, status)
        now = number(event, "time") or 0.0
        if self._last is None:
            self._last = now  # no line yet: the groups report their first steps one after another
        if now - self._last < self._every_s:
            return None
        self._last = now
        rate = f", {speed(status.steps_per_s)} steps/s" if status.steps_per_s else ""
        return f"step {sentences.of_total(status.step, status)}, {plural(status.at_work, 'group')}{rate}"

    def show(self, lines: Iterable[tuple[Event, str]]) -> None:
        """Print the lines of events."""
        for event, line in lines:
            style = "blue" if event.get("cause") == "ok" else _STYLES.get(str(event.get("event")), "")
            stamp = time.strftime("%H:%M:%S", time.localtime(number(event, "time") or 0.0))
            # Not wrapped, so that grep finds whole lines, and a path can be copied in one piece.
            self._console.print(Text.assemble((stamp, "dim"), " ", (line, style)), soft_wrap=True, highlight=False)

    def draw(self, problem: str | None) -> None:
        """Show how the run stands, with what is wrong."""
        if problem is not None and not self._noted and self.folding.status.outcome == "running":
            self._console.print(Text(problem), soft_wrap=True, highlight=False)
        self._noted = problem is not None


class _Table(Lines):
    """Output to a terminal: events scroll by above a table of the groups."""

    def __init__(self, console: Console, clock: Callable[[], float], known: RunStatus) -> None:
        super().__init__(console, known=known)
        # Without rich's thread: follow() redraws after each read of the journal, with the clock in the title.
        self._live = self.live = Live(console=console, auto_refresh=False, transient=True)
        self._clock = clock
        self._drawn: object = None  # the values that the table on the screen was drawn from

    def line(self, event: Event) -> str | None:
        """Return the line for the event that was the last; None: the table shows it."""
        return None if event.get("event") in _IN_THE_TABLE else super().line(event)

    def draw(self, problem: str | None) -> None:
        """Draw the table."""
        status, now, size = self.folding.status, self._clock(), self._console.size
        drawn = (status.updated, status.hooks, int(now), size, problem)
        if drawn != self._drawn:  # redrawing is expensive over a slow connection
            self._live.update(render(status, now, size.width, size.height, problem), refresh=True)
            self._drawn = drawn


def render(
    status: RunStatus, now: float, width: int = 80, height: int = 100, note: str | None = None
) -> RenderableType:
    """Return the live area: title, progress, the groups that fit into `height` lines, notes."""
    width, status = width if width >= SHEET else min(width, 120), aged(status, now)
    # One line for each warning of a low screen; the events above have printed it in full.
    top, below = head(status, now, width, note, low=height < 40), foot(status)
    room = height - height_of(Group(*top, Text(), *below), width) - 1  # the line of the cursor
    return Group(*top, Text(), rows(status, now, width, max(3, room)), *below)


def head(status: RunStatus, now: float, width: int, note: str | None, low: bool) -> list[RenderableType]:
    """Return what is above the groups: title, what is wrong, progress."""
    lines = [_title(status, now, width)]
    if status.outcome == "running":
        lines += [Text(note, "bold red")] if note is not None else []
        for line in [*(f"warning: {words}" for words in status.cautions), *sentences.hook_lines(status.hooks)]:
            lines.append(Text(line, "yellow", no_wrap=low, overflow="ellipsis" if low else "fold"))
    return [*lines, _bar(status, width)]


def foot(status: RunStatus) -> list[RenderableType]:
    """Return what is below the groups of a run that goes on."""
    notes = [Text(line) for line in sentences.notes(status)] if status.outcome == "running" else []
    return [Text(), *notes] if notes else []


def _title(status: RunStatus, now: float, width: int) -> RenderableType:
    left = Text.assemble((status.run_id, "bold"))
    if status.job_id is not None:
        left.append(f"  job {status.job_id}", "dim")
    facts = []
    if status.outcome != "running":
        facts.append(sentences.ended(status.outcome))
    elif status.groups:
        word = "running" if status.lighthouse is None else "stepping"
        facts.append(f"{status.at_work} of {plural(len(status.groups), 'group')} {word}")
    facts += sentences.restarts(status)
    if status.started is not None:
        facts.append(clock((status.finished or now) - status.started))
    title = Table.grid("", Column(justify="right"), padding=(0, 2))
    title.width = width if width < SHEET else None
    title.add_row(left, Text("  ".join(facts), "dim"))
    return title


def _bar(status: RunStatus, width: int) -> RenderableType:
    rate, total = status.steps_per_s, status.total_steps
    words = f"step {sentences.of_total(status.step, status)}"
    if rate:
        words += f"  {speed(rate)} steps/s"
    if status.left_s is not None:
        words += f"  {clock(status.left_s)} left"
    if not total or width < _BAR + 40 or width >= SHEET:
        return Text(words, no_wrap=True, overflow="ellipsis")
    grid = Table.grid(padding=(0, 2))
    grid.add_row(ProgressBar(total, status.step, width=_BAR, complete_style="green"), words)
    return grid
