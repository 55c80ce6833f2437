"""Computes the history of a run in one pass over its journal."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate, chain
from math import inf
from statistics import median

from ftslurm.core.groups.reports import every_s
from ftslurm.core.groups.verdict import describe
from ftslurm.core.state.unit_names import LIGHTHOUSE, group_unit
from ftslurm.protocol import records
from ftslurm.protocol.causes import is_failure
from ftslurm.report.history import (
    FINISHED,
    FULL_RESTART,
    GIVEN_UP,
    QUEUED,
    SLOW_STEP,
    STALLED,
    STOPPED,
    Failure,
    GroupHistory,
    History,
    Slow,
    Span,
)
from ftslurm.report.timeline import Timeline, not_trained
from ftslurm.run.journal import Event
from ftslurm.run.journal_lines import Fold

STALL_TIMES, STALL_LEAST_S = 2.0, 0.05  # a step stalls if it takes so many times the typical step, and so much longer


class HistoryFold(Fold):
    """Computes a run's history from the lines of its journal."""

    def __init__(self, submitted: float | None = None) -> None:
        self._submitted = submitted
        self._begin = self._end = 0.0  # of the run; 0: not yet
        self._quorums = True  # there is a Lighthouse
        self._lines: list[Timeline] = []  # of the groups
        self._count: float = inf  # number of groups after `ftslurm scale`; those above it leave the run
        self._failures: list[Failure] = []
        self._open: dict[str, list[Failure]] = {}  # unit -> those from which it is not back
        self._final: dict[str, Failure] = {}  # unit -> its last end, if no other attempt was to follow
        self._drills: dict[str, str] = {}  # unit -> fault that was inflicted on its attempt
        self._slow: list[Slow] = []
        self._reached: list[tuple[float, int]] = []  # (when, step): at most two a second
        self._step = self._undone_steps = 0
        self._gaps = array("d"), array("d"), array("l")  # the time, length and group of each line's longest gap

    def history(self, now: float) -> History:
        """Return the history after the lines so far."""
        end = self._end or max(self.now, now, *(line.since for line in self._lines))
        for line in self._lines:
            line.turn(end, FINISHED)
        stalls = self._stalls()
        groups = tuple(
            GroupHistory(n, tuple(not_trained(line.spans, stalls[n])), line.committed.total(), line.aborted.total())
            for n, line in enumerate(self._lines)
        )
        kept = (failure for failure in self._failures if not failure.moved or failure not in self._final.values())
        failures = tuple(sorted(kept, key=lambda failure: failure.time))
        for slow in self._slow:
            slow.end = min(slow.end, end)
        begin = self._begin or self._submitted or end
        return History(begin, end, self._undone_steps, groups, failures, tuple(self._slow))

    # --- the run ---------------------------------------------------------------------------------------------------

    def run_requeued(self, _: records.RunRequeued) -> None:
        for line in self._lines:
            line.leave(self.now, QUEUED)

    def run_finished(self, _: records.RunFinished) -> None:
        self._end = self.now
        for n, line in enumerate(self._lines):
            line.leave(self.now, FINISHED)
            if (end := self._final.get(group_unit(n))) is not None:
                line.renamed(end.died, "cancelled", STOPPED)

    def run_started(self, record: records.RunStarted) -> None:
        time = self.now
        begin = time if self._lines else min(time, self._submitted or time)
        if self._end:  # the run is resumed; the time in between is not its own
            for line in self._lines:
                line.again(time)
        self._begin, self._end = self._begin or begin, 0.0
        self._quorums = record.lighthouse != "none"
        self._enter(record.groups, begin)

    def _enter(self, count: int, time: float) -> None:
        """Add groups up to this number."""
        self._lines += (Timeline(time) for _ in range(len(self._lines), count))

    def scaled(self, record: records.Scaled) -> None:
        count, before, time = record.groups or 1, self._count, self.now
        self._count = count
        for n, line in enumerate(self._lines):
            if n >= count:
                if line.attempt < 0 or line.phase in ("wait", QUEUED):
                    line.leave(time, FINISHED)
            elif n >= before and line.phase == FINISHED:
                line.again(time)
        self._enter(count, time)

    # --- Slurm steps -----------------------------------------------------------------------------------------------

    def step_launched(self, record: records.StepLaunched) -> None:
        self._drills.pop(record.unit, None)
        self._final.pop(record.unit, None)
        if (line := self._line(record.group)) is not None:
            line.launched(self.now, record.attempt, record.nodes)

    def restart_scheduled(self, record: records.RestartScheduled) -> None:
        self._final.pop(group_unit(record.group), None)

    def launch_refused(self, record: records.LaunchRefused) -> None:
        if (line := self._current(record)) is not None:
            line.phase = "wait"  # no process of it has run

    def step_ready(self, record: records.StepReady) -> None:
        if record.unit == LIGHTHOUSE:
            self._back(LIGHTHOUSE, None)
        elif not self._quorums:
            self.group_joined(record)

    def group_given_up(self, record: records.GroupGivenUp) -> None:
        if (line := self._line(record.group)) is not None:
            line.leave(self.now, GIVEN_UP)

    def step_exited(self, record: records.StepExited) -> None:
        line, noticed = self._current(record), min(self.now, record.noticed or self.now)
        failed, cause = is_failure(record.cause), record.cause or "unknown"
        leaves = not record.error if line is None else (record.group or 0) >= self._count  # as ftslurm has meant it
        died = noticed if line is not None and not line.trains else record.away_since or noticed
        if (line is not None or record.unit == LIGHTHOUSE) and cause != "ok" and (failed or not leaves):
            failure = Failure(
                noticed,
                died,
                record.group,
                record.attempt,
                cause,
                describe(record),
                record.node,
                record.log,
                not failed,
                self._drills.pop(record.unit, None),
                record.step,
            )
            self._final[record.unit] = failure
            self._open.setdefault(record.unit, []).append(failure)
            self._failures.append(failure)
        if line is None:
            return
        self._not_slow(record.group)
        if cause == "ok":
            line.succeeded(self.now)
            return
        node = record.node or (line.nodes[0] if len(line.nodes) == 1 else None)
        line.failed(died, noticed, self.now, cause, node if failed else None)
        if leaves:
            line.leave(self.now, FINISHED)

    def cause_corrected(self, record: records.CauseCorrected) -> None:
        for failure in self._open.get(group_unit(record.group), [])[-1:]:
            failure.cause, failure.moved, failure.detail = record.cause, True, record.reason
            self._lines[record.group].renamed(failure.died, record.was, record.cause)

    # --- the training ----------------------------------------------------------------------------------------------

    def group_joined(
        self, record: records.GroupJoined | records.Serving | records.SessionOpened | records.StepReady
    ) -> None:
        """Note that an attempt trains: it has committed a step, or is at work in a run without a quorum."""
        line = self._current(record)
        if line is None or line.trains:
            return
        step = record.step if isinstance(record, records.GroupJoined) and self._quorums else None
        if step is not None:
            trains = any(other.trains for other in self._lines)
            if not trains and self._step >= step > 0:  # all groups were down: they resume from a checkpoint
                self._undo(step - 1)
            self._rise(self.now, step)
        phases = None if isinstance(record, records.StepReady) else record.phases
        line.joined(self.now, phases)
        self._back(group_unit(self._lines.index(line)), phases)

    serving = session_opened = group_joined

    def full_restart(self, _: records.FullRestart) -> None:
        for line in self._lines:
            if line.cause == "cancelled":
                line.cause = FULL_RESTART

    def fault_injected(self, record: records.FaultInjected) -> None:
        self._drills[LIGHTHOUSE if record.group is None else group_unit(record.group)] = record.kind or "fault"

    def progress(self, record: records.Progress) -> None:
        line, time = self._current(record), self.now if record.at is None else record.at
        if line is None or record.step is None:
            return
        line.committed[record.attempt] = record.committed or 0
        line.aborted[record.attempt] = record.aborted or 0
        if not line.trains:
            return  # it has a quorum, but has not committed a step itself
        if self._quorums:
            self._rise(time, record.step)
        if record.gap_s is not None:
            line.stepped = time
            times, gaps, groups = self._gaps
            times.append(time)
            gaps.append(record.gap_s)
            groups.append(record.group)

    def _rise(self, time: float, step: int) -> None:
        if step > self._step or not self._reached:
            self._step = step
            if not self._reached or time >= self._reached[-1][0] + 0.5:
                self._reached.append((time, step))

    def _undo(self, kept: int) -> None:
        """Mark what was trained after step `kept` as undone."""
        at = bisect_left(self._reached, kept + 1, key=lambda point: point[1])
        since = self._reached[at][0] if at < len(self._reached) else self.now
        del self._reached[at:]
        self._undone_steps += self._step - kept
        self._step = kept
        for line in self._lines:
            line.undo(since)

    def _stalls(self) -> dict[int, list[Span]]:
        """Return the stalls of each group, in the order of their ends."""
        found = defaultdict[int, list[Span]](list)
        if not self._gaps[1]:
            return found
        typical = median(self._gaps[1])
        least, slack = max(STALL_TIMES * typical, typical + STALL_LEAST_S), every_s(len(self._lines))
        # When the others wait for one that has failed: until that is noticed, and when it is back. Of all that began by
        # a moment, `latest` has the one that ends last.
        waits = sorted(
            wait
            for n, f in enumerate(self._failures)
            for wait in ((f.died, f.time, n), (f.back or inf, f.back or 0.0, n))
        )
        latest = list(accumulate((wait[1:] for wait in waits), max))
        stands = ((time, gap - slack, n) for n, line in enumerate(self._lines) for time, gap in line.stands)
        for time, gap, group in sorted(one for one in chain(zip(*self._gaps, strict=True), stands) if one[1] > least):
            at = bisect_left(waits, (time, inf, 0))
            cause, node = SLOW_STEP, None
            for end, n in latest[at - 1 : at]:
                if end >= time - gap - slack:
                    cause, node = self._failures[n].cause, self._failures[n].node
            found[group].append(Span(time - gap + typical, time, STALLED, cause, node))
        return found

    def group_slow(self, record: records.GroupSlow) -> None:
        self._not_slow(record.group)
        if record.slow:
            times = (record.own_s or 0.0, record.others_s or 0.0, record.step_s or 0.0)
            self._slow.append(Slow(record.group, record.nodes, self.now, *times))

    def _not_slow(self, group: int | None) -> None:
        for slow in self._slow:
            if slow.group == group:
                slow.end = min(slow.end, self.now)

    def _back(self, unit: str, phases: dict[str, float | None] | None) -> None:
        """Note that a unit has recovered from its failures."""
        failures = self._open.pop(unit, [])
        for failure in failures:
            failure.back, failure.recovery_s = self.now, round(self.now - failure.died, 3)
            failure.phases = phases if failure is failures[-1] else None

    def _line(self, group: int | None) -> Timeline | None:
        return self._lines[group] if group is not None and group < len(self._lines) else None

    def _current(self, record: records.JournalRecord) -> Timeline | None:
        """Return the group of a record; None if the record is about no group, or not about its current attempt."""
        line = self._line(getattr(record, "group", None))
        return line if line is not None and line.attempt == getattr(record, "attempt", None) else None


def fold_history(events: Iterable[Event], submitted: float | None = None, now: float = 0.0) -> History:
    """Return the history that these lines tell.

    Args:
        submitted: when the run was submitted; the groups wait for their nodes from then on.
        now: the end of the report if the run goes on, and that is after the last line.
    """
    folding = HistoryFold(submitted)
    for event in events:
        folding.apply(event)
    return folding.history(now)
