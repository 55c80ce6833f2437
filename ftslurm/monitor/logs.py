"""Print the logs of a run in time order, all of them or the last lines, and follow them.

What the files are is in log_files.py, how lines are printed in log_page.py, the evidence of the last failure in
log_failure.py.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

from ftslurm.monitor.log_files import LogFile, LogReader, Piece, Wanted, pieces, present, select
from ftslurm.monitor.log_page import Page, View
from ftslurm.run.directory import RunDir

_SEARCH_EVERY = 4  # rounds after which new log files are searched for


def show(
    run: RunDir,
    wanted: Wanted,
    out: BinaryIO,
    view: View = View(),  # noqa: B008 it is frozen
    *,
    follow: bool = False,
    until: Callable[[], bool] = lambda: False,
    poll_s: float = 0.5,
) -> int:
    """Print the wanted logs; with `follow` also new lines until the run has finished.

    Existing lines are printed in time order, new ones in the order of their arrival. Each line has its group, attempt
    and rank in front, unless there is one file only and it is not followed.

    Args:
        until: called in each round; returns true when the run has no writers any more.

    Returns:
        How many lines of known noise are left out.

    Raises:
        RunNotFound: no such group, attempt or rank; the message names the existing ones.
    """
    page = Page(out, view, labels=wanted.service is None)
    with closing(LogReader()) as files:
        if follow:
            _follow(run, wanted, page, files, until, poll_s)
        else:
            logs = select(run, wanted)
            page.labels = len(logs) > 1
            _print(logs, page, files, {log.path: files.size(log.path) for log in logs})
    out.flush()
    return page.left_out


def _print(logs: Sequence[LogFile], page: Page, files: LogReader, ends: dict[Path, int]) -> None:
    """Print the existing lines in time order, of each file up to its end; with `tail` the last, read backward."""
    left, kept = page.view.tail, list[tuple[Piece, list[bytes]]]()
    if left is None:
        for piece, lines in _lines(logs, page, files, ends):
            page.write(piece.log, piece.time, lines)
        return
    last = _lines(logs, page, files, ends, backward=True)
    while left and (found := next(last, None)):
        piece, lines = found[0], found[1][-left:]
        kept.append((piece, lines))
        left -= len(lines)
    for piece, lines in reversed(kept):
        page.write(piece.log, piece.time, lines)


def _lines(
    logs: Sequence[LogFile], page: Page, files: LogReader, ends: dict[Path, int], backward: bool = False
) -> Iterator[tuple[Piece, list[bytes]]]:
    """Yield the lines that the view shows, in time order, or the last ones first."""

    def turned(items: Iterable[Any]) -> Iterable[Any]:
        return reversed([*items]) if backward else items

    parts = (turned(pieces(log, files, ends[log.path], page.view.since)) for log in turned(logs))
    for piece in heapq.merge(*parts, key=lambda piece: piece.time, reverse=backward):
        for start, end in turned(piece.lines(files)):
            yield piece, page.pick(files.read(piece.log.path, end - start, start))


def _follow(
    run: RunDir, wanted: Wanted, page: Page, files: LogReader, until: Callable[[], bool], poll_s: float
) -> None:
    logs = present(run, wanted)
    printed = {log.path: files.last_line_end(log.path, 0, files.size(log.path)) or 0 for log in logs}
    _print(logs, page, files, printed)
    printed = {path: files.gap(path).stream(end) for path, end in printed.items()}  # of all that was ever written
    rounds = 0
    while True:
        last = until()
        if last or rounds % _SEARCH_EVERY == 0:
            logs = present(run, wanted)  # a new attempt has a new file
        rounds += 1
        for log in logs:
            gap = files.gap(log.path)  # the file may have been cut (log_cap.py)
            start, size = gap.offset(printed.get(log.path, 0)), files.size(log.path)
            end = size if last else files.last_line_end(log.path, start, size) or start
            if end > start:
                for begin, stop in files.blocks(log.path, start, end):
                    page.write(log, time.time(), page.pick(files.read(log.path, stop - begin, begin)))
                printed[log.path] = gap.stream(end)
        page.out.flush()
        if last:
            return
        files.close()  # reopened each round: this makes NFS ask the server for the current size
        time.sleep(poll_s)
