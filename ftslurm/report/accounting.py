"""The accounts of a run: where the time of its groups went. Pure; docs/causes.md has the formulas and their sources.

Every second of every group is in exactly one account: trained, lost, queued or finished.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from math import inf
from statistics import median

from ftslurm.protocol.value_class import Value
from ftslurm.report.history import (
    FINISHED,
    GIVEN_UP,
    PHASES,
    QUEUED,
    TRAINING,
    Failure,
    GroupHistory,
    History,
    Span,
)


class Account(Value):
    """Time that was lost to one thing."""

    name: str  # a cause, a phase, a node or a group
    seconds: float  # of groups
    failures: int = 0


class Accounts(Value):
    """The accounts of a run. A ratio is None if there is nothing to divide by."""

    total_s: float  # of all groups, as the next four, of which it is the sum
    trained_s: float
    lost_s: float
    queued_s: float
    finished_s: float
    goodput: float | None
    effective: float | None  # the same with the time in the queue (ETTR)
    step_efficiency: float | None
    failures: int  # of groups
    moves: int
    mttf_s: float | None
    recovery_median_s: float | None
    recovery_worst_s: float | None
    by_cause: tuple[Account, ...]
    by_phase: tuple[Account, ...]
    by_node: tuple[Account, ...]
    by_group: tuple[Account, ...]


def is_lost(span: Span) -> bool:
    """Return whether a group neither trains nor waits in the queue nor has finished."""
    return span.phase not in (TRAINING, QUEUED, FINISHED)


def account(history: History) -> Accounts:
    """Return the accounts of a run."""
    spans = [span for group in history.groups for span in group.spans]
    lost = [span for span in spans if is_lost(span)]
    trained, queued, finished = (
        sum(span.seconds for span in spans if span.phase == phase) for phase in (TRAINING, QUEUED, FINISHED)
    )
    lost_s = sum(span.seconds for span in lost)
    # A node takes the Lighthouse on it with its group: one failure. Without a group nothing is lost.
    groups = [failure for failure in history.failures if failure.group is not None]
    real = [failure for failure in groups if not failure.moved]
    recoveries = [failure.recovery_s for failure in real if failure.recovery_s is not None]
    return Accounts(
        total_s=trained + lost_s + queued + finished,
        trained_s=trained,
        lost_s=lost_s,
        queued_s=queued,
        finished_s=finished,
        goodput=_ratio(trained, trained + lost_s),
        effective=_ratio(trained, trained + lost_s + queued),
        step_efficiency=_step_efficiency(history),
        failures=len(real),
        moves=len(groups) - len(real),
        mttf_s=_ratio(_up_s(history), len(real)),
        recovery_median_s=median(recoveries) if recoveries else None,
        recovery_worst_s=max(recoveries, default=None),
        by_cause=_split(lost, lambda span: span.cause, real, lambda failure: failure.cause),
        by_phase=tuple(sorted(_split(lost, lambda span: span.phase), key=lambda one: PHASES.index(one.name))),
        by_node=_split(lost, lambda span: span.node or "", real, lambda failure: failure.node or ""),
        by_group=_by_group(history.groups, real),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _split(
    lost: Iterable[Span],
    name: Callable[[Span], str],
    failures: Iterable[Failure] = (),
    failed: Callable[[Failure], str] = str,
) -> tuple[Account, ...]:
    """Return the lost time and the failures under each name, the most time first."""
    seconds, counts = defaultdict[str, float](float), Counter(map(failed, failures))
    for span in lost:
        seconds[name(span)] += span.seconds
    accounts = (Account(key, seconds[key], counts[key]) for key in seconds | counts)
    return tuple(sorted(accounts, key=lambda one: (-one.seconds, -one.failures, one.name)))


def _by_group(groups: Iterable[GroupHistory], failures: Iterable[Failure]) -> tuple[Account, ...]:
    counts = Counter(failure.group for failure in failures)
    return tuple(
        Account(str(one.group), sum(span.seconds for span in one.spans if is_lost(span)), counts[one.group])
        for one in groups
    )


def _step_efficiency(history: History) -> float | None:
    """Return the share of the attempted steps that were committed and not undone."""
    committed = sum(group.committed for group in history.groups)
    attempted = committed + sum(group.aborted for group in history.groups)
    rate = _ratio(committed, attempted)
    if rate is None or history.first_step is None:
        return rate
    taken = history.steps - history.first_step + 1 + history.undone_steps
    return rate * (1.0 - min(1.0, history.undone_steps / taken)) if taken > 0 else rate


def _up_s(history: History) -> float:
    """Return the time during which a group was up: it had nodes, and had neither finished nor been given up."""
    there = (
        (span.begin, span.end)
        for group in history.groups
        for span in group.spans
        if span.phase not in (QUEUED, FINISHED, GIVEN_UP)
    )
    up_s, until = 0.0, -inf
    for begin, end in sorted(there):
        up_s += max(0.0, end - max(begin, until))
        until = max(until, end)
    return up_s
