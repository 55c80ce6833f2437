"""Follow a run: a live table of the groups on a terminal, plain lines anywhere else."""

from __future__ import annotations

import re
import sys
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from io import TextIOBase
from textwrap import wrap
from types import TracebackType
from typing import IO, cast

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, ScreenContext
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ftslurm.monitor import sentences
from ftslurm.monitor.group_rows import ORDERS, SHEET, STYLES, View, ordered, rows
from ftslurm.monitor.keys import Keys
from ftslurm.monitor.log_tail import LogPage
from ftslurm.monitor.starting import with_last_lines
from ftslurm.monitor.starting_lines import StartingLines
from ftslurm.monitor.status import GroupStatus, LighthouseStatus, RunStatus, aged
from ftslurm.monitor.status_fold import StatusFold
from ftslurm.protocol import records
from ftslurm.run import deliveries
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event, number
from ftslurm.run.journal_lines import read
from ftslurm.run.run_reader import RunReader
from ftslurm.security.terminal import beneath, readable, visible
from ftslurm.words import clock, few, plural, seconds, speed

_LINE_STYLES: dict[type[records.JournalRecord], str] = {
    records.StepExited: "red",
    records.GroupGivenUp: "bold red",
    records.NodeExcluded: "red",
    records.NodeCheckFailed: "red",
    records.NodeSilent: "yellow",
    records.GroupSetAside: "yellow",
    records.GroupHeardAgain: "green",
    records.NodeShunned: "yellow",
    records.HangFound: "red",
    records.Warned: "bold yellow",
    records.NoFirstStep: "bold yellow",
    records.GroupWaits: "yellow",
    records.AllocationLost: "yellow",
    records.AllocationRefused: "bold yellow",
    records.AllocationPending: "yellow",
    records.AllocationLeaving: "yellow",
    records.AllocationRequeued: "yellow",
    records.PilotRestarted: "yellow",
    records.Scaled: "magenta",
    records.ScaleRefused: "magenta",
    records.FaultInjected: "magenta",
    records.FaultRefused: "magenta",
    records.RestartScheduled: "yellow",
    records.LaunchRefused: "yellow",
    records.RollOver: "yellow",
    records.RunRequeued: "yellow",
    records.StepLaunched: "yellow",
    records.GroupJoined: "green",
}
NOTE_S = 5.0  # seconds between two calls of `note`
_HELP = (
    "s: sort by group, state, restarts, node",
    "up, down: choose a group; enter, l: its log; escape: none",
)


def console() -> Console:
    """Return a console for stdout. If it is no terminal, lines are neither wrapped nor padded."""
    out = beneath(sys.stdout)
    here = _Console(file=out, markup=False, emoji=False)
    return (
        here
        if here.is_terminal
        else _Console(file=cast("IO[str]", _Unpadded(out)), markup=False, emoji=False, width=SHEET)
    )


class _Console(Console):
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
        self._out.write(_PADDING.sub("", text))
        return len(text)

    def flush(self) -> None:
        self._out.flush()


_PADDING = re.compile(r" +$", re.MULTILINE)


class Lines:
    """Prints events as they happen, one line each: for the output file of a job."""

    def __init__(self, out: Console) -> None:
        self._folding = StatusFold()
        self._screen = _Lines(out, every_s=60.0)

    @property
    def status(self) -> RunStatus:
        """Return the status after the events so far."""
        return self._folding.status

    def know(self, status: RunStatus) -> None:
        """Continue from this status: another controller has shown the earlier events."""
        self._folding = StatusFold(status)

    def tell(self, event: Event, shown: bool = True) -> None:
        """Show one event, or only take note of it."""
        event = readable(event)
        self._folding.apply(event)
        line = self._screen.line(event, self._folding) if shown else None
        if line is not None:
            self._screen.show([(event, line)], self.status)


