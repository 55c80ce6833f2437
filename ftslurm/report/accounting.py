"""The accounts of a run: where the time of its groups went. Pure; docs/causes.md has the formulas and their sources.

Every second of every group is in exactly one account: trained, lost, queued or finished.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from ftslurm.protocol.value_class import Value
from ftslurm.report.history import FINISHED, PHASES, QUEUED, TRAINING, Failure, History, Span


class Account(Value):
    """Time that was lost to one thing."""

    name: str  # a cause, a phase, a node or a group
    seconds: float  # of groups
    failures: int = 0


class Times(Value):
    """Where the time of some groups went, in seconds."""

    trained_s: float
    lost_s: float
    queued_s: float
    finished_s: float

    @property
    def total_s(self) -> float:
        """Return the sum."""
        return self.trained_s + self.lost_s + self.queued_s + self.finished_s


class Accounts(Times):
    """The accounts of a run: the times of all groups. A ratio is None if there is nothing to divide by."""

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


def times(spans: Iterable[Span]) -> Times:
    """Return where the time of these spans went."""
    sums = defaultdict[str, float](float)
    for span in spans:
        sums["lost" if is_lost(span) else span.phase] += span.seconds
    return Times(sums[TRAINING], sums["lost"], sums[QUEUED], sums[FINISHED])


def account(history: History) -> Accounts:
    """Return the accounts of a run."""
    spans = [span for group in history.groups for span in group.spans]
    lost, spent = list(filter(is_lost, spans)), times(spans)
    up_s = spent.trained_s + spent.lost_s
    # A node takes the Lighthouse on it with its group: one failure. Without a group nothing is lost.
    groups = [failure for failure in history.failures if failure.group is not None]
    committed, aborted = sum(one.committed for one in history.groups), sum(one.aborted for one in history.groups)
    real = [failure for failure in groups if not failure.moved]
    counts = Counter(failure.group for failure in real)
    recoveries = [failure.recovery_s for failure in real if failure.recovery_s is not None]
    return Accounts(
        **vars(spent),
        goodput=_ratio(spent.trained_s, up_s),
        effective=_ratio(spent.trained_s, up_s + spent.queued_s),
        step_efficiency=_ratio(committed, committed + aborted),
        failures=len(real),
        moves=len(groups) - len(real),
        mttf_s=_ratio(up_s / len(history.groups), len(real)) if spent.trained_s else None,
        recovery_median_s=median(recoveries) if recoveries else None,
        recovery_worst_s=max(recoveries, default=None),
        by_cause=_split(lost, real, lambda one: one.cause),
        by_phase=tuple(sorted(_split(lost, (), lambda one: one.phase), key=lambda one: PHASES.index(one.name))),
        by_node=_split(lost, real, lambda one: one.node or ""),
        by_group=tuple(Account(str(g.group), times(g.spans).lost_s, counts[g.group]) for g in history.groups),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _split(lost: Iterable[Span], failures: Iterable[Failure], name: Callable[[Any], str]) -> tuple[Account, ...]:
    """Return the lost time and the failures under each name, the most time first."""
    seconds, counts = defaultdict[str, float](float), Counter(map(name, failures))
    for span in lost:
        seconds[name(span)] += span.seconds
    accounts = (Account(key, seconds[key], counts[key]) for key in seconds | counts)
    return tuple(sorted(accounts, key=lambda one: (-one.seconds, -one.failures, one.name)))
