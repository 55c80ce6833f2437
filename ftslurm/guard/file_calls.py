"""Calls to a file system that may not answer for minutes, in a thread: the guard's loop carries all traffic."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE_S = 1.5  # the end of a worker is reported after that, whatever the file system of its log does


class FileCalls:
    """Makes calls one after the other. The guard ends with os._exit, which waits for none of them."""

    def __init__(self) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        self._started: Future[Any] | None = None
        self._late: Future[Any] | None = None  # not waited for any more

    def start(self, call: Callable[[], object]) -> None:
        """Make a call soon, unless the last one still waits."""
        if self._started is None or self._started.done():
            self._started = self._pool.submit(call)

    def result(self, call: Callable[[], T], late: T) -> T:
        """Return what a call returns; `late` if that takes too long, or an earlier one still does."""
        future = self._pool.submit(call)
        try:
            return future.result(PATIENCE_S if self._late is None or self._late.done() else 0.0)
        except concurrent.futures.TimeoutError:
            self._late = future
            return late
