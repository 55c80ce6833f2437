"""Write a run's journal and the state that goes with it. Only the controller does, and who ends the run of a lost one.

The state comes first (run/kept_state.py), then what happens, then progress. No file overtakes the one before it.

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

from ftslurm.core.state.kept import changes, encode
from ftslurm.core.state.run_state import RunState
from ftslurm.protocol.records import JournalRecord, Progress, ScriptBegun
from ftslurm.run import journal, kept_state
from ftslurm.run.directory import RunDir
from ftslurm.run.kept_state import CHANGES, STATE, Kept
from ftslurm.security import owned_files

RETRY_S, CALM_S = 1.0, 5.0
TOLD_EVERY_S = 1.0  # groups report their steps once a second (large runs write fewer lines)
_UNSYNCED = 1 << 16  # bytes that are written without being synced
MOST_CHANGES = 1 << 20  # bytes; then the whole state is written again: the next controller reads no further back
_WRITE = os.O_RDWR | os.O_APPEND


class Journal:
    """The writer of a run's journal. `append` and `keep` collect lines; `flush` writes them at once.

    Lines of progress go into a file of their own, after the events that they follow.
    """

    def __init__(
        self,
        run: RunDir,
        clock: Callable[[], float] = time.time,
        leads: Callable[[], bool] = lambda: True,
        number: int | None = None,
        kept: Kept | None = None,
    ) -> None:
        """Open the journal, or create it.

        Args:
            leads: asked before anything is cut off: whether no other controller may have written meanwhile.
            number: the controller's leader number, which names its file of the state; None: no controller writes this
                journal. A controller's journal has no line before the first state is kept.
            kept: what the controller before has left. The first flush writes the lines that it had promised.

        Raises:
            OSError: the file of the events cannot be opened or written, or is no regular file.
        """
        self._run, self._clock, self._number = run, clock, number
        self._state = _File(run.kept(number or 0), clock, leads)
        self._events, self._progress = _File(run.events, clock, leads), _File(run.progress, clock, leads)
        self._files = (self._state, self._events, self._progress)
        self._events.open()
        with suppress(OSError):  # the first flush tells it
            self._progress.open()
        there = self._events.seq
        promised, known = (kept.lines, max(there, kept.seq)) if kept is not None else ((), there)
        self._batch = [dict(line) for line in promised if line["seq"] > there]  # lines that no state goes with yet
        for line in self._batch:
            self._events.append(line)
        self._seq = max(known, self._progress.seq)
        # What to tell of lines that a file system has lost in a crash.
        self.damage = f"lines {known + 1} to {self._seq} of {run.events} are lost" if known < self._seq else ""
        self._before: RunState | None = None  # the state that was kept last
        self._changed = 0  # bytes of changes since the last whole one

    @property
    def error(self) -> OSError | None:
        """Return why lines cannot be written: the first error, until nothing has failed for CALM_S."""
        return next((file.error for file in self._files if file.error is not None), None)

    @property
    def complaint(self) -> str:
        """Return what to tell while lines cannot be written; "": they can."""
        return next(filter(None, (file.complaint for file in self._files)), "")

    @property
    def mended(self) -> str:
        """Return what to tell once lines can be written again."""
        return f"{max(self._files, key=lambda file: file.failed).path} can be written again"

    @property
    def is_kept(self) -> bool:
        """Return whether the next controller knows of all states that were kept."""
        return not self._state.waits

    def append(self, record: JournalRecord) -> dict[str, object]:
        """Add a record to those that the next flush writes, and return its line as readers see it."""
        now, file = self._clock(), self._progress
        if not isinstance(record, Progress):
            self._seq, file = self._seq + 1, self._events
        line = {"seq": self._seq, "time": now, "event": record.event} | record.fields
        file.append(line)
        if file is self._events:
            self._batch.append(line)
        return line

    def keep(self, state: RunState, always: bool = False) -> bool:
        """Add the state after these records, for the next controller. Return whether there was anything to keep.

        Nothing waits for the disk of a line that says that a script has begun, which no later controller needs.

        Args:
            always: also without records.
        """
        if not (always or any(line["event"] != ScriptBegun.event for line in self._batch)):
            return False
        before = None if self._changed > MOST_CHANGES else self._before
        now = {STATE: encode(state)} if before is None else {CHANGES: changes(before, state)}
        now |= {"seq": self._seq, "time": self._clock(), "lines": self._batch}
        size = self._state.append(now, kept_state.checked)
        self._before, self._batch = state, []
        self._changed = 0 if before is None else self._changed + size
        return True

    def flush(self, sync: bool = True) -> bool:
        """Write the collected lines; with `sync` those of events are on disk when this returns True.

        The state is on disk in any case. Never raises: after an error (`error`) it is tried again every RETRY_S.
        """
        if self._before is not None:
            self.keep(self._before)  # with the lines since then
        elif self._number is not None:
            return False
        self._state.flush(sync=True)
        if self._state.waits:
            return False
        if self._before is not None and not self._changed:
            kept_state.remove(self._run, self._number or 0)
        done = self._events.flush(sync)
        if self._events.is_written:
            self._progress.flush(False)
        return done

    def close(self) -> None:
        """Write what is left and close the files.

        Raises:
            OSError: the disk is full or lost, and events with it.
        """
        done, error = self.flush(), self._state.error or self._events.error
        for file in self._files:
            file.close()
        if not done and error is not None:
            raise error


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
    def waits(self) -> bool:
        return bool(self._lines)

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

    def append(self, line: Mapping[str, object], made: Callable[[bytes], bytes] = bytes) -> int:
        # ASCII only: a script's output may contain bytes that are not text, and these must not stop the controller.
        self._lines.append(made(json.dumps(line, default=str, separators=(",", ":")).encode("ascii")) + b"\n")
        self._waiting += len(self._lines[-1])
        return len(self._lines[-1])

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
        if not self._lines:
            return
        if (self._fd < 0 or (self.error is not None and not self._written)) and not self._reopened():
            return
        data = b"".join(self._lines)
        while self._written < len(data):
            self._written += os.write(self._fd, memoryview(data)[self._written :])
        if sync or len(data) > _UNSYNCED:
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
        if self._fd >= 0:
            os.close(self._fd)


def _seal(fd: int) -> int:
    """Cut off a half last line, and return the seq of the last complete one (0: there is none)."""
    seq, end = journal.end(fd)
    os.ftruncate(fd, end)
    return seq
