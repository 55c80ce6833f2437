"""No log grows beyond logs.max_mb: its beginning and its end are kept, and a line says what was dropped between them.

The file is cut in place, because those who write it hold it open for appending (a script with all its C code, its
children, srun, grpc): if it were renamed they would go on in the renamed file. What they write meanwhile is kept. Lost
without a word is only what they write between the last look at the file's size and the system call that truncates it:
in microseconds, or in what a busy machine makes of them.

The cap is looked at now and then (once a second for a rank's log), so a log may exceed it by what is written between
two looks. No process is ever held up for the sake of a log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

MB = 1 << 20
HEAD = 1 << 18  # bytes: at most so much is kept of the beginning
_TAIL = 8 << 20  # bytes: at most so much is kept of the end; it is copied, and nobody should have to wait for that
_NOTICE = re.compile(rb"^ftslurm: (\d+) bytes of this log were dropped here \(logs\.max_mb=\d+\)\n", re.MULTILINE)
_LONGEST_NOTICE = 128
_LOOKS = 64  # so often the writers are caught up with before the file is truncated all the same


@dataclass(frozen=True)
class Gap:
    """Where a log lacks something: at `start` stands a line of `length` bytes for `dropped` bytes."""

    start: int
    length: int = 0
    dropped: int = 0

    def stream(self, offset: int) -> int:
        """Which byte of all that was ever written is at this offset of the file."""
        if offset <= self.start:
            return offset
        return max(self.start, offset - self.length) + self.dropped

    def offset(self, stream: int) -> int:
        """Where this byte of all that was ever written is in the file; what was dropped: where the line begins."""
        if stream < self.start + self.dropped:
            return min(stream, self.start)
        return stream - self.dropped + self.length


def gap(beginning: bytes) -> Gap:
    """What a log lacks, and where it would be cut if it lacks nothing.

    Args:
        beginning: the first `HEAD + 128` bytes of the log, or all if it is shorter.
    """
    if found := _NOTICE.search(beginning):
        return Gap(found.start(), len(found[0]), int(found[1]))
    return Gap(beginning.rfind(b"\n", 0, HEAD) + 1)


def read_gap(fd: int, start: int | None = None) -> Gap:
    """The same for an open file. start: where it is or would be cut, if that is known: it stays the same."""
    if start is None:
        return gap(os.pread(fd, HEAD + _LONGEST_NOTICE, 0))
    found = _NOTICE.match(os.pread(fd, _LONGEST_NOTICE, start))
    return Gap(start, len(found[0]), int(found[1])) if found else Gap(start)


def notice(dropped: int, max_mb: int) -> bytes:
    """The line that stands for what was dropped."""
    return b"ftslurm: %d bytes of this log were dropped here (logs.max_mb=%d)\n" % (dropped, max_mb)


def cut(path: str | Path, max_mb: int) -> tuple[Gap, Gap] | None:
    """Cut a log that has grown beyond the cap; never raises. Only one process may do so for a file.

    Args:
        max_mb: the cap in MiB; 0: none.

    Returns:
        What it lacked before and what it lacks now; None: it was not cut.
    """
    with contextlib.suppress(OSError):
        if not max_mb or Path(path).stat().st_size <= max_mb * MB:
            return None
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)  # no O_APPEND: it is written in its middle
        try:
            return _cut(fd, max_mb) if stat.S_ISREG(os.fstat(fd).st_mode) else None
        finally:
            os.close(fd)
    return None


def _cut(fd: int, max_mb: int) -> tuple[Gap, Gap]:
    before, size = read_gap(fd), os.fstat(fd).st_size
    keep = min(_TAIL, max_mb * MB // 4)
    tail = os.pread(fd, keep, size - keep)
    whole = tail.find(b"\n") + 1
    tail = tail[whole:] if whole < len(tail) else tail  # a line that is longer than the tail has its end kept
    start = before.start
    dropped = before.stream(size) - len(tail) - start
    line = notice(dropped, max_mb)
    end = start + os.pwrite(fd, line + tail, start)
    end += _catch_up(fd, size, end, keep, max_mb)
    os.ftruncate(fd, end)
    return before, Gap(start, len(line), dropped)


def _catch_up(fd: int, start: int, end: int, most: int, max_mb: int) -> int:
    """Copy to `end` what is being written at `start` meanwhile; returns how many bytes were added there."""
    copied = 0
    for _ in range(_LOOKS):
        more = os.pread(fd, most - copied, start + copied)
        if not more:
            break
        copied += os.pwrite(fd, more, end + copied)
    left = os.fstat(fd).st_size - start - copied
    return copied + (os.pwrite(fd, notice(left, max_mb), end + copied) if left > 0 else 0)


class Handler(logging.FileHandler):
    """A log of Python's logging that is kept below the cap."""

    def __init__(self, path: Path, max_mb: int) -> None:
        super().__init__(path)
        self.max_mb = max_mb

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, and cut the file if it has grown too large."""
        super().emit(record)
        cut(self.baseFilename, self.max_mb)
