"""Follow a run: a live table of the groups on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from textwrap import wrap
from types import TracebackType

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ftslurm.core.state.model import Phase
from ftslurm.monitor import sentences
from ftslurm.monitor.status import GroupStatus, LighthouseStatus, RunStatus, aged
from ftslurm.monitor.status_fold import StatusFold
from ftslurm.monitor.summary import outcome_style
from ftslurm.protocol import records
from ftslurm.run import deliveries
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event, JournalReader, number
from ftslurm.run.journal_filter import Skim
from ftslurm.run.journal_lines import read
from ftslurm.security.terminal import beneath, readable, visible

_STYLES = {
    Phase.PENDING: "yellow",
    Phase.STARTING: "yellow",
    Phase.RUNNING: "green",
    Phase.STOPPING: "magenta",
    Phase.SUCCEEDED: "blue",
    Phase.FAILED: "bold red",
}
_LINE_STYLES: dict[type[records.JournalRecord], str] = {
    records.StepExited: "red",
    records.GroupGivenUp: "bold red",
    records.NodeExcluded: "red",
    records.NodeSilent: "yellow",
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
_FIXED_LINES = 8  # title, bar, blank, header, blank, Lighthouse, the line of the cursor, one spare


def console() -> Console:
    """Return a console for stdout. If it is no terminal, its width is 1000, so that no line is wrapped."""
    out = beneath(sys.stdout)
    here = _Console(file=out, markup=False, emoji=False)
    return here if here.is_terminal else _Console(file=out, markup=False, emoji=False, width=1000)


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render with control characters made visible, except rich's own."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else piece._replace(text=visible(piece.text, lines=True))

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit with 1, without a message


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

    def tell(self, event: Event) -> None:
        """Show one event."""
        event = readable(event)
        self._folding.apply(event)
        line = self._screen.line(event, self._folding)
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

    Returns:
        The status at the end.

    Raises:
        KeyboardInterrupt: passed on, after the terminal has been restored.
    """
    reader = JournalReader(run.events)
    folding = StatusFold(RunStatus(run_id=visible(run.root.name)))
    noted, current_note, hooks = 0.0, None, deliveries.read(run)
    live = console.is_terminal and not console.is_dumb_terminal
    with _Table(console, clock) if live else _Lines(console, plain_every_s) as screen:
        while True:
            last = until()  # called before reading, so that everything written until then is shown
            lines: deque[tuple[Event, str]] = deque(maxlen=history)
            for event in map(readable, reader.iter_new() if history is None else Skim().read(reader)):
                folding.apply(event)
                line = screen.line(event, folding)
                if line is not None:
                    lines.append((event, line))
                history = None  # for the first lines only
            if clock() - noted >= NOTE_S:
                noted, current_note, hooks = clock(), note(), deliveries.read(run)
            screen.show(lines, replace(folding.status, hooks=hooks), current_note)
            if last or folding.status.outcome != "running":
                return folding.status
            sleep(poll_s)


class _Screen(AbstractContextManager["_Screen"]):
    """An output for a run that is followed."""

    def line(self, event: Event, folding: StatusFold) -> str | None:
        """Return the line for an event that `folding` has applied; None: it has no line."""
        return None if event.get("event") == records.Progress.event else sentences.describe(event, folding.status)

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
        rate = f", {sentences.rate(status.steps_per_s)} steps/s" if status.steps_per_s else ""
        return f"step {sentences.of_total(status.step, status)}, {sentences.plural(status.at_work, 'group')}{rate}"

    def show(self, lines: Iterable[tuple[Event, str]], status: RunStatus, note: str | None = None) -> None:
        for event, line in lines:
            # Not wrapped, so that grep finds whole lines.
            self._console.print(Text(f"{_stamp(event)} {line}"), soft_wrap=True, highlight=False)
        if note is not None and not self._noted and status.outcome == "running":
            self._console.print(Text(note), soft_wrap=True, highlight=False)
        self._noted = note is not None