def follow(
    run: RunDir,
    *,
    console: Console,
    until: Callable[[], bool],
    poll_s: float = 0.2,
    plain_every_s: float = 10.0,
    history: int | None = None,
    keys: Keys | None = None,
    note: Callable[[], str | None] = lambda: None,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> RunStatus:
    """Show the run until it has finished or `until()` is true.

    Args:
        console: a terminal gets the live table, anything else plain lines.
        until: called once a round; true when no controller writes the journal any more.
        poll_s: time between two reads of the journal.
        plain_every_s: without a terminal, the least time between two lines about the progress.
        note: called every NOTE_S seconds; returns a problem of the run to show with it, or None.
        history: how many lines about earlier events are shown (default: all).
        keys: the user's keys, for the live table; with `keys.quit` the user has left it.

    Returns:
        The status at the end.

    Raises:
        KeyboardInterrupt: passed on, after the terminal has been restored.
    """
    reader = RunReader(run)
    folding = StatusFold(RunStatus(run_id=visible(run.root.name)))
    starting = StartingLines()
    noted, current_note, hooks = 0.0, None, deliveries.read(run)
    live = console.is_terminal and not console.is_dumb_terminal
    with _Table(console, clock, run, keys) if live else _Lines(console, plain_every_s) as screen:
        while True:
            last = until()  # called before reading, so that everything written until then is shown
            lines: deque[tuple[Event, str]] = deque(maxlen=history)
            for event in map(readable, reader.iter_new() if history is None else reader.up_to_now()):
                lines.extend(starting.before(event, folding.status))
                folding.apply(event)
                if event.get("event") == records.StepStarting.event:
                    starting.take(event)
                elif event.get("event") == records.RunFinished.event:
                    pass  # the summary follows, which says it
                elif (line := screen.line(event, folding)) is not None:
                    lines.append((event, line))
                history = None  # for the first lines only
            lines.extend(starting.end_of_round(folding.status))
            if clock() - noted >= NOTE_S:
                noted, current_note, hooks = clock(), note(), deliveries.read(run)
            screen.show(lines, replace(folding.status, hooks=hooks), current_note)
            if last or folding.status.outcome != "running" or (keys is not None and keys.quit):
                return folding.status
            screen.wait(poll_s, sleep)


class _Screen(AbstractContextManager["_Screen"]):
    """An output for a run that is followed."""

    def line(self, event: Event, folding: StatusFold) -> str | None:
        """Return the line for an event that `folding` has applied; None: it has no line."""
        return None if event.get("event") == records.Progress.event else sentences.describe(event, folding.status)

    def wait(self, seconds: float, sleep: Callable[[float], None]) -> None:
        """Wait for the next round."""
        sleep(seconds)

    @abstractmethod
    def show(self, lines: Iterable[tuple[Event, str]], status: RunStatus, note: str | None = None) -> None:
        """Print the new lines and show the status; `note` is a problem of the run."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        return None


class _Lines(_Screen):
    """Output to a file or a pipe: a line for each event, and a line about the progress every `every_s` seconds."""

    def __init__(self, console: Console, every_s: float) -> None:
        self._console = console
        self._every_s = every_s
        self._last: float | None = None  # the time of the last line about the progress
        self._noted = False

    def line(self, event: Event, folding: StatusFold) -> str | None:
        if event.get("event") == records.FullRestart.event:
            self._last = None
        if event.get("event") != records.Progress.event:
            return super().line(event, folding)
        now = number(event, "time") or 0.0
        if self._last is None:
            self._last = now  # no line yet: the groups report their first steps one after another
        if now - self._last < self._every_s:
            return None
        self._last = now
        status = folding.status
        rate = f", {speed(status.steps_per_s)} steps/s" if status.steps_per_s else ""
        return f"step {sentences.of_total(status.step, status)}, {plural(status.at_work, 'group')}{rate}"

    def show(self, lines: Iterable[tuple[Event, str]], status: RunStatus, note: str | None = None) -> None:
        for event, line in lines:
            # Not wrapped, so that grep finds whole lines.
            self._console.print(Text(f"{_stamp(event)} {line}"), soft_wrap=True, highlight=False)
        if note is not None and not self._noted and status.outcome == "running":
            self._console.print(Text(note), soft_wrap=True, highlight=False)
        self._noted = note is not None


class _Table(_Screen):
    """Output to a terminal: events scroll by above a table of the groups."""

    def __init__(self, console: Console, clock: Callable[[], float], run: RunDir, keys: Keys | None) -> None:
        self._console, self._clock, self._run, self._keys = console, clock, run, keys
        self._view, self._help = View(), False
        # Without rich's thread: follow() redraws after each read of the journal, with the clock in the title.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn: object = None  # the values that the table on the screen was drawn from
        self._page: LogPage | None = None  # shown instead of the table
        self._screen: ScreenContext | None = None  # of that page
        self._held: list[tuple[Event, str]] = []  # lines that are printed when the page is closed
        self._status = RunStatus()

    def __enter__(self) -> _Table:
        if self._keys is not None:
            self._keys.__enter__()
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self._close_page()
            self._live.stop()
        finally:
            if self._keys is not None:
                self._keys.__exit__(kind, error, tb)

    def show(self, lines: Iterable[tuple[Event, str]], status: RunStatus, note: str | None = None) -> None:
        self._status, size = status, self._console.size
        self._held += lines
        if self._page is not None and self._screen is not None:
            self._screen.update(self._page.render(size.width, size.height))
            return
        for event, line in self._held:
            record = read(event)
            ok = isinstance(record, records.StepExited) and record.cause == "ok"
            style = "blue" if ok else _LINE_STYLES.get(type(record), "")
            # The terminal wraps the line, not rich, so that a path can be copied in one piece.
            text = Text.assemble((_stamp(event), "dim"), " ", (line, style))
            self._console.print(text, soft_wrap=True, highlight=False)
        self._held.clear()
        now, view = self._clock(), replace(self._view, keys=self._about_keys())
        drawn = (status, int(now), size, note, view)
        if drawn != self._drawn:  # redrawing is expensive over a slow connection
            shown = with_last_lines(status, self._run)
            self._live.update(render(shown, now, size.width, size.height, note, view), refresh=True)
            self._drawn = drawn

    def wait(self, seconds: float, sleep: Callable[[float], None]) -> None:
        """Wait for the next round, or for keys."""
        if self._keys is None:
            return sleep(seconds)
        for key in self._keys.wait(seconds):
            self._press(key)
        return None

    def _press(self, key: str) -> None:
        if self._page is not None:
            if not self._page.press(key, self._console.size.height):
                self._close_page()
            return
        groups = ordered(self._status, self._view)
        numbers = [group.group for group in groups]
        at = numbers.index(self._view.chosen) if self._view.chosen in numbers else None
        if key == "s":
            orders = list(ORDERS)
            following = orders[(orders.index(self._view.order) + 1) % len(orders)]
            self._view = replace(self._view, order=following)
        elif key in ("up", "down", "k", "j") and numbers:
            step = 1 if key in ("down", "j") else -1
            at = min(max(at + step, 0), len(numbers) - 1) if at is not None else 0 if step > 0 else len(numbers) - 1
            self._view = replace(self._view, chosen=numbers[at])
        elif key == "escape":
            self._view, self._help = replace(self._view, chosen=None), False
        elif key in ("enter", "l") and numbers:
            self._open_page(groups[at or 0])
        elif key == "?":
            self._help = not self._help
        elif key == "q" and self._keys is not None and self._keys.may_quit:
            self._keys.quit = True

    def _about_keys(self) -> str | None:
        if self._keys is None:
            return None
        leave = "q: leave, the run goes on" if self._keys.may_quit else "Ctrl-C: stop the run"
        if self._help:
            return "\n".join((*_HELP, leave))
        return f"s: sort ({self._view.order})  up, down: choose  enter: log  ?: help  {leave.partition(',')[0]}"

    def _open_page(self, group: GroupStatus) -> None:
        self._page, self._drawn = LogPage(group, self._run), None
        self._live.stop()
        self._screen = self._console.screen(hide_cursor=True)
        self._screen.__enter__()

    def _close_page(self) -> None:
        if self._screen is not None:
            self._screen.__exit__(None, None, None)
            self._page = self._screen = None
            self._live.start()


_NOTES = (sentences.parent, sentences.standbys, sentences.left_out, sentences.checkpoint, sentences.hang_limit)


def render(
    status: RunStatus,
    now: float,
    width: int = 80,
    height: int = 100,
    note: str | None = None,
    view: View | None = None,
) -> RenderableType:
    """Return the live area: title, progress, the groups that fit into `height` lines, the Lighthouse."""
    width, status, view = width if width >= SHEET else min(width, 120), aged(status, now), view or View()
    running = status.outcome == "running"
    top = _title(status, now, width)
    if note is not None and running:
        top += _folded(note, width, "bold red")
    low = height < 40  # then one line for each warning; the events above have printed it in full
    for line in [*(f"warning: {words}" for words in status.cautions), *sentences.hook_lines(status)] if running else []:
        cut = [Text(line, "yellow", no_wrap=True, overflow="ellipsis")]
        top += cut if low else _folded(line, width, "yellow")
    below = [] if status.lighthouse is None or not running else [Text(), _lighthouse(status, status.lighthouse)]
    notes = [f(status) for f in _NOTES]
    notes += [*sentences.unfit(status), *sentences.job_lines(status, now)]
    for line in [line for line in notes if line] if running else []:
        below += _folded(line, width, "")
    about = view.keys.splitlines() if view.keys else []
    below += [Text(line, "dim", no_wrap=True, overflow="ellipsis") for line in about]
    room = height - len(top) - len(below) - 3  # the bar, a blank line, and the line of the cursor
    return Group(*top, _bar(status, width), Text(), *rows(status, now, width, max(3, room), view), *below)


def _folded(words: str, width: int, style: str) -> list[Text]:
    indent = " " * (len(words) - len(words.lstrip()) + 2)
    lines = wrap(words, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    return [Text(line, style, overflow="fold") for line in lines]


def _title(status: RunStatus, now: float, width: int) -> list[Text]:
    left = Text.assemble((status.run_id, "bold"))
    if status.job_id is not None:
        left.append(f"  job {status.job_id}" + (f" (start {status.starts})" if status.starts > 1 else ""), "dim")
    facts = []
    if status.outcome != "running":
        facts.append(sentences.ended(status.outcome))
    elif status.groups:
        word = "running" if status.lighthouse is None else "stepping"
        facts.append(f"{status.at_work} of {plural(len(status.groups), 'group')} {word}")
    if status.restarts:
        facts.append(plural(status.restarts, "restart"))
    if status.started is not None:
        facts.append(clock((status.finished or now) - status.started))
    right = Text("  ".join(facts), "dim", no_wrap=True, overflow="ellipsis")
    gap = width - cell_len(left.plain) - cell_len(right.plain)
    if gap < 2:
        return [left, right]
    return [Text.assemble(left, " " * (2 if width >= SHEET else gap), right, no_wrap=True)]


def _bar(status: RunStatus, width: int) -> RenderableType:
    rate, total = status.steps_per_s, status.total_steps
    words = f"step {sentences.of_total(status.step, status)}"
    if rate:
        words += f"  {speed(rate)} steps/s"
    elif status.still_s is not None:
        words += f"  still for {seconds(status.still_s)}"
    if not total:
        return Text(words)
    if status.left_s is not None:
        words += f"  {clock(status.left_s)} left"
    # The greatest length of the text, so that the bar only moves when the training does.
    room = len(f"step {total}/{total}  1000.0 steps/s  00:00:00 left")
    if width >= SHEET or width < room + 12:
        return Text(words, no_wrap=True, overflow="ellipsis")
    grid = Table.grid(padding=(0, 2))
    bar = ProgressBar(total, status.step, width=width - 2 - room, complete_style="green")
    grid.add_row(bar, Text(words, no_wrap=True))
    return grid


def _lighthouse(status: RunStatus, unit: LighthouseStatus) -> Text:
    text = Text.assemble("Lighthouse ", (unit.phase.value, STYLES[unit.phase]))
    if unit.nodes:
        text.append(f" on {few(unit.nodes)}")
    if unit.attempt:
        text.append(f", attempt {unit.attempt}")
    quorums = [(g.quorum_id, g.participants) for g in status.groups if g.quorum_id is not None and g.participants]
    if quorums:
        number_, size = max(quorums)
        text.append(f", quorum {number_} has {plural(size, 'group')}")
    return text


def _stamp(event: Event) -> str:
    return time.strftime("%H:%M:%S", time.localtime(number(event, "time") or 0.0))
