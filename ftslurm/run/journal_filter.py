"""Skip the `progress` lines of a journal that do not change what its readers compute.

Nearly all lines of a large journal are `progress`. Readers (status_fold.py, replay.py) get the same result from the
lines that `Skim.read` yields as from all of them. Of a group's `progress` lines between two other lines about it, it
yields the last ones, back to RATE_WINDOW_S before the step last rose, and the one with the longest gap. The other lines
are not parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

from ftslurm.protocol.records import (
    Command,
    FullRestart,
    GroupJoined,
    RunFinished,
    RunRequeued,
    RunStarted,
    Scaled,
    StepExited,
)
from ftslurm.run.journal import Event, JournalReader, integer, number, text
from ftslurm.security.json_text import read_object

RATE_WINDOW_S = 10.0  # a group's rate of steps is computed over this time
_PROGRESS = b'"event":"progress","group":'
_GAP = re.compile(rb'"gap_s":(?:null|(\d+\.?\d*))[,}]')
_LINE = re.compile(_PROGRESS + rb"(\d+),")
_GROUP = re.compile(rb'"group":(\d+),')
_OF_ALL = frozenset(  # events that change all groups
    record.event for record in (RunStarted, Scaled, Command, RunRequeued, RunFinished, FullRestart)
)
_PIECE = 1 << 16
_MOST = 1 << 25  # bytes of lines that are held back at most


class Skim:
    """One pass over a journal, which can be continued when the journal has grown."""

    def __init__(self, groups: Iterable[int] = ()) -> None:
        """Begin the pass; `groups` were launched before its first line."""
        self._groups = set(groups)  # known groups
        self._kept = bytearray()  # lines of progress that are held back
        self._since = dict[int, int]()  # group -> offset in _kept of its lines that were not yielded yet
        self._longest = dict.fromkeys(self._groups, -1.0)  # group that commits steps -> its longest gap so far
        self._before = dict[int, float]()  # the same of groups that do not commit steps
        self._peaks = dict[int, bytes]()  # group -> the line with that gap, if it is held back

    def read(self, journal: JournalReader) -> Iterator[Event]:
        """Yield the relevant lines of those that were completed since the last call.

        Raises:
            EnvironmentProblem: there is a journal, and it cannot be read.
        """
        for block in journal.blocks():
            yield from self._feed(block)
        yield from self._settle(self._groups)

    def _feed(self, block: bytes) -> Iterator[Event]:
        start = 0
        while start < len(block):
            end = block.find(b"\n", start + _PIECE) + 1 or len(block)
            piece, start = block[start:end], end
            if piece.count(_PROGRESS) == piece.count(b"\n"):
                yield from self._keep(piece)
                continue
            run: list[bytes] = []
            for line in piece[:-1].split(b"\n"):
                if _PROGRESS in line:
                    run.append(line)
                    continue
                if run:
                    yield from self._keep(b"\n".join([*run, b""]))
                run = []
                yield from self._other(line)
            if run:
                yield from self._keep(b"\n".join([*run, b""]))

    def _keep(self, lines: bytes) -> Iterator[Event]:
        """Hold back lines that are all `progress`; only those with a new longest gap are looked at one by one."""
        found = _GAP.findall(lines)
        gaps = [float(gap or -1) for gap in found] if b"" in found else list(map(float, found))
        low = min(self._longest.values(), default=float("inf"))
        count = lines.count(b"\n")
        if len(gaps) != count or max(gaps) > low:
            every = lines.split(b"\n")
            for line, gap in zip(every, gaps if len(gaps) == count else map(_gap_of, every[:-1]), strict=False):
                if gap > low and (named := _GROUP.search(line)) and gap > self._longest.get(int(named[1]), gap):
                    self._longest[int(named[1])], self._peaks[int(named[1])] = gap, line
        self._kept += lines
        if len(self._kept) > _MOST:
            yield from self._settle(self._groups)

    def _other(self, line: bytes) -> Iterator[Event]:
        event = read_object(line)
        if event is None:
            return
        group, name = integer(event, "group"), text(event, "event")
        if name in _OF_ALL:
            yield from self._settle(self._groups)
        elif group is not None:
            yield from self._settle({group})
            self._groups.add(group)
            if name == GroupJoined.event:
                self._longest.setdefault(group, self._before.pop(group, -1.0))
            elif name == StepExited.event and group in self._longest:
                self._before[group] = self._longest.pop(group)
        yield event

    def _settle(self, groups: set[int]) -> Iterator[Event]:
        """Yield the relevant lines of these groups, oldest first, and drop the others."""
        found = dict[int, dict[str, Any]]()
        lines = self._lines_of_all() if len(groups) > 1 else {}
        for group in groups:
            newest_first = reversed(lines.get(group, [])) if len(groups) > 1 else self._lines_of(group)
            for event in (*self._last(newest_first), read_object(self._peaks.pop(group, b""))):
                if event is not None:
                    found[integer(event, "seq") or 0] = event
            self._since[group] = len(self._kept)
        if groups is self._groups:
            self._kept.clear()
            self._since.clear()
        yield from map(itemgetter(1), sorted(found.items()))

    def _lines_of(self, group: int) -> Iterator[int]:
        """Yield where the lines of one group are in _kept, newest first; the older ones are not searched for."""
        begin, end, key = self._since.get(group, 0), len(self._kept), _PROGRESS + b"%d," % group
        while (at := self._kept.rfind(key, begin, end)) >= 0:
            yield at
            end = at

    def _lines_of_all(self) -> dict[int, list[int]]:
        """Find in one pass where the lines of every group are in _kept, oldest first."""
        found = dict[int, list[int]]()
        for match in _LINE.finditer(self._kept):
            group, at = int(match[1]), match.start()
            if at >= self._since.get(group, 0):
                found.setdefault(group, []).append(at)
        return found

    def _last(self, newest_first: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the last lines of a group, newest first, as many as its step, rate and time of the last step need."""
        newer, rose = None, float("-inf")
        for at in newest_first:
            event = read_object(bytes(self._kept[self._kept.rfind(b"\n", 0, at) + 1 : self._kept.find(b"\n", at)]))
            if event is None:
                continue
            yield event
            step, time = integer(event, "step"), number(event, "at") or number(event, "time")
            if step is None or time is None:
                continue
            if newer is not None and newer[0] > step:
                rose = max(rose, newer[1])
            if time <= rose - RATE_WINDOW_S:
                return
            newer = step, time


def _gap_of(line: bytes) -> float:
    gap = number(read_object(line) or {}, "gap_s")
    return -1.0 if gap is None else gap
