"""The rows of the groups in the tables of `status` and `top`: what does not fit is dropped, the dearest column last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ftslurm.core.state.model import Phase
from ftslurm.monitor import sentences
from ftslurm.monitor.status import GroupStatus, RunStatus
from ftslurm.words import few, seconds, speed

STYLES = {  # the worst first
    Phase.FAILED: "bold red",
    Phase.STOPPING: "magenta",
    Phase.PENDING: "yellow",
    Phase.STARTING: "yellow",
    Phase.RUNNING: "green",
    Phase.SUCCEEDED: "blue",
}
ORDERS: dict[str, Callable[[GroupStatus], tuple[object, ...]]] = {
    "group": lambda g: (g.group,),
    "state": lambda g: ([*STYLES].index(g.phase), g.stepping, g.group),
    "restarts": lambda g: (-g.restarts, g.group),
}
NUMBERS = frozenset(("group", "step", "groups", "attempt", "restarts", "steps/s"))
_DROPPED = ("attempt", "steps/s", "restarts", "groups", "role")  # in this order
_ROOM = 40  # columns of a screen that nodes and reasons get before others are dropped
_REASON_LINES = 5  # of one group
_CONSOLE = Console()  # measures tables
SHEET = 1000  # the width of output that is no terminal: nothing is wrapped or left out


def height_of(what: RenderableType, width: int) -> int:
    """Return how many lines something takes."""
    return len(_CONSOLE.render_lines(what, _CONSOLE.options.update(width=width)))


class Rows:
    """The cells of the groups, in the columns that fit a width."""

    def __init__(self, status: RunStatus, now: float, width: int) -> None:
        self._cells = {group.group: _cells(group, status, now) for group in status.groups}
        known = {"role": any(group.role for group in status.groups), "groups": status.lighthouse is not None}
        self.columns = {
            name: max([len(name), *(cell_len(cells[name].plain) for cells in self._cells.values())])
            for name in ("group", "role", "phase", "step", "groups", "attempt", "restarts", "steps/s")
            if known.get(name, True)
        }
        for name in _DROPPED:
            if self._left(width) < _ROOM:
                self.columns.pop(name, None)
        self.room = max(10, self._left(width))  # of the last column: the nodes, and why a group does not step

    def _left(self, width: int) -> int:
        return width - sum(self.columns.values()) - len(self.columns)

    def cells(self, group: GroupStatus) -> list[Text]:
        """Return what stands in the columns, and in the last one."""
        cells = self._cells[group.group]
        return [*(cells[name] for name in self.columns), cells["node"]]

    def table(self, groups: Iterable[GroupStatus], lines: int) -> Table:
        """Return the table of these groups, with so many lines of each that are full."""
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
        for name, size in self.columns.items():
            table.add_column(name, width=size, justify="right" if name in NUMBERS else "left", no_wrap=True)
        table.add_column("node", max_width=self.room, overflow="fold")
        for group in groups:
            *cells, last = self.cells(group)
            last.truncate(lines * self.room, overflow="ellipsis")
            table.add_row(*cells, last)
        return table


def rows(status: RunStatus, now: float, width: int, height: int) -> RenderableType:
    """Return the table of the groups, at most `height` lines of it if that is at least 3.

    Where not all fit, those that do not step come first, the failed ones before all; the others are counted.
    """
    fitting = Rows(status, now, width)
    urgent = sorted(status.groups, key=ORDERS["state"])
    for most in range(min(len(urgent), height - 1), -1, -1):
        shown, rest = urgent[:most] if most < len(urgent) else status.groups, urgent[most:]
        table = fitting.table(shown, max(1, min(_REASON_LINES, height - 3)))
        if height_of(table, width) + bool(rest) <= height:
            break
    counted = Counter((sentences.phase(group, status), STYLES[group.phase]) for group in rest)
    more = Text("  ...  ", "dim", no_wrap=True, overflow="ellipsis")
    for n, ((phase, style), count) in enumerate(counted.most_common()):
        more.append(", " if n else "").append(f"{count} more ").append(phase, style)
    return Group(table, *([more] if counted else []))


def _cells(group: GroupStatus, status: RunStatus, now: float) -> dict[str, Text]:
    rate = group.steps_per_s
    return {
        "group": Text(str(group.group)),
        "role": Text(_or_dash(group.role)),
        "phase": Text(sentences.phase(group, status), STYLES[group.phase]),
        "step": Text(_or_dash(group.step)),
        "groups": Text(_or_dash(group.participants)),
        "attempt": Text(_or_dash(group.attempt)),
        "restarts": Text(str(group.restarts), "yellow" if group.restarts else ""),
        "steps/s": Text(_or_dash(speed(rate) if rate else None)),
        "node": _node(group, status, now),
    }


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _node(group: GroupStatus, status: RunStatus, now: float) -> Text:
    """Return the nodes of a group, and why it does not step, or its job."""
    pending = group.phase is Phase.PENDING and group.job in status.jobs  # it has left its last nodes
    parts = [Text(few(group.nodes, 2))] if group.nodes and not pending else []
    if status.outcome == "running":
        job = sentences.table_note(group, status, now)
        if group.phase is Phase.FAILED and group.error:
            parts.append(Text(group.error, "red"))
        elif group.still_s is not None and group.aside is None:
            parts.append(Text(f"still for {seconds(group.still_s)}", "yellow"))
        elif (waits := sentences.waits(group, status, now)) or job:
            parts.append(Text(waits or job or "", "yellow" if waits else "dim"))
    return Text(" ").join(parts)
