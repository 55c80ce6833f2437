"""The charts of report.html as rectangles: what each group did over time, the quorum, the steps per second. Pure.

A place or width is a percentage of the chart's width, a height is in pixels; what a rectangle stands for is its title.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby, pairwise
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
from ftslurm.words import clock, plural, seconds

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
_HIGH, _MARK = 84, 0.25  # height of a chart of numbers; width of a failure
_LEAST = 0.1  # width of a lost time that would not be seen
_RATE_BARS, _TICKS = 240, 6
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
    """A word beside a chart, or below it."""

    at: float
    text: str


class Chart(Value):
    """Rectangles, with labels at the left."""

    title: str
    high: int
    labels: tuple[Label, ...]
    bars: tuple[Bar, ...]


class Picture(Value):
    """All charts of a run; they share one axis of time."""

    shares: tuple[Bar, ...]  # of the states in the time of all groups
    charts: tuple[Chart, ...]
    ticks: tuple[Label, ...]
    legend: tuple[State, ...]


def picture(history: History) -> Picture:
    """Return the charts of a run that has begun."""
    scale = _Scale(history)
    sums = defaultdict[str, float](float)
    for group in history.groups:
        for span in group.spans:
            sums[_state(span)] += span.seconds
    marks = {MOVED if failure.moved else FAILED for failure in history.failures}
    charts = (_quorum(history, scale), _rate(history, scale), _groups(history, scale))
    return Picture(
        tuple(_shares(sums)),
        tuple(chart for chart in charts if chart.bars),
        tuple(_ticks(history.end - history.begin)),
        tuple(state for name, state in STATES.items() if name in sums or name in marks),
    )


class _Scale:
    """Moments as places on the axis of time."""

    def __init__(self, history: History) -> None:
        self.begin, self.seconds = history.begin, max(history.end - history.begin, 1e-3)

    def at(self, time: float) -> float:
        return min(100.0, max(0.0, 100 * (time - self.begin) / self.seconds))

    def bar(self, begin: float, end: float, y: float, high: float, state: str, title: str, least: float = 0.0) -> Bar:
        wide = max(self.at(end) - self.at(begin), least)
        return Bar(self.at(begin), y, wide, high, STATES[state].colour, title)


def _state(span: Span) -> str:
    if span.phase in STATES:
        return span.phase
    return STARTING if span.cause == FIRST_START else RECOVERING


def _shares(sums: dict[str, float]) -> Iterator[Bar]:
    whole, x = sum(sums.values()) or 1.0, 0.0
    for name, state in STATES.items():
        if (part := sums.get(name, 0.0)) > 0:
            title = f"{state.words} {percent(part / whole)}, {seconds(part)}"
            yield Bar(100 * x, 0, 100 * part / whole, _SHARES_HIGH, state.colour, title)
            x += part / whole


def _ticks(span: float) -> Iterator[Label]:
    step = next((every for every in _EVERY_S if span / every <= _TICKS), span / 4)
    for n in range(int(span / step) + 1 if span > 0 else 1):
        after = n * step
        yield Label(100 * after / span if span else 0.0, clock(after))


# --- groups ------------------------------------------------------------------------------------------------------


def _groups(history: History, scale: _Scale) -> Chart:
    count = len(history.groups)
    row = max(4, min(24, 1200 // count))
    high = row - (3 if row > 8 else 1)
    every = -(-15 // row)  # rows for each label
    labels = tuple(Label(n * row + high / 2, str(n)) for n in range(0, count, every))
    bars = [bar for n, group in enumerate(history.groups) for bar in _lane(group, n * row, high, scale)]
    for failure in history.failures:
        y, tall = (0, count * row) if failure.group is None else (failure.group * row, high)
        colour = STATES[MOVED if failure.moved else FAILED].colour
        bars.append(Bar(scale.at(failure.time), y, _MARK, tall, colour, _failed(failure)))
    return Chart("Groups", count * row, labels, tuple(bars))


def _lane(group: GroupHistory, y: float, high: float, scale: _Scale) -> list[Bar]:
    """Return the bars of a group; those of lost time come last, over the others."""
    bars = []
    for (state, cause), run in groupby(group.spans, key=lambda span: (_state(span), span.cause)):
        spans = list(run)
        begin, end = spans[0].begin, spans[-1].end
        title = f"group {group.group}: {STATES[state].words} {seconds(end - begin)}, from {moment(begin)}"
        if spans[0].nodes:
            title += f", on {' '.join(spans[0].nodes)}"
        if cause:
            title += f"\nbecause: {words_of(cause)}"
        if state in (STARTING, RECOVERING):
            title += "".join(f"\n{words_of(span.phase)}: {seconds(span.seconds)}" for span in spans)
        bars.append((bool(cause), scale.bar(begin, end, y, high, state, title, _LEAST if cause else 0.0)))
    return [bar for _, bar in sorted(bars, key=lambda one: one[0])]


def _failed(failure: Failure) -> str:
    step = "" if failure.step is None else f", at step {failure.step}"
    drill = "" if failure.drill is None else f"\na drill: {failure.drill}"
    return f"{who(failure)}: {failure.detail}\n{moment(failure.time)}{step}; back after: {back(failure)}{drill}"


# --- numbers over time -----------------------------------------------------------------------------------------------


def _numbers(title: str, values: Iterable[tuple[float, float, float, str]], scale: _Scale, state: str) -> Chart:
    """Return a chart of (from when, until when, number, the number in words)."""
    known = list(values)
    most = max((number for _, _, number, _ in known), default=0.0) or 1.0
    bars = (
        scale.bar(begin, end, _HIGH - tall, tall, state, f"{words}, from {moment(begin)}")
        for begin, end, number, words in known
        if (tall := round(_HIGH * number / most, 1))
    )
    return Chart(title, _HIGH, (Label(6, f"{most:.3g}"), Label(_HIGH - 5, "0")), tuple(bars))


def _quorum(history: History, scale: _Scale) -> Chart:
    spans = ((now[0], then[0], float(now[1])) for now, then in pairwise((*history.quorum, (history.end, 0))))
    values = ((*span, f"{plural(int(span[2]), 'group')} in the quorum") for span in spans)
    return _numbers("Groups in the quorum", values, scale, STARTING)


def _rate(history: History, scale: _Scale) -> Chart:
    """Return the chart of means over intervals of the same length; a step back counts as none."""
    times, steps = [time for time, _ in history.reached], [step for _, step in history.reached]
    taken = list(accumulate((max(0, after - before) for before, after in pairwise(steps)), initial=0))
    long = times[-1] - times[0] if times else 0.0
    count = int(min(_RATE_BARS, max(1.0, long / max(2.0, 3 * (history.typical_step_s or 0.0)))))

    def until(time: float) -> float:
        """Return the steps that were taken until then."""
        n = min(bisect_right(times, time), len(times) - 1)
        return taken[n - 1] + (taken[n] - taken[n - 1]) * (time - times[n - 1]) / ((times[n] - times[n - 1]) or 1.0)

    ends = [times[0] + long * n / count for n in range(count + 1)] if long else []
    rates = ((begin, end, (until(end) - until(begin)) / (end - begin)) for begin, end in pairwise(ends))
    return _numbers("Steps per second", ((*one, f"{one[2]:.3g} steps per second") for one in rates), scale, TRAINING)
