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


def quietly(look: Callable[..., None]) -> Callable[..., None]:
    """Make a method of an Onlooker hold its lock, and log an error instead of raising it."""

    @functools.wraps(look)
    def method(onlooker: Onlooker, *args: Any) -> None:
        try:
            with onlooker._lock:
                look(onlooker, *args)
        except Exception as error:
            if not onlooker._complained:
                onlooker._complained = True
                logging.getLogger(__name__).warning(
                    "what ftslurm shows of the training may be missing or wrong: %r", error, exc_info=error
                )

    return method
