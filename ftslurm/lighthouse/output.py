"""The Lighthouse's output: lines in lighthouse.log, and a pulse that its guard reads.

Neither may block the Lighthouse: the disk may be full, and the file system may not answer for minutes.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time

from ftslurm.guard.guard import Task
from ftslurm.guard.rank_log import take_output
from ftslurm.protocol.position import Position
from ftslurm.run import log_cap

BEAT_EVERY_S = 0.25  # the guard reports the age of the last beat to the controller
MOST_LINES = 1000  # lines that wait to be written; further ones are lost

LOOK_EVERY_S = 1.0  # between checks of the size of lighthouse.log, to which torchft's Lighthouse writes directly

_lines: queue.Queue[str] = queue.Queue(MOST_LINES)
_capped: list[tuple[str, int]] = []  # lighthouse.log and its cap in MiB
_starting = threading.Lock()
_writer: threading.Thread | None = None


def redirect(task: Task) -> None:
    """Send all output to lighthouse.log and keep the file below its cap.

    If it cannot be opened (a full disk), the output stays in the step's own log.
    """
    with contextlib.suppress(OSError):
        path = os.path.join(task.options.log_dir, "lighthouse.log")
        take_output(path)
        if task.options.log_max_mb:
            _capped.append((path, task.options.log_max_mb))
            _start_writer()


def log(line: str) -> None:
    """Log one line to lighthouse.log. A thread writes it: never blocks, never raises; the line may be lost."""
    _start_writer()
    with contextlib.suppress(queue.Full):
        _lines.put_nowait(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")


def flush(patience_s: float = 1.0) -> None:
    """Wait until all lines are written, at most patience_s seconds."""
    deadline = time.monotonic() + patience_s
    while _lines.unfinished_tasks and time.monotonic() < deadline:
        time.sleep(0.005)


def _start_writer() -> None:
    global _writer
    with _starting:
        if _writer is None:
            _writer = threading.Thread(target=_write_for_ever, name="log", daemon=True)
            _writer.start()


def _write_for_ever() -> None:
    while True:
        with contextlib.suppress(queue.Empty):
            line = _lines.get(timeout=LOOK_EVERY_S if _capped else None)
            with contextlib.suppress(OSError):
                os.write(2, line.encode(errors="backslashreplace"))
            _lines.task_done()
        for path, max_mb in _capped:
            log_cap.cut(path, max_mb)


class Pulse:
    """Beats in the page of memory that the guard reads, as if each beat were a worker's step.

    So the `alive` message says how long the Lighthouse has not run: stopped, or blocked by a file system.
    """

    def __init__(self, position: Position) -> None:
        self._position = position
        self._beats = 0

    def beat(self) -> None:
        """Count one beat. The main loop calls this every BEAT_EVERY_S seconds."""
        self._beats += 1
        self._position.mark(self._beats, 0)
