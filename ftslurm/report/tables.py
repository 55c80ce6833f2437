"""What a report says: facts and tables. A terminal and the page show the same ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ftslurm.monitor.sentences import ended, parent, short_log
from ftslurm.monitor.status import RunStatus
from ftslurm.protocol.causes import Cause
from ftslurm.report.accounting import Account, Accounts
from ftslurm.report.history import Failure, History, Slow
from ftslurm.words import few, plural, seconds

_OF_SLOW = ("own part of a step", "the others'", "a step", "the run waited")
_NUMBERS = ("seconds", "share", "failures", "back after", *_OF_SLOW)  # columns that are aligned at the right
WORDS = {cause.value: cause.row.words for cause in Cause} | {
    # Causes of lost time that no exit has caused.
    "stopped": "the run was stopped",
    "first_start": "first start",
    "slow_step": "slow steps, no failure",
    "full_restart": "full restart",
    # Phases of lost time.
    "detect": "detect: until the failure was noticed",
    "end": "end: until its last process was gone",
    "wait": "wait: backoff, a free node",
    "earlier": "attempts that took no step",
    "start": "start: until every worker reported",
    "import": "import: torch, torchft",
    "assign": "assign: ranks, store",
    "join": "join: the script, to its first quorum",
    "commit": "commit: heal, compilation, first step",
    "stalled": "stalled: a step took far too long",
    "undone": "undone: repeated from a checkpoint",
    "given_up": "given up: no further attempt",
}


def render(status: RunStatus, history: History, accounts: Accounts) -> RenderableType:
    """Return the report for a terminal."""
    head = Text.assemble("run ", (status.run_id, "bold"), " ", (outcome(status, history), "bold"))
    if not history.groups:
        return head
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for fact in facts(accounts):
        table.add_row(*map(Text, fact))
    return Group(Text("\n").join((head, *map(Text, lines(status, history)))), Text(), table, tables(history, accounts))


def outcome(status: RunStatus, history: History) -> str:
    """Return how the run has ended, or that it goes on."""
    words = ended(status.outcome)
    if not history.groups:
        words = "has not started yet" if status.outcome == "running" else "never started"
    return words + (f": {status.reason}" if status.reason else "")


def tables(history: History, accounts: Accounts, most: int | None = None) -> RenderableType:
    """Return where the time went, and what has failed.

    Args:
        most: rows of a table; None: so many that they say enough on a terminal.
    """
    groups = sorted(accounts.by_group, key=lambda one: -one.seconds)
    return Group(
        *_lost("cause", accounts.by_cause, words_of),
        *_lost("phase", accounts.by_phase, words_of),
        *_lost("node", accounts.by_node, lambda name: name or "no node", most or 8),
        *_lost("group", groups, lambda name: f"group {name}", most or 8),
        *_failures(history.failures, most or 20),
        *_slow(history.slow, most or 8),
    )


def moment(when: float) -> str:
    """Return a moment for a person."""
    return time.strftime("%d %b %H:%M:%S", time.localtime(when))


def percent(value: float | None) -> str:
    """Return a ratio for a person."""
    return "-" if value is None else f"{100 * value:.1f} %"


def words_of(name: str) -> str:
    """Return the words for a cause, or for a phase of lost time."""
    return WORDS.get(name, name.replace("_", " "))


def who(failure: Failure) -> str:
    """Return what failed."""
    return "the Lighthouse" if failure.group is None else f"group {failure.group} attempt {failure.attempt}"


def back(failure: Failure) -> str:
    """Return how long it was away."""
    return "not back" if failure.back is None else seconds(failure.recovery_s)


def lines(status: RunStatus, history: History) -> list[str]:
    """Return how far the run has come, and what to know about it."""
    total = "" if status.total_steps is None else f" of {status.total_steps}"
    steps = f"step {status.step}{total} in {seconds(history.end - (status.started or history.begin))}"
    if status.starts > 1:
        steps += f", {plural(status.starts, 'job start')}"
    if history.undone_steps:
        steps += f"; {plural(history.undone_steps, 'step')} undone by full restarts"
    asked = f"{status.slurm_rpcs} RPCs to slurmctld, at most {status.slurm_rpcs_a_minute} in a minute"
    about = (parent(status), steps, asked if status.slurm_rpcs else "")
    return [*filter(None, about), *(f"warning: {words}" for words in status.warnings)]


def facts(accounts: Accounts) -> list[tuple[str, str, str]]:
    """Return the numbers about the whole run: name, value and meaning."""
    up = seconds(accounts.trained_s + accounts.lost_s)
    found = [("goodput", percent(accounts.goodput), f"trained, of the {up} with nodes")]
    if accounts.queued_s:
        waited = f"the same, with {seconds(accounts.queued_s)} of waiting for nodes"
        found.append(("with the queue", percent(accounts.effective), waited))
    found.append(("step efficiency", percent(accounts.step_efficiency), "committed, of the steps that were tried"))
    moves = f", {plural(accounts.moves, 'move')}" if accounts.moves else ""
    failures = f"mean time to failure; {plural(accounts.failures, 'failure')} of groups{moves}"
    found.append(("MTTF", seconds(accounts.mttf_s), failures))
    if accounts.recovery_median_s is not None:
        longest = f"median; the longest took {seconds(accounts.recovery_worst_s)}"
        found.append(("recovery", seconds(accounts.recovery_median_s), longest))
    spent = seconds(accounts.total_s - accounts.finished_s)
    found.append(("lost", seconds(accounts.lost_s), f"of the groups' {spent}"))
    return found


def _lost(
    what: str, lost: Sequence[Account], word: Callable[[str], str], most: int | None = None
) -> list[RenderableType]:
    table, whole = (
        _table(f"Lost time by {what}", what, "seconds", "share", "failures"),
        sum(one.seconds for one in lost),
    )
    for one in lost[:most] if whole else ():
        share = percent(one.seconds / whole)
        table.add_row(Text(word(one.name)), f"{one.seconds:,.1f}", share, str(one.failures or ""))
    return _shown(table, len(lost))


def _failures(failures: Sequence[Failure], most: int) -> list[RenderableType]:
    table = _table("Failures and moves, newest first", "at", "who", "back after", "what")
    for failure in failures[: -most - 1 : -1]:
        drill = "" if failure.drill is None else f" (drill: {failure.drill})"
        what = Text(failure.detail + drill, "" if failure.moved else "red")
        phases = ((name, value) for name, value in (failure.phases or {}).items() if value and value >= 0.01)
        took = ", ".join(f"{name} {seconds(value)}" for name, value in phases)
        for note in (took, short_log(failure.log) if failure.log else ""):
            what.append(f"\n{note}" if note else "", "dim")
        table.add_row(moment(failure.time), who(failure), back(failure), what)
    return _shown(table, len(failures))


def _slow(times: Sequence[Slow], most: int) -> list[RenderableType]:
    table = _table("Slow groups, newest first", "from", "who", "nodes", *_OF_SLOW)
    for one in times[: -most - 1 : -1]:
        took = map(seconds, (one.own_s, one.others_s, one.step_s, one.lost_s))
        table.add_row(moment(one.begin), f"group {one.group}", few(one.nodes), *took)
    return _shown(table, len(times))


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        header_style="dim",
    )
    for name in columns:
        table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=name != "what", overflow="fold")
    return table


def _shown(table: Table, rows: int) -> list[RenderableType]:
    """Return a table with a line before it, and how many rows there are beside its own; nothing if it has none."""
    more = rows - table.row_count
    return [Text(), table, *([Text(f"{more} more: see --json", "dim")] if more else [])] if table.row_count else []
