"""Print what the workers have written: choose a run's log files and merge them in time order, by whole lines.

What would steer a terminal is shown and not sent (ftslurm.security.terminal).

A log holds what the script wrote, without times. Beside each `rank-0.log` lies `rank-0.times` with lines
`<unix seconds> <size of the log then>`, at most one a second: what lies between two marks was written in the second of
the later one. Logs are read in pieces, however large they are.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ftslurm.errors import RunNotFound
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event, JournalReader, integer
from ftslurm.run.log_cap import HEAD, Gap, read_gap
from ftslurm.security.terminal import LogText

_BLOCK = 1 << 18
_SCAN = 1 << 14  # a line is usually shorter
_LOOK_EVERY = 10  # rounds without news after which new files are looked for all the same
_OPEN_FILES = 128  # 64 groups and their restarts have more logs than a process may open
_RANK_LOG = re.compile(r"group-(\d+)/attempt-(\d+)/rank-(\d+)\.log")


@dataclass(frozen=True)
class Wanted:
    """What the person asked for; None means any. Without a group, rank 0 of each group is meant."""

    group: int | None = None
    rank: int | None = None
    attempt: int | None = None
    lighthouse: bool = False
    controller: bool = False

    @property
    def workers(self) -> bool:
        """Whether workers' logs are asked for."""
        ids = (self.group, self.rank, self.attempt)
        return not (self.lighthouse or self.controller) or any(n is not None for n in ids)

    @property
    def one(self) -> bool:
        """Whether no more than one file can be meant, now and later."""
        exact = None not in (self.group, self.rank, self.attempt)
        return (not self.workers or exact) and self.lighthouse + self.controller + self.workers == 1

    def takes(self, log: LogFile) -> bool:
        rank = 0 if self.rank is None and self.group is None else self.rank
        asked = ((self.group, log.group), (self.attempt, log.attempt), (rank, log.rank))
        return all(wanted is None or wanted == has for wanted, has in asked)


@dataclass(frozen=True)
class LogFile:
    path: Path
    label: str  # g3.a2.r0
    group: int = -1
    attempt: int = -1
    rank: int = -1


class _Page(NamedTuple):
    """Where the logs are printed."""

    out: BinaryIO
    text: LogText


class _Range(NamedTuple):
    """Whole lines of one log, and when they were written."""

    time: float
    log: LogFile
    start: int
    end: int


def show(
    run: RunDir,
    wanted: Wanted,
    out: BinaryIO,
    *,
    follow: bool = False,
    until: Callable[[], bool] = lambda: False,
    poll_s: float = 0.5,
    colours: bool = False,
) -> None:
    """Print the wanted logs, and with `follow` whatever is added to them until the run has finished.

    What is there already comes in time order, what is added while following in the order of arrival. Each line is
    preceded by its group, attempt and rank unless only one file is shown. A reader that goes away ends it quietly.

    Args:
        until: asked once a round; say true when nobody writes any more.
        colours: pass the colours on that the script has chosen; nothing else of what it tells a terminal is.

    Raises:
        RunNotFound: no such group, attempt or rank; the message says what there is.
    """
    try:
        page = _Page(out, LogText(colours))
        with _Files() as files:
            if follow:
                _follow(run, wanted, page, files, until, poll_s)
            else:
                logs = select(run, wanted)
                _merge(logs, page, files, labels=len(logs) > 1)
        out.write(page.text.feed(b"", final=True))
        out.flush()
    except BrokenPipeError:
        # `| head` has had enough. The interpreter flushes stdout once more when it ends: give that somewhere to go.
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, out.fileno())
            os.close(null)


def select(run: RunDir, wanted: Wanted) -> list[LogFile]:
    """The log files there are of what is wanted, ordered by group, attempt and rank.

    Raises:
        RunNotFound: there is none.
    """
    logs = _present(run, wanted)
    missing = [log for log in _services(run, wanted) if log not in logs]
    if missing:
        raise RunNotFound(f"run {run.root.name} has no {missing[0].path.name} (yet): looked for {missing[0].path}")
    if wanted.workers and not any(log.group >= 0 for log in logs):
        raise RunNotFound(f"run {run.root.name} {_lacks(wanted, _all_workers(run))}; logs are in {run.logs}")
    return logs


