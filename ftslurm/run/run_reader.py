"""Read the two files of a run's journal as one sequence of lines, in the order in which they were written.

`RunReader.up_to_now` reads of the progress only its end, so that how a run stands is known within a moment however long
it has trained. `RunReader.iter_new` reads all.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from math import inf

from ftslurm.errors import EnvironmentProblem
from ftslurm.protocol.records import (
    FullRestart,
    GroupJoined,
    LaunchRefused,
    Progress,
    RunFinished,
    Serving,
    StepExited,
    StepLaunched,
    Warned,
)
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event, JournalReader, integer, number

RATE_WINDOW_S = 10.0  # a group's rate of steps is computed over this time
_TRAINS = (GroupJoined.event, Serving.event)
_ENDS = (StepExited.event, LaunchRefused.event)


class RunReader:
    """Reads the journal of a run that goes on, or has not begun."""

    def __init__(self, run: RunDir) -> None:
        self.journal, self._progress = JournalReader(run.events), JournalReader(run.progress)
        self._running = dict[int, tuple[int, bool]]()  # group -> its attempt, and whether that must have progress
        self._time: float | None = None  # of the last event
        self._trained = False
        self._problem, self._told = "", False  # with the progress

    def iter_new(self) -> Iterator[Event]:
        """Yield the lines that were completed since the last call.

        What is wrong with the progress is told by a `warning` at their end, once: the events are worth reading alone.

        Raises:
            EnvironmentProblem: there is a journal, and its events cannot be read.
        """
        yield from merge(self._events(), self._harmless(self._progress.iter_new()), key=_place)
        yield from self._complaint()

    def up_to_now(self) -> Iterator[Event]:
        """Yield the events so far, and then the last progress of each group that runs: what tells its step and rate.

        Raises:
            EnvironmentProblem: as `iter_new`.
        """
        yield from self._events()
        yield from self._harmless(self._last_lines())
        yield from self._complaint()

    def _events(self) -> Iterator[Event]:
        for line in self.journal.iter_new():
            name, group, attempt = line.get("event"), integer(line, "group"), integer(line, "attempt")
            self._time = number(line, "time") or self._time
            if name in (RunFinished.event, FullRestart.event):  # what the groups had reached is worthless
                self._running.clear()
            elif group is not None and attempt is not None:
                if name in _ENDS:
                    self._running.pop(group, None)
                elif name == StepLaunched.event or name in _TRAINS:
                    self._running[group] = attempt, name in _TRAINS
                    self._trained |= name == GroupJoined.event
            yield line

    def _harmless(self, progress: Iterator[Event]) -> Iterator[Event]:
        try:
            yield from progress
        except EnvironmentProblem as problem:
            self._problem = self._problem or str(problem)

    def _complaint(self) -> Iterator[Event]:
        path = self._progress.path
        if self._trained and not self._problem and not path.exists():
            self._problem = f"{path} is missing: how far the groups were is not known"
        if self._problem and not self._told:
            self._told = True
            yield {"time": self._time, "event": Warned.event, "group": None, "text": self._problem}

    def _last_lines(self) -> Iterator[Event]:
        """Yield the last lines of each group that runs, oldest first: from RATE_WINDOW_S before its step last rose."""
        found, left = list[Event](), {group: attempt for group, (attempt, _) in self._running.items()}
        wanted = {group for group, (_, trains) in self._running.items() if trains}
        newer, rose = dict[int, tuple[int, float]](), dict[int, float]()
        for line in self._progress.backwards(wanted):
            group, attempt, step = (integer(line, name) for name in ("group", "attempt", "step"))
            time = number(line, "at") or number(line, "time")
            if group is None or step is None or time is None:
                continue
            if left.get(group) != attempt:
                wanted.discard(group)
                continue
            found.append(line)
            if group in newer and newer[group][0] > step:
                rose.setdefault(group, newer[group][1])
            newer[group] = step, time
            if time <= rose.get(group, -inf) - RATE_WINDOW_S:
                del left[group]
                wanted.discard(group)
        yield from reversed(found)


def _place(line: Event) -> tuple[int, bool]:
    """Return where a line belongs: progress follows the event of its number."""
    return integer(line, "seq") or 0, line.get("event") == Progress.event
