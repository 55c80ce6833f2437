"""The Lighthouse's output: lines in lighthouse.log, whose size its guard limits.

It may not block the Lighthouse: the disk may be full, and the file system may not answer for minutes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import threading
import time

MOST_LINES = 1000  # lines that wait to be written; further ones are lost

_lines: queue.Queue[str] = queue.Queue(MOST_LINES)


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


@functools.cache  # once
def _start_writer() -> None:
    threading.Thread(target=_write_for_ever, name="log", daemon=True).start()


def _write_for_ever() -> None:
    while True:
        line = _lines.get()
        with contextlib.suppress(OSError):
            os.write(2, line.encode(errors="backslashreplace"))
        _lines.task_done()