def _present(run: RunDir, wanted: Wanted) -> list[LogFile]:
    workers = [log for log in _all_workers(run) if wanted.takes(log)] if wanted.workers else []
    return [log for log in _services(run, wanted) if log.path.is_file()] + workers


def _services(run: RunDir, wanted: Wanted) -> list[LogFile]:
    logs = []
    if wanted.controller:
        logs.append(LogFile(run.controller_log, "controller"))
    if wanted.lighthouse:
        logs.append(LogFile(run.lighthouse_log, "lighthouse"))
    return logs


def _all_workers(run: RunDir) -> list[LogFile]:
    logs = []
    for path in run.logs.glob("group-*/attempt-*/rank-*.log"):
        match = _RANK_LOG.fullmatch(path.relative_to(run.logs).as_posix())
        if match:
            group, attempt, rank = (int(n) for n in match.groups())
            logs.append(LogFile(path, f"g{group}.a{attempt}.r{rank}", group, attempt, rank))
    return sorted(logs, key=lambda log: (log.group, log.attempt, log.rank))


def _lacks(wanted: Wanted, logs: Iterable[LogFile]) -> str:
    """Which of the numbers asked for does not exist, and which do."""
    logs = list(logs)
    if not logs:
        return "has no log of a worker (yet); see `logs --controller` for why"
    of = ""
    for word, asked, numbers in (
        ("group", wanted.group, [log.group for log in logs]),
        ("attempt", wanted.attempt, [log.attempt for log in logs if wanted.group in (None, log.group)]),
    ):
        if asked is not None and asked not in numbers:
            return f"has no log of {word} {asked}{of}: there are {_spans(numbers)}"
        of = f" of group {wanted.group}" if wanted.group is not None else ""
    of += f" in attempt {wanted.attempt}" if wanted.attempt is not None else ""
    asked_rank = wanted.rank or 0
    ranks = [log.rank for log in logs if wanted.group in (None, log.group) and wanted.attempt in (None, log.attempt)]
    return f"has no log of rank {asked_rank}{of}: there are {_spans(ranks)}"


def _spans(numbers: Iterable[int]) -> str:
    """[0, 1, 2, 5] -> "0-2, 5"."""
    spans: list[list[int]] = []
    for n in sorted(set(numbers)):
        if spans and spans[-1][1] == n - 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


