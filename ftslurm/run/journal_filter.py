"""Skip the lines of a long journal that do not change the status: nearly all are `progress`, and few of those matter.

Whoever folds what `Skim.feed` passes on comes to the same as with all lines (status.py, past.py): of each group's
lines between two other lines about it, the last ones, back to ten seconds before its step last rose, and the one with
the longest gap. Which those are is found without taking the others apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

from ftslurm.run.journal import Event, JournalReader, integer, number
from ftslurm.security.json_text import read_object

RATE_WINDOW_S = 10.0  # so far back the rate of a group's steps needs its lines
_PROGRESS = b'"event":"progress","group":'
_GAP = re.compile(rb'"gap_s":(?:null|(\d+\.?\d*))[,}]')
_GROUP = re.compile(rb'"group":(\d+),')
_OF_ALL = ("run_started", "scaled", "command", "run_requeued", "run_finished", "full_restart")  # touch every group
_PIECE = 1 << 16
_MOST = 1 << 25  # bytes of lines that are kept back


class Skim:
    """One pass over a journal, which may go on later."""

    def __init__(self, groups: Iterable[int] = ()) -> None:
        """Begin; `groups` had been launched before the first line."""
        self._groups = set(groups)  # those of which anything is known
        self._kept = bytearray()  # lines of progress, not passed on yet
        self._since = dict[int, int]()  # group -> where in them those begin that are not
        self._longest = dict.fromkeys(self._groups, -1.0)  # of each that steps: its longest gap so far
        self._before = dict[int, float]()  # the same of those that do not
        self._peaks = dict[int, bytes]()  # and the line that told it, if it is kept back

    def read(self, journal: JournalReader) -> Iterator[Event]:
        """What matters of the lines that have been completed since the last call.

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
        """Lines of progress alone: only what is longer than all before is looked at one by one."""
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
        group = integer(event, "group")
        if event.get("event") in _OF_ALL:
            yield from self._settle(self._groups)
        elif group is not None:
            yield from self._settle({group})
            self._groups.add(group)
            if event.get("event") == "group_joined":
                self._longest.setdefault(group, self._before.pop(group, -1.0))
            elif event.get("event") == "step_exited" and group in self._longest:
                self._before[group] = self._longest.pop(group)
        yield event

    def _settle(self, groups: set[int]) -> Iterator[Event]:
        """Pass on what matters of these groups' lines, oldest first."""
        found = dict[int, dict[str, Any]]()
        for group in groups:
            for event in (*self._last(group), read_object(self._peaks.pop(group, b""))):
                if event is not None:
                    found[integer(event, "seq") or 0] = event
            self._since[group] = len(self._kept)
        if groups is self._groups:
            self._kept.clear()
            self._since.clear()
        yield from map(itemgetter(1), sorted(found.items()))

    def _last(self, group: int) -> Iterator[dict[str, Any]]:
        """The last lines of a group, newest first, as far as its step, its rate and the time of its last step need."""
        begin, end, key = self._since.get(group, 0), len(self._kept), _PROGRESS + b"%d," % group
        newer, rose = None, float("-inf")
        while (at := self._kept.rfind(key, begin, end)) >= 0:
            end = self._kept.rfind(b"\n", begin, at) + 1 or begin
            event = read_object(bytes(self._kept[end : self._kept.find(b"\n", at)]))
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