class _Table(_Screen):
    """Output to a terminal: events scroll by above a table of the groups."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console = console
        self._clock = clock
        # Without rich's thread: follow() redraws after each read of the journal, with the clock in the title.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn: object = None  # the values that the table on the screen was drawn from

    def __enter__(self) -> _Table:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()

    def show(self, lines: Iterable[tuple[Event, str]], status: RunStatus, note: str | None = None) -> None:
        for event, line in lines:
            record = read(event)
            ok = isinstance(record, records.StepExited) and record.cause == "ok"
            style = "blue" if ok else _LINE_STYLES.get(type(record), "")
            # The terminal wraps the line, not rich, so that a path can be copied in one piece.
            text = Text.assemble((_stamp(event), "dim"), " ", (line, style))
            self._console.print(text, soft_wrap=True, highlight=False)
        now, size = self._clock(), self._console.size
        drawn = (status, int(now), size, note)
        if drawn != self._drawn:  # redrawing is expensive over a slow connection
            self._live.update(render(status, now, size.width, size.height, note), refresh=True)
            self._drawn = drawn


def render(
    status: RunStatus, now: float, width: int = 80, height: int = 100, note: str | None = None
) -> RenderableType:
    """Return the live area: title, progress, the groups that fit into `height` lines, the Lighthouse."""
    width, status = min(width, 120), aged(status, now)
    running = status.outcome == "running"
    parts: list[RenderableType] = [_title(status, now, width)]
    if not running and status.reason:
        parts.append(Text(status.reason, outcome_style(status)))
    if note is not None and running:
        parts.append(Text(note, "bold red"))
    low = height < 40  # then one line for each warning; the events above have printed it in full
    warnings = [f"warning: {words}" for words in status.cautions if running]
    warnings += sentences.hook_lines(status) if running else []  # at the end they are in the summary
    parts += [Text(line, "yellow", no_wrap=low, overflow="ellipsis") for line in warnings]
    room = height - sum(1 if low else len(wrap(line, width)) for line in warnings) - (note is not None)
    notes = (
        sentences.parent(status),
        sentences.standbys(status),
        sentences.left_out(status),
        sentences.checkpoint(status),
    )
    extra = [*(line for line in notes if line), *sentences.job_lines(status, now)] if running else []
    parts += [_bar(status, width), Text(), _groups(status, now, width, room - len(extra))]
    if running and status.lighthouse is not None:
        parts += [Text(), _lighthouse(status, status.lighthouse)]
    parts += [Text(line, no_wrap=True, overflow="ellipsis") for line in extra]
    return Group(*parts)


def _title(status: RunStatus, now: float, width: int) -> Text:
    left = Text.assemble((status.run_id, "bold"))
    if status.job_id is not None:
        left.append(f"  job {status.job_id}" + (f" (start {status.starts})" if status.starts > 1 else ""), "dim")
    facts = []
    if status.outcome != "running":
        facts.append(sentences.ended(status.outcome))
    elif status.groups:
        word = "running" if status.lighthouse is None else "stepping"
        facts.append(f"{status.at_work} of {sentences.plural(len(status.groups), 'group')} {word}")
    if status.restarts:
        facts.append(sentences.plural(status.restarts, "restart"))
    if status.started is not None:
        facts.append(sentences.clock((status.finished or now) - status.started))
    right = Text("  ".join(facts), "dim")
    gap = width - cell_len(left.plain) - cell_len(right.plain)
    return Text.assemble(left, " " * max(gap, 2), right, no_wrap=True, overflow="ellipsis")


def _bar(status: RunStatus, width: int) -> RenderableType:
    rate, total = status.steps_per_s, status.total_steps
    words = f"step {sentences.of_total(status.step, status)}"
    if rate:
        words += f"  {sentences.rate(rate)} steps/s"
    elif status.still_s is not None:
        words += f"  still for {sentences.seconds(status.still_s)}"
    if not total:
        return Text(words)
    if rate:
        words += f"  {sentences.clock((total - status.step) / rate)} left"
    # The greatest length of the text, so that the bar only moves when the training does.
    room = len(f"step {total}/{total}  1000.0 steps/s  00:00:00 left")
    grid = Table.grid(padding=(0, 2))
    bar = ProgressBar(total, status.step, width=max(10, width - 2 - room), complete_style="green")
    grid.add_row(bar, Text(words, no_wrap=True))
    return grid


def _groups(status: RunStatus, now: float, width: int, height: int) -> RenderableType:
    shown, rest = _fitting(status.groups, max(2, height - _FIXED_LINES))
    wide = width >= 100
    step = max([len("step"), *(len(_step(g, status, wide)) for g in status.groups)])
    # Without a quorum, groups may have roles and sessions.
    roles = {"role": max([4, *(cell_len(g.role) for g in status.groups if g.role)])} if _has_roles(status) else {}
    ties = {"quorum": 6} if status.lighthouse is not None else {"sessions": 8}
    columns = {"group": 5, **roles, "phase": 9, "step": step, **ties, "attempt": 7, "restarts": 8, "steps/s": 7}
    gap = 2 if wide else 1
    room = max(10, width - sum(columns.values()) - gap * len(columns))
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    for name, size in columns.items():
        table.add_column(name, width=size, justify="left" if name in ("phase", "role") else "right", no_wrap=True)
    table.add_column("node", width=room, no_wrap=True, overflow="ellipsis")
    for g in shown:
        table.add_row(
            str(g.group),
            *([_or_dash(g.role)] if roles else []),
            Text(sentences.phase(g, status), _STYLES[g.phase]),
            _step(g, status, wide),
            _or_dash(g.participants if status.lighthouse is not None else g.sessions),
            _or_dash(g.attempt),
            Text(str(g.restarts), "yellow" if g.restarts else ""),
            _or_dash(sentences.rate(g.steps_per_s) if g.steps_per_s else None),
            _place(g, status, now, room),
        )
    return Group(table, _rest(rest, status)) if rest else table


def _has_roles(status: RunStatus) -> bool:
    return any(g.role for g in status.groups)


def _step(group: GroupStatus, status: RunStatus, wide: bool) -> str:
    if group.step is None:
        return "-"
    return sentences.of_total(group.step, status) if wide else str(group.step)


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _fitting(groups: Sequence[GroupStatus], lines: int) -> tuple[list[GroupStatus], list[GroupStatus]]:
    """Return the groups that get a line each, and those that are only counted: first of all the groups that step."""
    if len(groups) <= lines:
        return list(groups), []
    notable = [g for g in groups if not g.stepping]
    shown = notable[: lines - 1]
    return shown, notable[lines - 1 :] + [g for g in groups if g.stepping]


def _rest(groups: Sequence[GroupStatus], status: RunStatus) -> Text:
    """Count the groups without a line of their own: "... 61 more RUNNING, 2 more STARTING"."""
    counts = Counter((sentences.phase(g, status), _STYLES[g.phase]) for g in groups)
    text = Text("  ...  ", "dim")
    for n, ((phase, style), count) in enumerate(counts.most_common()):
        text.append(", " if n else "").append(f"{count} more ").append(phase, style)
    return text


def _place(group: GroupStatus, status: RunStatus, now: float, room: int) -> Text:
    """Return the group's nodes and job, and the reason if it does not step."""
    job = sentences.table_note(group, status, now) if status.outcome == "running" else None
    if job is not None and group.phase is Phase.PENDING:
        return Text(job, "yellow")
    text = Text(sentences.few(group.nodes, 2) if group.nodes else "")
    gap = " " if group.nodes else ""
    if job is not None and (group.still_s is None and not group.waiting_for):
        text.append(gap + job, "dim")
    if group.phase is Phase.FAILED and group.last_error:
        return text.append(gap + group.last_error, "red")
    if group.still_s is not None:
        return text.append(f"{gap}still for {sentences.seconds(group.still_s)}", "yellow")
    if group.waiting_for:
        waits = f"{gap}waits for {group.waiting_for}"
        short = f"{gap}{group.waiting_for}..."
        text.append(waits if cell_len(text.plain + waits) <= room else short, "yellow")
    return text


def _lighthouse(status: RunStatus, unit: LighthouseStatus) -> Text:
    text = Text.assemble("Lighthouse ", (unit.phase.value, _STYLES[unit.phase]))
    if unit.nodes:
        text.append(f" on {sentences.few(unit.nodes)}")
    if unit.attempt:
        text.append(f", attempt {unit.attempt}")
    quorums = [(g.quorum_id, g.participants) for g in status.groups if g.quorum_id is not None and g.participants]
    if quorums:
        number_, size = max(quorums)
        text.append(f", quorum {number_} has {sentences.plural(size, 'group')}")
    return text


def _stamp(event: Event) -> str:
    return time.strftime("%H:%M:%S", time.localtime(number(event, "time") or 0.0))
