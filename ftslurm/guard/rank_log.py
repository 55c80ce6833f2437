"""The guard's part in the log of a rank: time marks for `ftslurm logs`, and the cap on its size."""

from __future__ import annotations

import contextlib
import os
import time

from ftslurm.run import log_cap
from ftslurm.security import sharing


class RankLog:
    """One rank's log, which the script and its children write, and the file of its time marks beside it."""

    def __init__(self, path: str, max_mb: int) -> None:
        """Set the log's path and its cap in megabytes (logs.max_mb; 0: no cap)."""
        self.path, self.max_mb = path, max_mb
        self.marks = path.removesuffix(".log") + ".times"
        self.size = 0

    def tend(self) -> None:
        """Cut the log if it is too large, and write a mark with its size and the time. Called about once a second."""
        cut = log_cap.cut(self.path, self.max_mb)
        if cut is not None:
            with contextlib.suppress(OSError):
                self._move_marks(*cut)
        with contextlib.suppress(OSError):
            size = os.stat(self.path).st_size
            if size != self.size:
                self.size = size
                with open(self.marks, "a") as marks:
                    sharing.follow(marks.fileno(), self.marks)
                    marks.write(f"{time.time():.3f} {size}\n")

    def _move_marks(self, before: log_cap.Gap, after: log_cap.Gap) -> None:
        """Move the marks to the new offsets of their lines, and drop those of lines that were cut."""
        kept: dict[int, str] = {}  # the first mark at each offset: the line before it was written by then
        with open(self.marks) as marks:
            for mark in marks:
                with contextlib.suppress(ValueError):
                    when, size = mark.split()
                    kept.setdefault(after.offset(before.stream(int(size))), when)
        part = f"{self.marks}.part"
        with open(part, "w") as marks:
            sharing.follow(marks.fileno(), part)
            marks.writelines(f"{when} {size}\n" for size, when in kept.items())
        os.replace(part, self.marks)
