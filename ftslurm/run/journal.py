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
from contextlib import suppress
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
_WRITE = os.O_RDWR | os.O_APPEND
_PROGRESS = b'"event":"progress"'
MOST_WAITING = 1 << 24  # bytes of lines that wait in memory while they cannot be written
RETRY_S, CALM_S = 1.0, 5.0


class Journal:
    """The writer of a run's journal. `append` collects lines; `flush` writes them at once.

    Lines stay in memory until they are on disk: a full quota may show only when the file is synced. After an error
    what may be lost is cut off and written again, with the same bytes where readers have seen them.
    """

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.time, leads: Callable[[], bool] = lambda: True
    ) -> None:
        """Open the journal, or create it.

        Args:
            leads: asked before anything is cut off: whether no other controller may have written meanwhile.

        Raises:
            OSError: the file cannot be opened or written, or is no regular file.
        """
        self._path, self._clock, self._leads = path, clock, leads
        self._fd = owned_files.open_fd(path, _WRITE | os.O_CREAT)
        self._seq = _seal(self._fd)
        self._size = os.fstat(self._fd).st_size  # bytes that are on disk
        self._lines: list[bytes] = []  # those after them, oldest first
        self._written = self._shown = 0  # bytes of them that are in the file, and that have been there
        self._failed = float("-inf")  # when they could not be written last
        self.error: OSError | None = None  # the first one, until nothing has failed for CALM_S
        self.lost = 0  # lines that did not fit into memory

    @property
    def complaint(self) -> str:
        """Return what to tell while lines cannot be written; "": they can."""
        why = self.error and self.error.strerror
        return f"{self._path} cannot be written ({why}), so its lines wait in memory" if why else ""

    @property
    def loss(self) -> str:
        """Return what to tell once they can."""
        return f"{self._path} can be written again; {self.lost} of its lines are lost"

    def append(self, record: JournalRecord) -> dict[str, object]:
        """Add a record to those that the next flush writes, and return its line as readers see it."""
        line = {"seq": self._seq + 1, "time": self._clock(), "event": record.event} | record.fields
        # ASCII only: a script's output may contain bytes that are not text, and these must not stop the controller.
        self._lines.append(json.dumps(line, default=str, separators=(",", ":")).encode("ascii") + b"\n")
        self._seq += 1
        return line

    def flush(self, sync: bool = True) -> bool:
        """Write the collected lines; with `sync` they are on disk when this returns True.

        Never raises: after an error (`error`) it is tried again every RETRY_S.
        """
        now = self._clock()
        if self.error is None or now >= self._failed + RETRY_S:
            try:
                self._write(sync)
            except OSError as error:
                self.error, self._failed, self._written = self.error or error, now, 0
                with suppress(OSError):
                    self._shown = max(self._shown, os.fstat(self._fd).st_size - self._size)
                self._make_room()
            else:
                self.error = self.error if now < self._failed + CALM_S else None
        return not self._lines

    def _write(self, sync: bool) -> None:
        if self.error is not None and not self._written:
            fd = owned_files.open_fd(self._path, _WRITE)  # the old one may be stale
            try:
                os.dup2(fd, self._fd, inheritable=False)
            finally:
                os.close(fd)
            if not self._leads():
                return
            if os.fstat(self._fd).st_size > self._size:
                os.ftruncate(self._fd, self._size)
        data = b"".join(self._lines)
        while self._written < len(data):
            self._written += os.write(self._fd, memoryview(data)[self._written :])
        if data and (sync or len(data) > _BLOCK):
            os.fsync(self._fd)
            self._size += len(data)
            self._lines, self._written, self._shown = [], 0, 0

    def _make_room(self) -> None:
        """Drop lines that no reader can have seen if they take more than MOST_WAITING bytes: first of progress."""
        for droppable in (_PROGRESS, b""):
            over, at = sum(map(len, self._lines)) - MOST_WAITING, 0
            if over <= 0:
                return
            lines, self._lines = self._lines, []
            for line in lines:
                if over > 0 and at >= self._shown and droppable in line:
                    over -= len(line)
                    self.lost += 1
                else:
                    self._lines.append(line)
                at += len(line)

    def close(self) -> None:
        """Write what is left and close the file.

        Raises:
            OSError: the disk is full or lost, and lines with it.
        """
        done = self.flush()
        os.close(self._fd)
        if not done and self.error is not None:
            raise self.error

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
