"""How does a person follow a run? A live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
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
from ftslurm.monitor import sentences, sentences_jobs
from ftslurm.monitor.standstill import aged
from ftslurm.monitor.status import RunStatus, fold
from ftslurm.monitor.status_groups import GroupStatus, LighthouseStatus
from ftslurm.monitor.summary import outcome_style
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event, JournalReader, number
from ftslurm.run.journal_filter import Skim
from ftslurm.security.terminal import beneath, readable, visible

_STYLES = {
    Phase.PENDING: "yellow",
    Phase.STARTING: "yellow",
    Phase.RUNNING: "green",
    Phase.STOPPING: "magenta",
    Phase.SUCCEEDED: "blue",
    Phase.FAILED: "bold red",
}
_EVENTS = {
    "step_exited": "red",
    "group_given_up": "bold red",
    "node_excluded": "red",
    "node_silent": "yellow",
    "hang_found": "red",
    "warning": "bold yellow",
    "no_first_step": "bold yellow",
    "group_waits": "yellow",
    "allocation_lost": "yellow",
    "allocation_refused": "bold yellow",
    "allocation_pending": "yellow",
    "allocation_leaving": "yellow",
    "allocation_requeued": "yellow",
    "pilot_restarted": "yellow",
    "scaled": "magenta",
    "scale_refused": "magenta",
    "fault_injected": "magenta",
    "fault_refused": "magenta",
    "restart_scheduled": "yellow",
    "launch_refused": "yellow",
    "roll_over": "yellow",
    "run_requeued": "yellow",
    "step_launched": "yellow",
    "group_joined": "green",
}
NOTE_S = 5.0  # how often it is asked what is the matter
_FIXED_LINES = 8  # title, bar, blank, header, blank, Lighthouse, the line the cursor is on, and one to breathe


def console() -> Console:
    """stdout. What is no terminal is as wide as its longest line: one line of ours stays one line there."""
    out = beneath(sys.stdout)
    here = _Console(file=out, markup=False, emoji=False)
    return here if here.is_terminal else _Console(file=out, markup=False, emoji=False, width=1000)


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """All that is drawn, with what would steer the terminal written out, unless it is rich's own."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else piece._replace(text=visible(piece.text, lines=True))

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end the program with 1 and no word


class Lines:
    """Prints events as they happen, one line each: for the output file of a job."""

    def __init__(self, out: Console) -> None:
        self.status = RunStatus()
        self._screen = _Lines(out, every_s=60.0)

    def know(self, status: RunStatus) -> None:
        """Go on from how the run stands: another controller has shown what was before."""
        self.status = status

    def tell(self, event: Event) -> None:
        """Show one event."""
        event = readable(event)
        self.status = fold(self.status, event)
        line = self._screen.line(event, self.status)
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
    """Show the run until it has finished or `until()` is true, and return how it stands then.

    Args:
        console: a terminal gets the live table, anything else plain lines.
        until: asked once a round; say true when nobody writes the journal any more (the controller died).
        poll_s: how often the journal is looked at; reading nothing new costs one open.
        plain_every_s: without a terminal, at most one line about the progress in this time.
        note: asked every few seconds; what it says is shown with the run.
        history: of the lines written before we came, show only this many (default: all).

    Raises:
        KeyboardInterrupt: passed on; the terminal is as it was.
    """
    reader = JournalReader(run.events)
    status = RunStatus(run_id=visible(run.root.name))
    look, told = 0.0, None  # at the note
    live = console.is_terminal and not console.is_dumb_terminal
    with _Table(console, clock) if live else _Lines(console, plain_every_s) as screen:
        while True:
            last = until()  # asked before reading: what was written until then is still shown
            lines: deque[tuple[Event, str]] = deque(maxlen=history)
            for event in map(readable, reader.iter_new() if history is None else Skim().read(reader)):
                status = fold(status, event)
                line = screen.line(event, status)
                if line is not None:
                    lines.append((event, line))
                history = None  # for the first lines only
            if clock() - look >= NOTE_S:
                look, told = clock(), note()
            screen.show(lines, status, told)
            if last or status.outcome != "running":
                return status
            sleep(poll_s)


