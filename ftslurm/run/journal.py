"""Read a run's journal: one JSON object per line, append-only, in two files.

events.jsonl has what happens; progress.jsonl beside it how far the groups are: nearly all lines, of which few readers
need more than the last. A line of progress has the `seq` of the event that it follows.

The controller writes both (run/journal_writer.py). Other processes, on any node, read one with `JournalReader`, or both
with run/run_reader.py. A line is complete with its newline: the next writer cuts off a half line of a controller that
was killed while writing, and readers never return it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ftslurm.config.schema import MOST_GROUPS
from ftslurm.errors import EnvironmentProblem
from ftslurm.security import owned_files
from ftslurm.security.json_text import is_finite, is_whole, read_object

Event = Mapping[str, Any]

_BLOCK, _PIECE = 1 << 20, 1 << 18  # bytes that are read at once, forwards and backwards
_TAIL = 4096  # bytes that are read first for the last line; most are shorter


class JournalReader:
    """Reads a journal that is being written, and may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0  # just after the last complete line that was read

    def iter_new(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that were completed since the last call, so that a long journal need not fit into memory.

        Lines that are no JSON object are skipped: a crashed file system can leave zeros in the middle.

        Raises:
            EnvironmentProblem: there is a journal, and it cannot be read.
        """
        for block in self._blocks():
            for line in block[:-1].split(b"\n"):
                self.offset += len(line) + 1
                record = read_object(line)
                if record is not None:
                    yield record

    def backwards(self, groups: Collection[int]) -> Iterator[dict[str, Any]]:
        """Yield the complete lines from the newest on, and begin `iter_new` after it.

        Args:
            groups: what is sought; blocks without a line about one of them are passed over. The caller takes out what
                it has found, and the last one ends this.

        Raises:
            EnvironmentProblem: as `iter_new`.
        """
        with self._opened() as fd:
            end, rest = 0 if fd is None else os.fstat(fd).st_size, b""
            self.offset = -1
            while fd is not None and end > 0 and (groups or self.offset < 0):
                begin = max(0, end - _PIECE)
                block = os.pread(fd, end - begin, begin) + rest
                if self.offset < 0:
                    block = block[: block.rfind(b"\n") + 1]
                    self.offset = begin + len(block)
                first = block.find(b"\n") + 1 if begin else 0
                end, rest, block = begin, block[:first], block[first:]
                if any(b'"group":%d,' % group in block for group in groups):
                    yield from filter(None, map(read_object, reversed(block.splitlines())))
            self.offset = max(0, self.offset)

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """Open the file; None: there is none. Opened each time: this makes NFS ask the server for its current size."""
        try:
            fd = owned_files.open_fd(self.path)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            raise EnvironmentProblem(f"the journal {self.path} cannot be read: {error.strerror}") from error
        try:
            yield fd
        finally:
            os.close(fd)

    def _blocks(self) -> Iterator[bytes]:
        """Yield what follows `offset` in blocks of whole lines. The caller advances `offset`."""
        with self._opened() as fd:
            want = _BLOCK
            while fd is not None and os.fstat(fd).st_size > self.offset:
                block = os.pread(fd, want, self.offset)
                end = block.rfind(b"\n") + 1
                if end == 0:
                    if len(block) < want:
                        return  # a torn last line: read again later
                    want *= 2
                    continue
                want = _BLOCK
                yield block[:end]


def first_line(path: Path) -> Event | None:
    """Return the first line without reading the rest; None: no line, or half a line."""
    try:
        with owned_files.open_file(path) as file:
            return read_object(file.readline(_BLOCK))
    except OSError:
        return None


def last_event(path: Path) -> str | None:
    """Return the name of the last line's event without reading the rest; None: no line, or half a line."""
    return text(last_line(path) or {}, "event")


def last_line(path: Path) -> Event | None:
    """Return the last line without reading the rest; None: no line, half a line, or one longer than a megabyte."""
    try:
        with owned_files.open_file(path) as file:
            size, window = os.fstat(file.fileno()).st_size, _TAIL
            while True:
                lines = os.pread(file.fileno(), window, max(0, size - window)).splitlines()
                if len(lines) > 1 or window >= min(size, _BLOCK):  # else the line may begin before the window
                    return read_object(lines[-1])
                window *= 4
    except (OSError, IndexError):
        return None


def end(fd: int, but: bytes = b"\n") -> tuple[int, int]:
    """Return the seq of the last complete line without `but`, and the offset after all; (0, 0): there is none."""
    size = os.fstat(fd).st_size
    window = 1 << 16
    while True:
        start = max(0, size - window)
        tail = os.pread(fd, window, start)
        after = tail.rfind(b"\n") + 1
        for line in reversed(tail[:after].split(b"\n")):
            record = read_object(line)
            if record is not None and is_whole(record.get("seq")) and but not in line:
                return int(record["seq"]), start + after
        if start == 0:
            return 0, after
        window *= 4


# Read fields of a line. Another version may have written it, so a field of a wrong type counts as missing. So does a
# number of groups above the limit: readers create as many groups as a line says.
_MOST = {"group": MOST_GROUPS - 1, "groups": MOST_GROUPS}


def integer(event: Event, name: str) -> int | None:
    """Return a whole number between -2**53 and 2**53; one of groups is limited to what a run may have."""
    value = event.get(name)
    return value if is_whole(value) and (name not in _MOST or 0 <= value <= _MOST[name]) else None


def number(event: Event, name: str) -> float | None:
    """Return a finite number."""
    value = event.get(name)
    return float(value) if is_finite(value) else None


def text(event: Event, name: str) -> str | None:
    value = event.get(name)
    return value if isinstance(value, str) and value else None
