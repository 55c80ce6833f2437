"""The picture of report.html as rectangles: what each group did over time. Pure.

A place or width is a percentage of the picture's width, a height is in pixels; the title says what a rectangle is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple

from ftslurm.protocol.value_class import Value
from ftslurm.report.history import (
    FINISHED,
    FIRST_START,
    GIVEN_UP,
    QUEUED,
    STALLED,
    TRAINING,
    UNDONE,
    Failure,
    GroupHistory,
    History,
    Span,
)
from ftslurm.report.tables import back, moment, percent, who, words_of
from ftslurm.words import clock, seconds

STARTING, RECOVERING, FAILED, MOVED = "starting", "recovering", "failed", "moved"


class State(NamedTuple):
    """What a colour stands for. Each is seen on white and on black."""

    words: str
    colour: str


STATES = {
    TRAINING: State("trains", "#3a9b78"),
    STARTING: State("first start", "#5c8be0"),
    RECOVERING: State("recovers", "#e5843a"),
    STALLED: State("stalls", "#d9b344"),
    UNDONE: State("trained, later undone", "#9a72d0"),
    GIVEN_UP: State("given up", "#a03a46"),
    QUEUED: State("waits for nodes", "#8f99a8"),
    FINISHED: State("finished", "#8884"),
    FAILED: State("failure", "#d21f32"),
    MOVED: State("moved, no failure", "#7a5cc4"),
}
_SHARES_HIGH = 26
_MARK = 0.25  # width of a failure
_LEAST = 0.1  # width of a lost time that would not be seen
_TICKS = 6
_EVERY_S = (1, 5, 15, 60, 300, 900, 3600, 14400, 86400, 604800)


class Bar(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    wide: float
    high: float
    colour: str
    title: str


class Label(NamedTuple):
    """A word beside the groups, or below them."""

    at: float
    text: str


class Picture(Value):
    """What the groups of a run did."""

    shares: tuple[Bar, ...]  # of the states in the time of all groups; their titles are the legend
    high: int
    labels: tuple[Label, ...]  # at the left
    bars: tuple[Bar, ...]
    ticks: tuple[Label, ...]


def picture(history: History) -> Picture:
    """Return the picture of a run that has begun."""
    whole = max(history.end - history.begin, 1e-3)

    def at(time: float) -> float:
        """Return the place of a moment on the axis of time."""
        return min(100.0, max(0.0, 100 * (time - history.begin) / whole))

    sums = defaultdict[str, float](float)
    for group in history.groups:
        for span in group.spans:
            sums[_state(span)] += span.seconds
    count = len(history.groups)
    row = max(4, min(24, 1200 // count))
    high = row - (3 if row > 8 else 1)
    every = -(-15 // row)  # rows for each label
    bars = [bar for n, group in enumerate(history.groups) for bar in _lane(group, n * row, high, at)]
    for failure in history.failures:
        name = MOVED if failure.moved else FAILED
        sums[name] += 0.0  # it is in the legend, and has no share of the time
        y, tall = (0, count * row) if failure.group is None else (failure.group * row, high)
        bars.append(Bar(at(failure.time), y, _MARK, tall, STATES[name].colour, _failed(failure)))
    return Picture(
        tuple(_shares(sums)),
        count * row,
        tuple(Label(n * row + high / 2, str(n)) for n in range(0, count, every)),
        tuple(bars),
        tuple(_ticks(history.end - history.begin)),
    )


def _state(span: Span) -> str:
    if span.phase in STATES:
        return span.phase
    return STARTING if span.cause == FIRST_START else RECOVERING


def _shares(sums: dict[str, float]) -> Iterator[Bar]:
    whole, x = sum(sums.values()) or 1.0, 0.0
    for name, state in STATES.items():
        if name in sums:
            part = sums[name]
            title = state.words + (f" {percent(part / whole)}, {seconds(part)}" if part else "")
            yield Bar(100 * x, 0, 100 * part / whole, _SHARES_HIGH, state.colour, title)
            x += part / whole


def _ticks(span: float) -> Iterator[Label]:
    step = next((every for every in _EVERY_S if span / every <= _TICKS), span / 4)
    for n in range(int(span / step) + 1 if span > 0 else 1):
        after = n * step
        yield Label(100 * after / span if span else 0.0, clock(after))


def _lane(group: GroupHistory, y: float, high: float, at: Callable[[float], float]) -> list[Bar]:
    """Return the bars of a group; those of lost time come last, over the others."""
    bars: list[Bar] = []
    lost: list[Bar] = []
    for (state, cause), run in groupby(group.spans, key=lambda span: (_state(span), span.cause)):
        spans = list(run)
        begin, end = spans[0].begin, spans[-1].end
        title = f"group {group.group}: {STATES[state].words} {seconds(end - begin)}, from {moment(begin)}"
        if spans[0].nodes:
            title += f", on {' '.join(spans[0].nodes)}"
        if cause:
            title += f"\nbecause: {words_of(cause)}"
        wide = max(at(end) - at(begin), _LEAST if cause else 0.0)
        (lost if cause else bars).append(Bar(at(begin), y, wide, high, STATES[state].colour, title))
    return bars + lost


def _failed(failure: Failure) -> str:
    return f"{who(failure)}: {failure.detail}\n{moment(failure.time)}; back after: {back(failure)}"
