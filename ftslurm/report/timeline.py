"""What one group did, span after span. The spans leave no gap and do not overlap, so that the accounts add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from math import inf

from ftslurm.report.history import (
    EARLIER,
    FINISHED,
    FIRST_START,
    GIVEN_UP,
    QUEUED,
    TRAINING,
    UNDONE,
    Span,
)

LAUNCHED = ("start", "import", "assign", "join", "commit")  # the phases from the launch to the first step, in order


class Timeline:
    """Builds the spans of one group. Moments may arrive slightly out of order: a span never begins before the last."""

    def __init__(self, begin: float) -> None:
        self.spans: list[Span] = []
        self.since, self.phase = begin, QUEUED
        self.cause = FIRST_START  # of the outage, while it lasts
        self.node: str | None = None  # the node that caused it
        self.attempt, self.nodes = -1, tuple[str, ...]()
        self.committed, self.aborted = Counter[int](), Counter[int]()  # steps of each attempt
        self.stepped = begin  # while it trains: when it last told of a committed step
        self.stands: list[tuple[float, float]] = []  # the end of each training, and for how long it had told of none

    @property
    def trains(self) -> bool:
        return self.phase == TRAINING

    def turn(self, time: float, phase: str) -> None:
        """End the current span at `time` and begin one of another phase."""
        time = max(time, self.since)
        if self.trains:
            self.stands.append((time, time - self.stepped))
        self._add(self.since, time, self.phase)
        self.since, self.phase = time, phase

    def launched(self, time: float, attempt: int, nodes: tuple[str, ...]) -> None:
        """Begin an attempt."""
        self.turn(time, "start")
        self.attempt, self.nodes = attempt, nodes

    def again(self, time: float) -> None:
        """Become part of the run again, which has ended or has gone on without the group."""
        self.turn(time, QUEUED)
        self.cause, self.node = FIRST_START, None

    def joined(self, time: float, phases: Mapping[str, float | None] | None) -> None:
        """Begin to train; the time since the launch is divided as `phases` says."""
        if self.phase == "start" and phases:
            for name, following in pairwise(LAUNCHED):
                self.phase = name
                self.turn(min(time, self.since + max(0.0, phases.get(name) or 0.0)), following)
        self.turn(time, TRAINING)
        self.cause, self.node, self.stepped = "", None, time

    def failed(self, died: float, noticed: float, time: float, cause: str, node: str | None) -> None:
        """End an attempt.

        Args:
            died: when it was last at work, if it trains.
            noticed: when its failure was noticed.
            time: when its last process was gone.
        """
        if self.trains:
            self.turn(died, "detect")
        elif self.phase == "start":
            self.phase = EARLIER
        self.cause, self.node = cause, node
        self.turn(noticed, "end")
        self.turn(time, "wait")

    def succeeded(self, time: float) -> None:
        """End the last attempt. If it has never reported a step, it was not in need of any."""
        if self.phase == "start":
            self.phase, self.stepped = TRAINING, time
        self.leave(time, FINISHED)

    def leave(self, time: float, phase: str) -> None:
        """Begin a phase without a step: QUEUED, GIVEN_UP or FINISHED."""
        if self.phase not in (phase, FINISHED):
            self.turn(time, phase)

    def undo(self, since: float) -> None:
        """Mark the training since `since` as undone; the outage has begun after it."""
        self.spans = not_trained(self.spans, [Span(since, inf, UNDONE, self.cause, self.node)])

    def renamed(self, since: float, was: str, cause: str) -> None:
        """Correct the cause of what has been lost since an attempt died: it was no failure, and no node's fault."""
        for n, span in enumerate(self.spans):
            if span.end >= since and span.cause == was:
                self.spans[n] = span._replace(cause=cause, node=None)
        self.cause, self.node = cause, None

    def _add(self, begin: float, end: float, phase: str) -> None:
        if end <= begin:
            return
        lost = phase not in (QUEUED, TRAINING, FINISHED)
        cause, node = (self.cause, self.node) if lost else ("", None)
        ran = phase not in (QUEUED, FINISHED, GIVEN_UP, "wait")
        self.spans.append(Span(begin, end, phase, cause, node, self.attempt if ran else -1, self.nodes if ran else ()))


def not_trained(spans: list[Span], lost: list[Span]) -> list[Span]:
    """Cut time that was lost out of spans of training.

    Args:
        spans: of one group, in order.
        lost: of the same group, in the order of their ends.
    """
    out: list[Span] = []
    at = 0
    for span in spans:
        while span.phase == TRAINING and at < len(lost) and lost[at].begin < span.end:
            one = lost[at]
            first, last = max(one.begin, span.begin), min(one.end, span.end)
            if last > first:
                cut = one._replace(begin=first, end=last, attempt=span.attempt, nodes=span.nodes)
                out += [span._replace(end=first), cut]
                span = span._replace(begin=last)
            if one.end > span.end:
                break
            at += 1
        out.append(span)
    return [span for span in out if span.seconds > 0]
