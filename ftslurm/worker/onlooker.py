"""Lets code look on while the script trains: an error in it is logged, once, and never the script's."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any


class Onlooker:
    """Has one lock for all of its methods that are `quietly`."""

    def __init__(self) -> None:
        # Re-entrant, so that a signal handler may flush while the main thread is in the middle of a commit.
        self._lock = threading.RLock()
        self._complained = False

    def failed(self, error: Exception) -> None:
        """Handle an error in one of the methods."""
        if not self._complained:
            self._complained = True
            logging.getLogger(__name__).warning(
                "what ftslurm shows of the training may be missing or wrong: %r", error, exc_info=error
            )


def quietly(look: Callable[..., None]) -> Callable[..., None]:
    """Make a method of an Onlooker hold its lock, and call `failed` instead of raising an error."""

    @functools.wraps(look)
    def method(onlooker: Onlooker, *args: Any) -> None:
        try:
            with onlooker._lock:
                look(onlooker, *args)
        except Exception as error:
            onlooker.failed(error)

    return method
