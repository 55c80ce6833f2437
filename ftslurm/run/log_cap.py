"""Limit logs to logs.max_mb: keep the beginning and the end, with a line about what was dropped between them.

The file is cut in place, because its writers hold it open for appending (a script and its children, srun, grpc): after
a rename they would write to the renamed file. What they write during the cut is kept, but for whole writes in its last
moment.

The limit is checked periodically (once a second for a rank's log), so a log may exceed it by what is written between
two checks. Writers are never blocked.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from pathlib import Path

from ftslurm.protocol.value_class import Value
from ftslurm.security import owned_files, sharing

MB = 1 << 20
HEAD = 1 << 18  # bytes kept of the beginning, at most
_TAIL = 8 << 20  # bytes kept of the end, at most: they are copied, which must not take long
_NOTICE = re.compile(rb"^ftslurm: (\d+) bytes of this log were dropped here \(logs\.max_mb=\d+\)\n", re.MULTILINE)
_LONGEST_NOTICE = 128


class Gap(Value):
    """The gap of a cut log: at `start` a line of `length` bytes stands for `dropped` bytes."""

    start: int
    length: int = 0
    dropped: int = 0

    def stream(self, offset: int) -> int:
        """Return the position in all that was ever written of the byte at an offset of the file."""
        if offset <= self.start:
            return offset
        return max(self.start, offset - self.length) + self.dropped

    def offset(self, stream: int) -> int:
        """Return the offset in the file of a byte of all that was ever written; of a dropped byte: `start`."""
        if stream < self.start + self.dropped:
            return min(stream, self.start)
        return stream - self.dropped + self.length


def read_gap(fd: int, start: int | None = None) -> Gap:
    """Return the gap of an open log; if it was not cut, an empty gap where it would be cut.

    Args:
        start: that of an earlier call, if there was one: it does not change.
    """
    first = start is None
    beginning = os.pread(fd, _LONGEST_NOTICE + HEAD * first, start or 0)
    if found := (_NOTICE.search if first else _NOTICE.match)(beginning):
        return Gap((start or 0) + found.start(), len(found[0]), int(found[1]))
    return Gap(beginning.rfind(b"\n", 0, HEAD) + 1 if start is None else start)


def cut(path: str | Path, max_mb: int) -> tuple[Gap, Gap] | None:
    """Cut a log that is larger than the limit. Never raises. Only one process may call it for a file.

    Args:
        max_mb: the limit in MiB; 0: none.

    Returns:
        The gap before and after; None: the log was not cut.
    """
    with contextlib.suppress(OSError):
        if not max_mb or Path(path).stat().st_size <= max_mb * MB:
            return None
        fd = owned_files.open_fd(Path(path), os.O_RDWR)  # no O_APPEND: it is written in its middle
        try:
            return _cut(fd, max_mb)
        finally:
            os.close(fd)
    return None


def _cut(fd: int, max_mb: int) -> tuple[Gap, Gap]:
    before, size = read_gap(fd), os.fstat(fd).st_size
    keep = min(_TAIL, max_mb * MB // 4)
    tail = os.pread(fd, keep, size - keep)
    whole = tail.find(b"\n") + 1
    tail = tail[whole:] if whole < len(tail) else tail  # of a line longer than the tail, the end is kept
    start = before.start
    dropped = before.stream(size) - len(tail) - start
    line = b"ftslurm: %d bytes of this log were dropped here (logs.max_mb=%d)\n" % (dropped, max_mb)
    end = start + os.pwrite(fd, line + tail, start)
    for _ in range(100):
        # A write is seen in parts, but own writes wait for it: when nothing more is seen, it was seen to its end.
        if not (late := os.pread(fd, keep, size)):
            break
        size, end = size + len(late), end + os.pwrite(fd, late, end)
    os.ftruncate(fd, end)
    return before, Gap(start, len(line), dropped)


def log_to(logger: logging.Logger, path: Path, max_mb: int) -> None:
    """Write a logger's records into a file of limited size."""
    logger.addHandler(_Handler(path, max_mb))
    logger.setLevel(logging.INFO)
    logger.propagate = False


class _Handler(logging.FileHandler):
    """Keeps the file below the limit; leaves out what a full disk does not take."""

    def __init__(self, path: Path, max_mb: int) -> None:
        super().__init__(path, delay=True)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self.max_mb = max_mb
        with contextlib.suppress(OSError):
            self.stream = self._open()
            sharing.follow(self.stream.fileno(), path)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, and cut the file if it is too large."""
        with contextlib.suppress(OSError):
            super().emit(record)
        cut(self.baseFilename, self.max_mb)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 its name in logging
        """Print no traceback for each record that cannot be written."""
