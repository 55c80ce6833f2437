"""What a report says, as values: facts and tables. The text and the page show the same ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ftslurm.monitor.sentences import ended, parent, short_log
from ftslurm.monitor.status import RunStatus
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.value_class import Value
from ftslurm.report.accounting import Account, Accounts
from ftslurm.report.history import Failure, History
from ftslurm.words import plural, seconds

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
    "commit": "commit: heal, first step",
    "stalled": "stalled: a step took far too long",
    "undone": "undone: repeated from a checkpoint",
    "given_up": "given up: no further attempt",
}


class Fact(NamedTuple):
    """One number about the whole run."""

    name: str
    value: str
    meaning: str


class Cell(NamedTuple):
    """What one cell of a table says."""

    text: str
    notes: tuple[str, ...] = ()  # further lines
    bad: bool = False  # a failure
    share: float | None = None  # of the longest bar of this table


class Listing(Value):
    """A table: the names of its columns and its rows, the most important first."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: frozenset[int]  # columns that are aligned at the right
    short: int  # so many rows say enough on a terminal


class Sheet(Value):
    """A whole report."""

    run_id: str
    outcome: str
    lines: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    listings: tuple[Listing, ...] = ()


def sheet(status: RunStatus, history: History, accounts: Accounts) -> Sheet:
    """Return the report."""
    if not history.groups:
        words = "has not started yet" if status.outcome == "running" else "never started"
        return Sheet(status.run_id, words + (f": {status.reason}" if status.reason else ""))
    tables = [_failures(history)]
    if accounts.lost_s:
        tables[:0] = (
            _lost("cause", accounts.by_cause, words_of),
            _lost("phase", accounts.by_phase, words_of),
            _lost("node", accounts.by_node, lambda name: name or "no node"),
            _lost("group", sorted(accounts.by_group, key=lambda one: -one.seconds), lambda name: f"group {name}"),
        )
    return Sheet(
        status.run_id,
        ended(status.outcome) + (f": {status.reason}" if status.reason else ""),
        tuple(_lines(status, history)),
        tuple(_facts(accounts)),
        tuple(table for table in tables if table.rows),
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


def _lines(status: RunStatus, history: History) -> list[str]:
    total = "" if status.total_steps is None else f" of {status.total_steps}"
    steps = f"step {history.steps}{total} in {seconds(history.end - (status.started or history.begin))}"
    if status.starts > 1:
        steps += f", {plural(status.starts, 'job start')}"
    if history.undone_steps:
        steps += f"; {plural(history.undone_steps, 'step')} undone by full restarts"
    return [*filter(None, (parent(status),)), steps, *(f"warning: {words}" for words in status.warnings)]


def _facts(accounts: Accounts) -> list[Fact]:
    up = seconds(accounts.trained_s + accounts.lost_s)
    facts = [Fact("goodput", percent(accounts.goodput), f"trained, of the {up} with nodes")]
    if accounts.queued_s:
        waited = f"the same, with {seconds(accounts.queued_s)} of waiting for nodes"
        facts.append(Fact("with the queue", percent(accounts.effective), waited))
    facts.append(Fact("step efficiency", percent(accounts.step_efficiency), "steps that were committed and not undone"))
    moves = f", {plural(accounts.moves, 'move')}" if accounts.moves else ""
    failures = f"mean time to failure; {plural(accounts.failures, 'failure')} of groups{moves}"
    facts.append(Fact("MTTF", seconds(accounts.mttf_s), failures))
    if accounts.recovery_median_s is not None:
        longest = f"median; the longest took {seconds(accounts.recovery_worst_s)}"
        facts.append(Fact("recovery", seconds(accounts.recovery_median_s), longest))
    spent = seconds(accounts.total_s - accounts.finished_s)
    facts.append(Fact("lost", seconds(accounts.lost_s), f"of the groups' {spent}"))
    return facts


def _lost(what: str, lost: Sequence[Account], word: Callable[[str], str]) -> Listing:
    most, whole = max(one.seconds for one in lost), sum(one.seconds for one in lost)

    def row(one: Account) -> tuple[Cell, ...]:
        texts = f"{one.seconds:,.1f}", percent(one.seconds / whole), str(one.failures or "")
        return Cell(word(one.name), share=one.seconds / most), *map(Cell, texts)

    columns = (what, "seconds", "share", "failures")
    short = 8 if what in ("node", "group") else len(lost)
    return Listing(f"Lost time by {what}", columns, tuple(map(row, lost)), frozenset(range(1, 4)), short)


def _failures(history: History) -> Listing:
    def row(failure: Failure) -> tuple[Cell, ...]:
        phases = ((name, value) for name, value in (failure.phases or {}).items() if value and value >= 0.01)
        took = ", ".join(f"{name} {seconds(value)}" for name, value in phases)
        log = short_log(failure.log) if failure.log else ""
        what = failure.detail + (f" (drill: {failure.drill})" if failure.drill is not None else "")
        notes = tuple(note for note in (took, log) if note)
        return Cell(moment(failure.time)), Cell(who(failure)), Cell(back(failure)), Cell(what, notes, not failure.moved)

    columns = ("at", "who", "back after", "what")
    rows = tuple(map(row, reversed(history.failures)))
    return Listing("Failures and moves, newest first", columns, rows, frozenset({2}), 20)

