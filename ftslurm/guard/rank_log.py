"""The guard's part in the log of a rank: time marks for `ftslurm logs`, and the cap on its size."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import IO

from ftslurm.errors import complain
from ftslurm.run import log_cap
from ftslurm.security import owned_files, sharing

WRITE_S = 10.0  # between two writes of marks: with thousands of ranks each costs the file server something


def take_output(path: str) -> None:
    """Send stdout and stderr of this process to a log. If it cannot be made (a full disk), they stay in the step's."""
    try:
        sharing.make_folder(os.path.dirname(path))
        log = owned_files.open_fd(Path(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        complain(f"warning: {path} cannot be made: {error.strerror}")
        return
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


class RankLog:
    """One rank's log, which the script and its children write, and the file of its time marks beside it."""

    def __init__(self, path: str, max_mb: int) -> None:
        """Set the log's path and its cap in megabytes (logs.max_mb; 0: no cap)."""
        self.path, self.max_mb = path, max_mb
        self.marks = path.removesuffix(".log") + ".times"
        self.size = 0
        self._log: int | None = None
        self._sink: IO[str] | None = None  # of the marks
        self._due = 0.0

    def update(self, last: bool = False) -> None:
        """Note the log's size and the time, and cut it if it is too large. Called about once a second."""
        with contextlib.suppress(OSError):
            if self._log is None:
                self._log = owned_files.open_fd(Path(self.path))
            if self._sink is None:
                self._sink = open(self.marks, "a")  # noqa: SIM115 kept open
                sharing.follow(self._sink.fileno(), self.marks)
            size = os.fstat(self._log).st_size
            if size != self.size:
                self.size = size
                self._sink.write(f"{time.time():.3f} {size}\n")
            too_large = 0 < self.max_mb * log_cap.MB < size
            if last or too_large or time.monotonic() >= self._due:
                self._due = time.monotonic() + WRITE_S
                self._sink.flush()
            if too_large and (cut := log_cap.cut(self.path, self.max_mb)) is not None:
                self._sink.close()
                self._sink = None
                self._move_marks(*cut)

    def _move_marks(self, before: log_cap.Gap, after: log_cap.Gap) -> None:
        """Move the marks to the new offsets of their lines, and drop those of lines that were cut."""
        kept: dict[int, str] = {}  # the first mark at each offset: the line before it was written by then
        with open(self.marks) as marks:
            for mark in marks:
                with contextlib.suppress(ValueError):
                    when, size = mark.split()
                    kept.setdefault(after.offset(before.stream(int(size))), when)
        text = "".join(f"{when} {size}\n" for size, when in kept.items())
        owned_files.replace_file(Path(self.marks), text.encode())
