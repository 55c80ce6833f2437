"""The Lighthouse's output: lines in lighthouse.log, whose size its guard limits.

It may not block the Lighthouse: the disk may be full, and the file system may not answer for minutes.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import time

_writer = concurrent.futures.ThreadPoolExecutor(1)  # the Lighthouse ends with os._exit, which does not wait for it


def log(line: str) -> None:
    """Log one line to lighthouse.log. A thread writes it: never blocks, never raises."""
    _writer.submit(_write, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")


def flush(patience_s: float = 1.0) -> None:
    """Wait until all lines are written, at most patience_s seconds."""
    concurrent.futures.wait([_writer.submit(_write, "")], patience_s)


def _write(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, line.encode(errors="backslashreplace"))
