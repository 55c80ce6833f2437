"""The report of a run as text for a terminal of 80 columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ftslurm.monitor.sentences import ended, run_name
from ftslurm.report import wording
from ftslurm.report.accounting import Account, Accounts, Weight
from ftslurm.report.history import Failure, History
from ftslurm.words import few, plural, seconds

WIDTH = 80
_FAILURES_SHOWN, _ROWS_SHOWN = 20, 8


def render(history: History, accounts: Accounts, weight: Weight) -> RenderableType:
    """Return the report."""
    if not history.begun:
        return _not_begun(history)
    parts: list[RenderableType] = [_head(history), Text(), _ratios(history, accounts)]
    for title, lost, word in (
        ("cause", accounts.by_cause, wording.cause),
        ("phase", accounts.by_phase, wording.phase),
        ("node", accounts.by_node, lambda name: name or "no node"),
        ("group", _worst(accounts.by_group), lambda name: f"group {name}"),
    ):
        if any(one.seconds for one in lost):
            parts += [Text(), _lost(title, lost, word, accounts, weight)]
    if history.failures:
        parts += [Text(), _failures(history)]
    if accounts.nodes:
        parts += [Text(), _nodes(accounts)]
    return Group(*parts)


def _head(history: History) -> Text:
    head = Text.assemble("run ", (history.run_id, "bold"), " ", (ended(history.outcome), "bold"))
    if history.reason:
        head.append(f": {history.reason}")
    if history.parent is not None:
        head.append(f"\nresumes {run_name(history.parent)}")
    total = "" if history.total_steps is None else f" of {history.total_steps}"
    head.append(f"\nstep {history.steps}{total} in {seconds(history.end - history.begin)}")
    if history.starts > 1:
        head.append(f", {plural(history.starts, 'job start')}")
    if history.undone_steps:
        head.append(f"; {plural(history.undone_steps, 'step')} undone by full restarts")
    return head


def _not_begun(history: History) -> Text:
    words = "has not started yet" if history.outcome == "running" else "never started"
    return Text.assemble(
        "run ", (history.run_id, "bold"), " ", (words, "bold"), f": {history.reason}" if history.reason else ""
    )


def _ratios(history: History, accounts: Accounts) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    up = seconds(accounts.trained_s + accounts.lost_s)
    table.add_row("goodput", _percent(accounts.goodput), f"of the {up} that its groups had nodes, they trained")
    if accounts.queued_s:
        table.add_row(
            "with the queue", _percent(accounts.effective), f"{seconds(accounts.queued_s)} more waited for nodes"
        )
    table.add_row("step efficiency", _percent(accounts.step_efficiency), "steps that were committed and not undone")
    if accounts.participation is not None:
        size = f"{wording.amount(accounts.participation)} of {len(history.groups)}"
        table.add_row("participation", size, "groups in the quorum, on average")
        table.add_row("training eff.", _percent(accounts.training_efficiency), "step efficiency × participation")
    moves = f", {plural(accounts.moves, 'move')}" if accounts.moves else ""
    table.add_row(
        "MTTF", seconds(accounts.mttf_s), f"mean time to failure; {plural(accounts.failures, 'failure')}{moves}"
    )
    if accounts.recovery_median_s is not None:
        worst = f"median recovery; the longest took {seconds(accounts.recovery_worst_s)}"
        table.add_row("recovery", seconds(accounts.recovery_median_s), worst)
    return table


def _worst(accounts: Sequence[Account]) -> list[Account]:
    return sorted(accounts, key=lambda one: -one.seconds)


def _lost(
    title: str, lost: Sequence[Account], word: Callable[[str], str], accounts: Accounts, weight: Weight
) -> RenderableType:
    table = _table()
    table.add_column(f"lost time by {title}", overflow="ellipsis", no_wrap=True, max_width=40)
    for name in ("seconds", weight.unit, "share", "failures"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in lost[:_ROWS_SHOWN] if title in ("node", "group") else lost:
        share = _percent(one.seconds / accounts.lost_s if accounts.lost_s else None)
        table.add_row(
            Text(word(one.name)),
            f"{one.seconds:,.1f}",
            wording.amount(weight.hours(one.seconds)),
            share,
            str(one.failures) if title != "phase" else "",
        )
    if title in ("node", "group") and len(lost) > _ROWS_SHOWN:
        rest = sum(one.seconds for one in lost[_ROWS_SHOWN:])
        table.add_row(
            Text(f"{len(lost) - _ROWS_SHOWN} more"), f"{rest:,.1f}", wording.amount(weight.hours(rest)), "", ""
        )
    return table


def _failures(history: History) -> RenderableType:
    table = _table()
    for name, just in (("at", "left"), ("who", "left"), ("back after", "right")):
        table.add_column(name, justify=just, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("what", overflow="fold")
    earlier = len(history.failures) - _FAILURES_SHOWN
    if earlier > 0:
        table.add_row("...", "...", "...", f"{earlier} earlier ones: see report.html or --json")
    for failure in history.failures[-_FAILURES_SHOWN:]:
        table.add_row(
            time.strftime("%d %b %H:%M:%S", time.localtime(failure.time)),
            _who(failure),
            seconds(failure.recovery_s) if failure.back is not None else "not back",
            _what(failure),
        )
    return table


def _who(failure: Failure) -> str:
    return failure.unit if failure.group is None else f"group {failure.group} attempt {failure.attempt}"


def _what(failure: Failure) -> Text:
    what = Text(failure.detail, "" if failure.moved else "red")
    if failure.drill is not None:
        what.append(f" (drill: {failure.drill})", "magenta")
    took = [f"{name} {seconds(value)}" for name, value in (failure.phases or {}).items() if value and value >= 0.01]
    if took:
        what.append(f"\n{', '.join(took)}", "dim")
    return what


def _nodes(accounts: Accounts) -> RenderableType:
    table = _table()
    table.add_column("node", overflow="ellipsis", no_wrap=True, max_width=20)
    for name in ("held", "at work", "standby", "idle", "failures"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("causes", overflow="fold")
    for node in accounts.nodes[:_ROWS_SHOWN]:
        causes = few([wording.cause(cause) for cause in node.causes]) if node.causes else ""
        causes += f"{'; ' if causes else ''}excluded {plural(node.excluded, 'time')}" if node.excluded else ""
        times = (seconds(s) if s else "-" for s in (node.held_s, node.group_s, node.standby_s, node.idle_s))
        table.add_row(Text(node.node), *times, str(node.failures), Text(causes))
    rest = len(accounts.nodes) - _ROWS_SHOWN
    if rest > 0:
        table.add_row(f"{rest} more", *[""] * 5, "see report.html or --json")
    return table


def _table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
