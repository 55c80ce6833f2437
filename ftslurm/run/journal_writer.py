"""Write a run's journal. Only the controller does, and who ends the run of one that is gone.

Lines stay in memory until they are on disk: a full quota may show only when the file is synced. After an error what may
be lost is cut off and written again, with the same bytes where readers have seen them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from ftslurm.protocol.records import JournalRecord, Progress
from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files
from ftslurm.security.json_text import is_whole, read_object

RETRY_S, CALM_S = 1.0, 5.0
TOLD_EVERY_S = 1.0  # groups report their steps once a second (large runs write fewer lines)
_UNSYNCED = 1 << 16  # bytes that are written without being synced
_WRITE = os.O_RDWR | os.O_APPEND


class Journal:
    """The writer of a run's journal. `append` collects lines; `flush` writes them at once.

    Lines of progress go into a file of their own, after the events that they follow.
    """

    def __init__(
        self,
        run: RunDir,
        clock: Callable[[], float] = time.time,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """Open the journal, or create it.

        Args:
            leads: asked before anything is cut off: whether no other controller may have written meanwhile.

        Raises:
            OSError: the file of the events cannot be opened or written, or is no regular file.
        """
        self._clock = clock
        self._events, self._progress = _File(run.events, clock, leads), _File(run.progress, clock, leads)
        self._events.open()
        with suppress(OSError):  # the first flush tells it
            self._progress.open()
        missing = range(self._events.seq + 1, self._progress.seq + 1)
        # What to tell of lines that a file system has lost in a crash.
        self.damage = f"lines {missing[0]} to {missing[-1]} of {run.events} are lost" if missing else ""
        self._seq = max(self._events.seq, self._progress.seq)

    @property
    def error(self) -> OSError | None:
        """Return why lines cannot be written: the first error, until nothing has failed for CALM_S."""
        return self._events.error or self._progress.error

    @property
    def complaint(self) -> str:
        """Return what to tell while lines cannot be written; "": they can."""
        return self._events.complaint or self._progress.complaint

    @property
    def mended(self) -> str:
        """Return what to tell once lines can be written again."""
        return f"{max(self._events, self._progress, key=lambda file: file.failed).path} can be written again"

    def append(self, record: JournalRecord) -> dict[str, object]:
        """Add a record to those that the next flush writes, and return its line as readers see it."""
        now, file = self._clock(), self._progress
        if not isinstance(record, Progress):
            self._seq, file = self._seq + 1, self._events
        line = {"seq": self._seq, "time": now, "event": record.event} | record.fields
        file.append(line)
        return line

    def flush(self, sync: bool = True) -> bool:
        """Write the collected lines; with `sync` those of events are on disk when this returns True.

        Never raises: after an error (`error`) it is tried again every RETRY_S. Progress never overtakes its events.
        """
        done = self._events.flush(sync)
        if self._events.is_written:
            self._progress.flush(False)
        return done

    def close(self) -> None:
        """Write what is left and close the files.

        Raises:
            OSError: the disk is full or lost, and events with it.
        """
        try:
            self._events.close()
        finally:
            with suppress(OSError):
                self._progress.close()


class _File:
    """A file of lines that only grows."""

    def __init__(self, path: Path, clock: Callable[[], float], leads: Callable[[], bool]) -> None:
        self.path, self._clock, self._leads = path, clock, leads
        self.seq = 0  # of the last line that was there
        self.error: OSError | None = None
        self.failed = float("-inf")  # when its lines could not be written last
        self._fd = -1
        self._size = 0  # bytes that are on disk
        self._lines: list[bytes] = []  # those after them, oldest first
        self._waiting = 0  # bytes of them
        self._written = 0  # bytes of them that are in the file

    @property
    def complaint(self) -> str:
        why = self.error and self.error.strerror
        return f"{self.path} cannot be written ({why}), so its lines wait in memory" if why else ""

    @property
    def is_written(self) -> bool:
        return self._written == self._waiting

    def open(self) -> None:
        fd = owned_files.open_fd(self.path, _WRITE | os.O_CREAT)
        try:
            self.seq, self._size = _seal(fd), os.fstat(fd).st_size
        except OSError:
            os.close(fd)
            raise
        self._fd = fd

    def append(self, line: Mapping[str, object]) -> None:
        # ASCII only: a script's output may contain bytes that are not text, and these must not stop the controller.
        self._lines.append(json.dumps(line, default=str, separators=(",", ":")).encode("ascii") + b"\n")
        self._waiting += len(self._lines[-1])

    def flush(self, sync: bool) -> bool:
        now = self._clock()
        if self.error is None or now >= self.failed + RETRY_S:
            try:
                self._write(sync)
            except OSError as error:
                self.error, self.failed, self._written = self.error or error, now, 0
            else:
                self.error = self.error if now < self.failed + CALM_S else None
        return not self._lines

    def _write(self, sync: bool) -> None:
        if (self._fd < 0 or (self.error is not None and not self._written)) and not self._reopened():
            return
        data = b"".join(self._lines)
        while self._written < len(data):
            self._written += os.write(self._fd, memoryview(data)[self._written :])
        if data and (sync or len(data) > _UNSYNCED):
            os.fsync(self._fd)
            self._size += len(data)
            self._lines, self._waiting, self._written = [], 0, 0

    def _reopened(self) -> bool:
        """Open the file again, and cut off what may not be on disk. Return whether this controller still leads."""
        if self._fd >= 0:
            fd = owned_files.open_fd(self.path, _WRITE)  # the old one may be stale
            try:
                os.dup2(fd, self._fd, inheritable=False)
            finally:
                os.close(fd)
        if not self._leads():
            return False
        if self._fd < 0:
            self.open()
        elif os.fstat(self._fd).st_size > self._size:
            os.ftruncate(self._fd, self._size)
        return True

    def close(self) -> None:
        done = self.flush(sync=True)
        if self._fd >= 0:
            os.close(self._fd)
        if not done and self.error is not None:
            raise self.error


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
