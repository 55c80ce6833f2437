"""What one group did, span after span. The spans leave no gap and do not overlap, so that the accounts add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import TypeAlias

from ftslurm.report.history import (
    EARLIER,
    FINISHED,
    FIRST_START,
    GIVEN_UP,
    QUEUED,
    STALLED,
    STOPPED,
    TRAINING,
    UNDONE,
    Span,
)

Stall: TypeAlias = tuple[float, float, str, str | None]  # begin, end, cause and node
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
        self._trained: int | None = None  # index of the span of training that the outage has ended

    @property
    def trains(self) -> bool:
        return self.phase == TRAINING

    def turn(self, time: float, phase: str) -> None:
        """End the current span at `time` and begin one of another phase."""
        time = max(time, self.since)
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

    def refused(self) -> None:
        """Take back a launch: no process of it has run."""
        self.phase = "wait"

    def joined(self, time: float, phases: Mapping[str, float | None] | None) -> None:
        """Begin to train; the time since the launch is divided as `phases` says."""
        known = phases or {}
        if self.phase == "start" and phases:
            for name, following in pairwise(LAUNCHED):
                self.phase = name
                self.turn(min(time, self.since + max(0.0, known.get(name) or 0.0)), following)
        self.turn(time, TRAINING)
        self._detected(known.get("detect"))
        self.cause, self.node, self._trained = "", None, None

    def failed(self, noticed: float, time: float, cause: str, node: str | None, silent_since: float | None) -> None:
        """End an attempt.

        Args:
            noticed: when it was noticed.
            time: when its last process was gone.
            silent_since: nothing is known of the attempt from then until `noticed`; None: it was watched.
        """
        if self.trains:
            self.turn(noticed if silent_since is None else silent_since, "detect")
            self._trained = len(self.spans) - 1
            self.cause, self.node = cause, node
        elif self.phase == "start":
            self.phase, self.cause, self.node = EARLIER, cause, node
        self.turn(noticed, "end")
        self.turn(time, "wait")
        self.cause, self.node = cause, node

    def succeeded(self, time: float) -> None:
        """End the last attempt. If it has never reported a step, it was not in need of any."""
        if self.phase == "start":
            self.phase = TRAINING
        self.leave(time, FINISHED)

    def leave(self, time: float, phase: str) -> None:
        """Begin a phase without a step: QUEUED, GIVEN_UP or FINISHED."""
        if self.phase not in (phase, FINISHED):
            self.turn(time, phase)

    def undo(self, since: float) -> None:
        """Mark the training since `since` as undone; the outage has begun after it."""
        for n in reversed(range(len(self.spans))):
            span = self.spans[n]
            if span.end <= since:
                break
            if span.phase in (TRAINING, STALLED):
                undone = span._replace(begin=max(since, span.begin), phase=UNDONE, cause=self.cause, node=self.node)
                kept = [] if span.begin >= since else [span._replace(end=since)]
                self.spans[n : n + 1] = [*kept, undone]
                self._trained = None

    def close(self, end: float) -> list[Span]:
        """Return all spans up to `end`."""
        self.turn(end, FINISHED)
        return self.spans

    def stopped(self) -> None:
        """Name the end of the run as the cause of what it has ended."""
        for n in reversed(range(len(self.spans))):
            if self.spans[n].phase == TRAINING:
                return
            if self.spans[n].cause == "cancelled":
                self.spans[n] = self.spans[n]._replace(cause=STOPPED)

    def _add(self, begin: float, end: float, phase: str) -> None:
        if end <= begin:
            return
        lost = phase not in (QUEUED, TRAINING, FINISHED)
        cause, node = (self.cause, self.node) if lost else ("", None)
        ran = phase not in (QUEUED, FINISHED, GIVEN_UP, "wait")
        self.spans.append(Span(begin, end, phase, cause, node, self.attempt if ran else -1, self.nodes if ran else ()))

    def _detected(self, seconds: float | None) -> None:
        """Move the last seconds of the training before the outage to the phase "detect"."""
        at = self._trained
        if not seconds or at is None or not 0 <= at < len(self.spans) or self.spans[at].phase != TRAINING:
            return
        span = self.spans[at]
        middle, cause = max(span.begin, span.end - seconds), self.cause
        late = span._replace(begin=middle, phase="detect", cause=cause, node=self.node)
        self.spans[at : at + 1] = [one for one in (span._replace(end=middle), late) if one.seconds > 0]


def stalled(spans: list[Span], stalls: list[Stall]) -> list[Span]:
    """Cut stalls out of spans of training.

    Args:
        spans: of one group, in order.
        stalls: in the order of their ends.
    """
    out: list[Span] = []
    at = 0
    for span in spans:
        begin = span.begin
        while span.phase == TRAINING and at < len(stalls) and stalls[at][0] < span.end:
            first, last, cause, node = stalls[at]
            first, last = max(first, begin), min(last, span.end)
            if last > first:
                out += [span._replace(begin=begin, end=first)] if first > begin else []
                out.append(span._replace(begin=first, end=last, phase=STALLED, cause=cause, node=node))
                begin = last
            if stalls[at][1] > span.end:
                break
            at += 1
        if begin < span.end:
            out.append(span._replace(begin=begin))
    return out
