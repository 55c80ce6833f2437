"""The log files of a run: which there are, and their lines as pieces that can be put in time order.

A log contains the script's output, without times. Beside each `rank-0.log`, `rank-0.times` has marks, at most one a
second: `<unix seconds> <size of the log then>`. The bytes between two marks were written up to the time of the later
one. Logs are read in blocks, so their size does not matter.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ftslurm.config.schema import Config, most_groups
from ftslurm.errors import RunNotFound
from ftslurm.protocol.value_class import Value
from ftslurm.run.directory import RunDir
from ftslurm.run.log_cap import HEAD, Gap, read_gap
from ftslurm.words import plural, spans

BLOCK = 1 << 18
_SCAN = 1 << 14  # bytes; most lines are shorter
_OPEN_FILES = 128  # a large run has more logs than a process may open
_RANK_LOG = re.compile(r"group-(\d+)/attempt-(\d+)/rank-(\d+)\.log")


class Wanted(Value):
    """The requested logs; None: any. Without a group, rank 0 of each group."""

    group: int | None = None
    rank: int | None = None
    attempt: int | None = None
    service: str | None = None  # lighthouse or controller: its log, and no worker's

    def takes(self, log: LogFile) -> bool:
        rank = 0 if self.rank is None and self.group is None else self.rank
        asked = ((self.group, log.group), (self.attempt, log.attempt), (rank, log.rank))
        return all(wanted is None or wanted == has for wanted, has in asked)


class LogFile(Value):
    path: Path
    label: str  # g3.a2.r0
    group: int = -1
    attempt: int = -1
    rank: int = -1


class Piece(NamedTuple):
    """What was written between two marks of a log. A line belongs to the piece in which it ends."""

    time: float
    log: LogFile
    start: int
    end: int
    last: bool  # with what follows the last end of a line

    def lines(self, files: LogReader) -> Iterator[tuple[int, int]]:
        """Yield the place of its lines, in blocks of whole ones; a line that is longer than a block is divided."""
        path = self.log.path
        ends = (self.start, self.end)
        start, end = (files.last_line_end(path, max(0, at - BLOCK), at) or (at if at > BLOCK else 0) for at in ends)
        yield from files.blocks(path, start, self.end if self.last else end)


def select(run: RunDir, wanted: Wanted) -> list[LogFile]:
    """Return the wanted log files that exist, ordered by group, attempt and rank.

    Raises:
        RunNotFound: there is none.
    """
    if logs := present(run, wanted):
        return logs
    known = "no log of a worker; see `logs --controller` for why"
    if wanted.service is not None:
        known = f"no {wanted.service}.log"
    elif workers := _all_workers(run):
        groups, attempts, ranks = (
            spans(getattr(log, what) for log in workers) for what in ("group", "attempt", "rank")
        )
        known = f"no such log: there are those of groups {groups}, attempts {attempts}, ranks {ranks}"
    raise RunNotFound(f"run {run.root.name} has {known}; logs are in {run.logs}")


def present(run: RunDir, wanted: Wanted) -> list[LogFile]:
    if wanted.service is None:
        return [log for log in _all_workers(run) if wanted.takes(log)]
    path = run.logs / f"{wanted.service}.log"
    return [LogFile(path, wanted.service)] if path.is_file() else []


def _all_workers(run: RunDir) -> list[LogFile]:
    logs = []
    for path in run.logs.glob("group-*/attempt-*/rank-*.log"):
        match = _RANK_LOG.fullmatch(path.relative_to(run.logs).as_posix())
        if match:
            group, attempt, rank = (int(n) for n in match.groups())
            logs.append(LogFile(path, f"g{group}.a{attempt}.r{rank}", group, attempt, rank))
    return sorted(logs, key=lambda log: (log.group, log.attempt, log.rank))


class LogReader:
    """Reads blocks of many files, of which at most _OPEN_FILES are open."""

    def __init__(self) -> None:
        self._fds = dict[Path, int]()
        self._starts: dict[Path, int] = {}  # of gaps

    def read(self, path: Path, size: int, offset: int) -> bytes:
        return os.pread(self._fd(path), size, offset)

    def size(self, path: Path) -> int:
        """Return the size of a file; 0: it does not exist."""
        try:
            return os.fstat(self._fd(path)).st_size
        except FileNotFoundError:
            return 0

    def gap(self, path: Path) -> Gap:
        """Return the gap of a file that was cut (log_cap.py). Searches for its position only once."""
        if self.size(path) <= HEAD:
            return Gap(0)
        if path not in self._starts:
            self._starts[path] = read_gap(self._fd(path)).start
        return read_gap(self._fd(path), self._starts[path])

    def changed(self, path: Path) -> float:
        return os.fstat(self._fd(path)).st_mtime

    def last_line_end(self, path: Path, low: int, high: int) -> int | None:
        """Return the position after the last end of a line between `low` and `high`; None: there is none.

        A carriage return ends a line as a newline does once something follows it, which may be that newline.
        """
        size = _SCAN
        while high > low:
            start = max(low, high - size)
            block = self.read(path, high - start + 1, start)
            found = max(block.rfind(b"\n", 0, high - start), block.rfind(b"\r", 0, -1))
            if found >= 0:
                return start + found + 1
            high, size = start, BLOCK
        return None

    def blocks(self, path: Path, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Divide a part of a file after ends of lines."""
        while start < end:
            most = min(start + BLOCK, end)
            stop = most if most == end else self.last_line_end(path, start, most) or most
            yield start, stop
            start = stop

    def _fd(self, path: Path) -> int:
        if path not in self._fds:
            if len(self._fds) >= _OPEN_FILES:
                self.close()
            self._fds[path] = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a named pipe would block
        return self._fds[path]

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])


def pieces(log: LogFile, files: LogReader, end: int, since: float = 0.0) -> Iterator[Piece]:
    """Split a log up to `end` at its marks; leave out what was written before `since`."""
    start, latest = 0, 0.0  # clocks can be set back; the order of the lines stays
    for when, mark in _marks(log, files, end):
        latest, mark = max(latest, when), min(mark, end)
        if mark > start and latest >= since:
            yield Piece(latest, log, start, mark, mark == end)
        start = max(start, mark)


def _marks(log: LogFile, files: LogReader, end: int) -> Iterator[tuple[float, int]]:
    """Yield the marks of a log, and its end. Reads them in blocks: a day has 86,400."""
    path = log.path.with_suffix(".times")
    offset, size = 0, files.size(path)
    while offset < size:
        block = files.read(path, _SCAN, offset)
        whole = block.rfind(b"\n") + 1
        if whole == 0:
            break  # an incomplete last line
        offset += whole
        for line in block[:whole].splitlines():
            with contextlib.suppress(ValueError):  # not a mark
                when, mark = line.split()
                yield float(when), int(mark)
    if end > 0:
        yield files.changed(log.path), end


def check(config: Config, wanted: Wanted) -> None:
    """Raise RunNotFound for a group or rank that the run never has, whatever `ftslurm scale` asks for."""
    groups, ranks = most_groups(config), config.groups.nodes * config.groups.workers
    if (wanted.group or 0) >= groups or (wanted.rank or 0) >= ranks:
        size = f"{plural(groups, 'group')} of {plural(ranks, 'worker')}"
        raise RunNotFound(f"such a log never comes: the run has at most {size}, numbered from 0")
