"""The rows of the groups in the table of `status`, as lines that fit: columns are dropped, reasons get lines below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ftslurm.core.state.model import Phase
from ftslurm.monitor import sentences
from ftslurm.monitor.status import GroupStatus, RunStatus
from ftslurm.words import few, seconds, speed

STYLES = {
    Phase.PENDING: "yellow",
    Phase.STARTING: "yellow",
    Phase.RUNNING: "green",
    Phase.STOPPING: "magenta",
    Phase.SUCCEEDED: "blue",
    Phase.FAILED: "bold red",
}
_WORST_FIRST = (Phase.FAILED, Phase.STOPPING, Phase.PENDING, Phase.STARTING, Phase.RUNNING, Phase.SUCCEEDED)
ORDERS: dict[str, Callable[[GroupStatus], object]] = {
    "group": lambda g: g.group,
    "state": lambda g: (_WORST_FIRST.index(g.phase), g.stepping, g.group),
    "restarts": lambda g: (-g.restarts, g.group),
    "node": lambda g: (g.nodes, g.group),
}
_DROPPED = ("attempt", "steps/s", "restarts", "groups", "sessions", "role")  # in this order, for long names of nodes
_INDENT = 6
_REASON_LINES = 3  # below one group, on a screen


@dataclass(frozen=True)
class View:
    """What the user has chosen to see."""

    order: str = "group"  # a key of ORDERS
    chosen: int | None = None  # number of a group
    keys: str | None = None  # the line about the keys


def ordered(status: RunStatus, view: View) -> list[GroupStatus]:
    """Return the groups in the order of the view."""
    return sorted(status.groups, key=ORDERS[view.order])  # type: ignore[arg-type]


def rows(status: RunStatus, now: float, width: int, height: int, view: View) -> list[Text]:
    """Return the header and the lines of the groups, at most `height` of them if that is at least 3."""
    table, lines = _Table(status, now, width), max(2, height - 1)
    groups = ordered(status, view)
    if len(groups) <= lines:
        whole = [table.lines(group, view) for group in groups]
        if sum(map(len, whole)) <= lines:
            return [table.header(), *(line for group in whole for line in group)]
    urgent = min(groups, key=lambda g: _urgency(g, view))  # its reason is told even if fewer groups get a row
    kept = min(len(table.lines(urgent, view)) - 1, lines // 3)
    shown, rest = _fitting(groups, lines - kept, view)
    room = lines - len(shown) - bool(rest)
    told = dict[int, list[Text]]()
    for group in sorted(shown, key=lambda g: _urgency(g, view)):
        row, *reasons = table.lines(group, view)
        told[group.group] = [row, *reasons] if len(reasons) <= room else [row]
        room -= len(told[group.group]) - 1
    out = [table.header(), *(line for group in shown for line in told[group.group])]
    return [*out, _rest(rest, status)] if rest else out


def _urgency(group: GroupStatus, view: View) -> tuple[bool, object]:
    return group.group != view.chosen, ORDERS["state"](group)


class _Table:
    """The columns that fit, with their widths."""

    def __init__(self, status: RunStatus, now: float, width: int) -> None:
        self.status, self.now, self.width, self.wide = status, now, width, width >= 100
        step = max([len("step"), *(len(self._step(g)) for g in status.groups)])
        # Without a quorum, groups may have roles and sessions.
        roles = [cell_len(g.role) for g in status.groups if g.role]
        ties = {"groups": 6} if status.lighthouse is not None else {"sessions": 8}
        columns = {"group": 5} | (
            {"role": max(4, *roles)} if len(roles) > 1 else {"role": 4 + max(roles)} if roles else {}
        )
        columns |= {"phase": 9, "step": step, **ties, "attempt": 7, "restarts": 8, "steps/s": 7}
        self.gap = 2 if self.wide else 1
        longest = max((cell_len(_nodes(g, status)) for g in status.groups), default=0)
        for name in _DROPPED:
            if width - sum(columns.values()) - self.gap * len(columns) < max(10, longest):
                columns.pop(name, None)
        self.columns = columns
        self.room = max(0, width - sum(columns.values()) - self.gap * len(columns))

    def header(self) -> Text:
        return self._line({name: Text(name) for name in self.columns}, Text("node")[: self.room], "dim")

    def lines(self, group: GroupStatus, view: View) -> list[Text]:
        """Return the row of a group, and the lines below it: what is too long for the row."""
        chosen = group.group == view.chosen
        nodes, reason, style = _nodes(group, self.status), *self._reason(group)
        place, below = Text(nodes), list[Text]()
        if cell_len(nodes) > self.room:
            place, below = Text(), self._below(f"on {nodes}", "")
        if reason and cell_len(f"{place.plain} {reason}") <= self.room:
            place.append(f"{' ' if place.plain else ''}{reason}", style)
        elif reason:
            below += self._below(reason, style)
        if group.last_line and self.status.outcome == "running":
            below += self._below(f'last: "{group.last_line}"', "dim")
        rate = group.steps_per_s
        ties = group.participants if self.status.lighthouse is not None else group.sessions
        cells = {
            "group": Text(f">{group.group:>4}" if chosen else str(group.group)),
            "role": Text(_or_dash(group.role)),
            "phase": Text(sentences.phase(group, self.status), STYLES[group.phase]),
            "step": Text(self._step(group)),
            "groups": Text(_or_dash(ties)),
            "sessions": Text(_or_dash(ties)),
            "attempt": Text(_or_dash(group.attempt)),
            "restarts": Text(str(group.restarts), "yellow" if group.restarts else ""),
            "steps/s": Text(_or_dash(speed(rate) if rate else None)),
        }
        return [self._line(cells, place, "reverse" if chosen else ""), *below]

    def _line(self, cells: dict[str, Text], place: Text, style: str) -> Text:
        line = Text(style=style)
        for name, size in self.columns.items():
            pad = " " * max(0, size - cell_len(cells[name].plain))
            parts = (cells[name], pad) if name in ("phase", "role") else (pad, cells[name])
            line.append_text(Text.assemble(*parts)).append(" " * self.gap)
        line.append_text(place)
        line.rstrip()
        return line

    def _below(self, words: str, style: str) -> list[Text]:
        lines = wrap(words, max(20, self.width - _INDENT), break_on_hyphens=False)
        if len(lines) > _REASON_LINES and self.width < SHEET:
            last = lines[_REASON_LINES - 1]
            lines = [*lines[: _REASON_LINES - 1], set_cell_size(last, self.width - _INDENT - 4).rstrip() + " ..."]
        return [Text(" " * _INDENT + line, style) for line in lines]

    def _step(self, group: GroupStatus) -> str:
        if group.step is None:
            return "-"
        return sentences.of_total(group.step, self.status) if self.wide else str(group.step)

    def _reason(self, group: GroupStatus) -> tuple[str, str]:
        """Return why the group does not step, or its job; and the style."""
        running = self.status.outcome == "running"
        job = sentences.table_note(group, self.status, self.now) if running else None
        if group.phase is Phase.FAILED and group.error:
            return (group.error, "red") if running else ("", "")  # below the table of a run that is over
        if group.still_s is not None and group.aside is None:
            return f"still for {seconds(group.still_s)}", "yellow"
        waits = sentences.waits(group, self.status, self.now) if running else None
        return (waits, "yellow") if waits else (job or "", "dim")


SHEET = 1000  # the width of output that is no terminal: nothing is wrapped or left out


def _nodes(group: GroupStatus, status: RunStatus) -> str:
    waits = group.phase is Phase.PENDING and status.jobs.named(group.job) is not None  # it has left its last nodes
    return few(group.nodes, 2) if group.nodes and not waits else ""


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _fitting(groups: Sequence[GroupStatus], lines: int, view: View) -> tuple[list[GroupStatus], list[GroupStatus]]:
    """Return the groups that get a row each, and those that are only counted.

    Where all do not fit, those that do not step come first, the failed ones before all; the groups around the chosen
    one if there is one.
    """
    if len(groups) <= lines:
        return list(groups), []
    if view.chosen is not None:
        at = next((n for n, g in enumerate(groups) if g.group == view.chosen), 0)
        first = min(max(0, at - (lines - 1) // 2), len(groups) - (lines - 1))
        return list(groups[first : first + lines - 1]), [*groups[:first], *groups[first + lines - 1 :]]
    notable = sorted((g for g in groups if not g.stepping), key=ORDERS["state"])  # type: ignore[arg-type]
    shown = notable[: lines - 1] or list(groups[: lines - 1])
    numbers = {g.group for g in shown}
    return shown, [g for g in groups if g.group not in numbers]


def _rest(groups: Sequence[GroupStatus], status: RunStatus) -> Text:
    """Count the groups without a row of their own: "... 61 more RUNNING, 2 more STARTING"."""
    counts = Counter((sentences.phase(g, status), STYLES[g.phase]) for g in groups)
    text = Text("  ...  ", "dim")
    for n, ((phase, style), count) in enumerate(counts.most_common()):
        text.append(", " if n else "").append(f"{count} more ").append(phase, style)
    return text