class _Files:
    """Reads pieces of many files while holding a few of them open."""

    def __init__(self) -> None:
        self._fds: OrderedDict[Path, int] = OrderedDict()
        self._starts: dict[Path, int] = {}  # of gaps

    def read(self, path: Path, size: int, offset: int) -> bytes:
        return os.pread(self._fd(path), size, offset)

    def size(self, path: Path) -> int:
        """How large the file is; 0 when it is not there."""
        try:
            return os.fstat(self._fd(path)).st_size
        except FileNotFoundError:
            return 0

    def gap(self, path: Path) -> Gap:
        """What the file lacks because it had grown too large. Where it is or would be is looked for only once."""
        try:
            if path not in self._starts:
                if self.size(path) <= HEAD:
                    return Gap(0)
                self._starts[path] = read_gap(self._fd(path)).start
            return read_gap(self._fd(path), self._starts[path])
        except FileNotFoundError:
            return Gap(0)

    def changed(self, path: Path) -> float:
        return os.fstat(self._fd(path)).st_mtime

    def last_line_end(self, path: Path, low: int, high: int) -> int | None:
        """The position just after the last newline between `low` and `high`."""
        size = _SCAN
        while high > low:
            start = max(low, high - size)
            found = self.read(path, high - start, start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            high, size = start, _BLOCK
        return None

    def _fd(self, path: Path) -> int:
        fd = self._fds.get(path)
        if fd is None:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a named pipe would block
            if len(self._fds) >= _OPEN_FILES:
                os.close(self._fds.popitem(last=False)[1])
            self._fds[path] = fd
        self._fds.move_to_end(path)
        return fd

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _merge(
    logs: Iterable[LogFile], page: _Page, files: _Files, *, labels: bool, whole: bool = False
) -> dict[Path, int]:
    """Print what there is in time order, and return up to where each file was printed.

    Args:
        whole: leave out a last line that has no end yet.
    """
    printed: dict[Path, int] = {}
    for piece in heapq.merge(*(_ranges(log, files, whole) for log in logs), key=lambda piece: piece.time):
        _copy(piece.log, piece.start, piece.end, page, files, labels)
        printed[piece.log.path] = piece.end
    return printed


def _ranges(log: LogFile, files: _Files, whole: bool) -> Iterator[_Range]:
    """The log cut at its marks, each time at the end of a line; a line belongs to the mark before which it ended."""
    size = files.size(log.path)
    start = scanned = 0
    latest = 0.0  # clocks can be set back, the order of the lines stays
    for when, mark in _marks(log.path.with_suffix(".times"), files):
        latest = max(latest, when)
        end = files.last_line_end(log.path, scanned, min(mark, size))
        scanned = max(scanned, min(mark, size))
        if end is not None:
            yield _Range(latest, log, start, end)
            start = end
    last = files.last_line_end(log.path, scanned, size) or start if whole else size
    if last > start:
        yield _Range(max(latest, files.changed(log.path)), log, start, last)


def _marks(path: Path, files: _Files) -> Iterator[tuple[float, int]]:
    """The marks beside a log, read in pieces: a day has 86,400."""
    offset, size = 0, files.size(path)
    while offset < size:
        block = files.read(path, _SCAN, offset)
        end = block.rfind(b"\n") + 1
        if end == 0:
            return  # a torn last line
        offset += end
        for line in block[:end].splitlines():
            with contextlib.suppress(ValueError):  # no mark
                when, mark = line.split()
                yield float(when), int(mark)


def _copy(log: LogFile, start: int, end: int, page: _Page, files: _Files, labels: bool) -> None:
    """Print a piece of a log; with labels one before each line, and an end to the last line if it has none."""
    label = f"[{log.label}] ".encode()
    fresh = True  # at the start of a line
    while start < end:
        block = files.read(log.path, min(_BLOCK, end - start), start)
        if not block:
            break  # somebody cut the file
        start += len(block)
        block = page.text.feed(block, final=labels and start >= end)
        if labels and block:
            ends = block.endswith(b"\n")
            body = block[:-1] if ends else block
            block = (label if fresh else b"") + body.replace(b"\n", b"\n" + label) + (b"\n" if ends else b"")
            fresh = ends
        page.out.write(block)
    if labels and not fresh:
        page.out.write(b"\n")


def _follow(run: RunDir, wanted: Wanted, page: _Page, files: _Files, until: Callable[[], bool], poll_s: float) -> None:
    journal = JournalReader(run.events)
    logs = _present(run, wanted)
    # One file alone is passed on as it grows; among others a line waits for its end.
    printed = _merge(logs, page, files, labels=not wanted.one, whole=not wanted.one)
    scanned = dict(printed)  # there is no end of a line between printed and scanned
    gaps = {path: files.gap(path) for path in printed}
    finished, rounds = False, 0
    while True:
        last, news = until(), False
        for event in journal.iter_new():
            _check(run, wanted, event)
            finished = event.get("event") == "run_finished" or (finished and event.get("event") != "run_started")
            news = True
        last = last or finished
        if news or last or rounds % _LOOK_EVERY == 0:
            logs = _present(run, wanted)  # a new attempt has a new file
        rounds += 1
        for log in logs:
            if (gap := files.gap(log.path)) != gaps.setdefault(log.path, gap):  # it has grown too large, and was cut
                printed[log.path] = gap.offset(gaps[log.path].stream(printed.get(log.path, 0)))
                scanned[log.path], gaps[log.path] = printed[log.path], gap
            start, size = printed.get(log.path, 0), files.size(log.path)
            whole = not (wanted.one or last)
            end = files.last_line_end(log.path, scanned.get(log.path, 0), size) if whole else size
            scanned[log.path] = size
            if end is not None and end > start:
                _copy(log, start, end, page, files, labels=not wanted.one)
                printed[log.path] = end
        page.out.flush()
        if last:
            return
        files.close()  # opened anew each round: on NFS that is what asks the server for the present size
        time.sleep(poll_s)


def _check(run: RunDir, wanted: Wanted, event: Event) -> None:
    """Nobody waits for a group that the run never has."""
    if event.get("event") != "run_started":
        return
    for word, asked, count in (
        ("group", wanted.group, integer(event, "groups")),
        ("rank", wanted.rank, integer(event, "workers")),
    ):
        if asked is not None and count is not None and asked >= count:
            raise RunNotFound(f"run {run.root.name} has no {word} {asked}: there are {_spans(range(count))}")
