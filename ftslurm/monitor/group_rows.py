"""The rows of the groups in the tables of `status` and `top`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

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
WIDE = {"role": 60, "groups": 60, "restarts": 60, "attempt": 100, "steps/s": 100}  # columns of a screen that shows them
SHEET = 1000  # the width of output that is no terminal: nothing is wrapped or left out
_CONSOLE = Console()  # measures


def height_of(what: RenderableType, width: int) -> int:
    """Return how many lines something takes."""
    return len(_CONSOLE.render_lines(what, _CONSOLE.options.update(width=width)))


def rows(status: RunStatus, now: float, width: int, height: int) -> RenderableType:
    """Return the table of the groups, at most `height` lines of it if that is at least 3.

    Where not all fit, each has a line; those that do not step come first, the failed ones before all, and the others
    are counted.
    """
    names, cells = cells_of(status, now, width)
    groups, most = sorted(status.groups, key=ORDERS["state"]), height - 2
    if len(groups) < height:
        groups, most, whole = status.groups, height, _table(names, cells.values())
        if height_of(whole, width) <= height:
            return whole
    room = width - sum(max(map(len, column)) + 1 for column in [*zip(names, *cells.values(), strict=True)][:-1])
    shown = [cells[group.group] for group in groups[:most]]
    for *_, node in shown:
        node.truncate(max(10, room), overflow="ellipsis")
    counted = Counter(sentences.phase(group, status) for group in groups[most:]).most_common()
    more = ", ".join(f"{count} more {phase}" for phase, count in counted)
    rest = [Text(f"  ...  {more}", "dim", no_wrap=True, overflow="ellipsis")] if more else []
    return Group(_table(names, shown), *rest)


def cells_of(status: RunStatus, now: float, width: int) -> tuple[list[str], dict[int, list[Text]]]:
    """Return the names of the columns for this width, and the cells of each group by its number."""
    known = {"role": any(group.role for group in status.groups), "groups": status.lighthouse is not None}
    texts = {group.group: _texts(group, status, now) for group in status.groups}
    names = [name for name in next(iter(texts.values()), {}) if width >= WIDE.get(name, 0) and known.get(name, True)]
    return names, {group: [cells[name] for name in names] for group, cells in texts.items()}


def _table(names: Iterable[str], rows: Iterable[Iterable[Text]]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for name in names:
        table.add_column(name, justify="right" if name in NUMBERS else "left", no_wrap=name != "node", overflow="fold")
    for cells in rows:
        table.add_row(*cells)
    return table


def _texts(group: GroupStatus, status: RunStatus, now: float) -> dict[str, Text]:
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
