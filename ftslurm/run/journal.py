"""Write and read a run's journal: one JSON object per line, append-only.

The controller writes it with `Journal`; other processes, on any node, read it with `JournalReader`. A line is complete
with its newline: the next writer cuts off a half line of a controller that was killed while writing, and readers never
return it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ftslurm.config.schema import MOST_GROUPS
from ftslurm.errors import EnvironmentProblem
from ftslurm.security import owned_files
from ftslurm.security.json_text import is_finite, is_whole, read_object

if TYPE_CHECKING:  # not at run time: who reads only the last line starts faster
    from ftslurm.protocol.records import JournalRecord

Event = Mapping[str, Any]

_BLOCK = 1 << 20
_TAIL = 4096  # bytes; the lines that end a run are shorter


class Journal:
    """The writer of a run's journal. `append` collects lines; `flush` writes them at once."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Open the journal, or create it.

        Raises:
            OSError: the file cannot be opened or written, or is no regular file.
        """
        self._clock = clock
        self._pending = bytearray()
        self._fd = owned_files.open_fd(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._seq = _seal(self._fd)

    def append(self, record: JournalRecord) -> dict[str, object]:
        """Add a record to those that the next flush writes, and return its line as readers see it."""
        line = {"seq": self._seq + 1, "time": self._clock(), "event": record.event} | record.fields
        # ASCII only: a script's output may contain bytes that are not text, and these must not stop the controller.
        self._pending += json.dumps(line, default=str, separators=(",", ":")).encode("ascii") + b"\n"
        self._seq += 1
        return line

    def flush(self, sync: bool = True) -> None:
        """Write the collected lines; with `sync` they are on disk when this returns.

        Raises:
            OSError: the disk is full or lost. Lines that could not be written are kept for the next flush.
        """
        wrote = bool(self._pending)
        while self._pending:  # usually one write; more only if the disk is almost full
            written = os.write(self._fd, self._pending)
            del self._pending[:written]
        if sync and wrote:
            os.fsync(self._fd)

    def close(self) -> None:
        """Write what is left and close the file."""
        try:
            self.flush()
        finally:
            os.close(self._fd)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class JournalReader:
    """Reads a journal that is being written, and may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0  # just after the last complete line that was read

    def read_new(self) -> list[dict[str, Any]]:
        """Return the lines that were completed since the last call."""
        return list(self.iter_new())

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

    def blocks(self) -> Iterator[bytes]:
        """Yield the same lines as bytes, in blocks of many whole lines."""
        for block in self._blocks():
            self.offset += len(block)
            yield block

    def _blocks(self) -> Iterator[bytes]:
        """Yield what follows `offset` in blocks of whole lines. The caller advances `offset`."""
        # Reopened each time: this makes NFS ask the server for the file's current size.
        try:
            fd = owned_files.open_fd(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise EnvironmentProblem(f"the journal {self.path} cannot be read: {error.strerror}") from error
        try:
            want = _BLOCK
            while os.fstat(fd).st_size > self.offset:
                block = os.pread(fd, want, self.offset)
                end = block.rfind(b"\n") + 1
                if end == 0:
                    if len(block) < want:
                        return  # a torn last line: read again later
                    want *= 2
                    continue
                want = _BLOCK
                yield block[:end]
        finally:
            os.close(fd)


def first_line(path: Path) -> Event | None:
    """Return the first line without reading the rest; None: no line, or half a line."""
    try:
        with owned_files.open_file(path) as file:
            return read_object(file.readline(_BLOCK))
    except OSError:
        return None


def last_event(path: Path) -> str | None:
    """Return the name of the last line's event without reading the rest; None: no line, or half a line."""
    record = last_line(path)
    return text(record, "event") if record is not None else None


def last_line(path: Path) -> Event | None:
    """Return the last line without reading the rest; None: no line, or half a line."""
    try:
        with owned_files.open_file(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return read_object(file.read().splitlines()[-1])
    except (OSError, IndexError):
        return None


def _seal(fd: int) -> int:
    """Cut off a half last line, and return the seq of the last complete one (0: there is none)."""
    size = os.fstat(fd).st_size
    window = 1 << 16
    while True:
        start = max(0, size - window)
        tail = os.pread(fd, window, start)
        end = tail.rfind(b"\n") + 1
        for line in reversed(tail[:end].split(b"\n")):
            record = read_object(line)
            if record is not None and is_whole(record.get("seq")):
                os.ftruncate(fd, start + end)
                return int(record["seq"])
        if start == 0:
            os.ftruncate(fd, end)
            return 0
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


def names(event: Event, name: str) -> tuple[str, ...]:
    value = event.get(name)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def numbers(event: Event, name: str) -> dict[str, float | None]:
    """Return named numbers, each of which may be null: {"detect": 0.03, "wait": null}."""
    value = event.get(name)
    return {key: number(value, key) for key in value} if isinstance(value, dict) else {}