class _Screen(AbstractContextManager["_Screen"]):
    """Where the followed run is shown."""

    def line(self, event: Event, status: RunStatus) -> str | None:
        """What to print for an event, where `status` is how the run stood just after it."""
        return sentences.describe(event, status)

    @abstractmethod
    def show(self, lines: Iterable[tuple[Event, str]], status: RunStatus, note: str | None = None) -> None:
        """Print the new lines, and show how the run stands now; `note` says what is the matter with it."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        return None


class _Lines(_Screen):
    """For a file or a pipe: every event, and now and then where the training is."""

    def __init__(self, console: Console, every_s: float) -> None:
        self._console = console
        self._every_s = every_s
        self._told: float | None = None  # the time of the last line about progress
        self._noted = False

    def line(self, event: Event, status: RunStatus) -> str | None:
        if event.get("event") == "full_restart":
            self._told = None
        if event.get("event") != "progress":
            return super().line(event, status)
        now = number(event, "time") or 0.0
        if self._told is None:
            self._told = now  # not yet: the groups tell of their first step one after another
        if now - self._told < self._every_s:
            return None
        self._told = now
        rate = f", {sentences.rate(status.steps_per_s)} steps/s" if status.steps_per_s else ""
        return f"step {sentences.of_total(status.step, status)}, {sentences.plural(status.at_work, 'group')}{rate}"

    def show(self, lines: Iterable[tuple[Event, str]], status: RunStatus, note: str | None = None) -> None:
        for event, line in lines:
            # Never wrapped: one event is one line for whoever greps.
            self._console.print(Text(f"{_stamp(event)} {line}"), soft_wrap=True, highlight=False)
        if note is not None and not self._noted and status.outcome == "running":
            self._console.print(Text(note), soft_wrap=True, highlight=False)
        self._noted = note is not None


class _Table(_Screen):
    """For a terminal: events scroll by above a table of the groups."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console = console
        self._clock = clock
        # No thread of rich's own: we redraw when we have looked, and the clock in the title moves with it.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn: object = None  # what the picture on the screen was made of

    def __enter__(self) -> _Table:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()

    def show(self, lines: Iterable[tuple[Event, str]], status: RunStatus, note: str | None = None) -> None:
        for event, line in lines:
            style = "blue" if event.get("cause") == "ok" else _EVENTS.get(str(event.get("event")), "")
            # The terminal wraps, not rich: so a path can be copied in one piece.
            text = Text.assemble((_stamp(event), "dim"), " ", (line, style))
            self._console.print(text, soft_wrap=True, highlight=False)
        now, size = self._clock(), self._console.size
        drawn = (status, int(now), size, note)
        if drawn != self._drawn:  # over a slow line every picture costs
            self._live.update(render(status, now, size.width, size.height, note), refresh=True)
            self._drawn = drawn


def render(
    status: RunStatus, now: float, width: int = 80, height: int = 100, note: str | None = None
) -> RenderableType:
    """The live area: title, progress, the groups that fit into `height` lines, the Lighthouse."""
    width, status = min(width, 120), aged(status, now)
    running = status.outcome == "running"
    parts: list[RenderableType] = [_title(status, now, width)]
    if not running and status.reason:
        parts.append(Text(status.reason, outcome_style(status)))
    if note is not None and running:
        parts.append(Text(note, "bold red"))
    low = height < 40  # a line each; they have been told in full
    warnings = [f"warning: {words}" for words in status.cautions if running]
    parts += [Text(line, "yellow", no_wrap=low, overflow="ellipsis") for line in warnings]
    room = height - sum(1 if low else len(wrap(line, width)) for line in warnings) - (note is not None)
    notes = (sentences.standbys(status), sentences.left_out(status), sentences.checkpoint(status))
    extra = [*(line for line in notes if line), *sentences_jobs.lines(status, now)] if running else []
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
    # As long as the words can get, so that the bar only moves when the training does.
    room = len(f"step {total}/{total}  1000.0 steps/s  00:00:00 left")
    grid = Table.grid(padding=(0, 2))
    bar = ProgressBar(total, status.step, width=max(10, width - 2 - room), complete_style="green")
    grid.add_row(bar, Text(words, no_wrap=True))
    return grid


def _groups(status: RunStatus, now: float, width: int, height: int) -> RenderableType:
    shown, rest = _fitting(status.groups, max(2, height - _FIXED_LINES))
    wide = width >= 100
    step = max([len("step"), *(len(_step(g, status, wide)) for g in status.groups)])
    # Groups without a quorum may differ, and have sessions.
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
    """The groups that get a line each, and those that are only counted: the groups that step are of least interest."""
    if len(groups) <= lines:
        return list(groups), []
    notable = [g for g in groups if not g.stepping]
    shown = notable[: lines - 1]
    return shown, notable[lines - 1 :] + [g for g in groups if g.stepping]


def _rest(groups: Sequence[GroupStatus], status: RunStatus) -> Text:
    """The groups without a line of their own: "... 61 more RUNNING, 2 more STARTING"."""
    counts = Counter((sentences.phase(g, status), _STYLES[g.phase]) for g in groups)
    text = Text("  ...  ", "dim")
    for n, ((phase, style), count) in enumerate(counts.most_common()):
        text.append(", " if n else "").append(f"{count} more ").append(phase, style)
    return text


def _place(group: GroupStatus, status: RunStatus, now: float, room: int) -> Text:
    """Where the group is, and what is the matter if it does not step."""
    job = sentences_jobs.table_note(group, status, now) if status.outcome == "running" else None
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
