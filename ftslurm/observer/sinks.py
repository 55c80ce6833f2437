"""Sinks: each receiver of events has a thread and a queue of its own, so that none delays another."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from ftslurm.observer.hook_command import HookCommand, NotDelivered
from ftslurm.run.deliveries import Delivery

MOST_WAITING = 1000  # events; then the oldest is dropped
Told = tuple[Mapping[str, object], float]  # what hooks get as JSON; the byte behind its line, inf: not written yet
log = logging.getLogger("ftslurm.observer")


class Sink:
    """Delivers the chosen events to a receiver, one after the other."""

    def __init__(self, receiver: HookCommand, known: Delivery | None, changed: Callable[[], None]) -> None:
        """Begin where the last observer was.

        Args:
            changed: called after each change of `delivery`, in the thread of the sink.
        """
        self.receiver, self._changed = receiver, changed
        self.delivery = known or Delivery(receiver.name)
        self._waiting: deque[Told] = deque()
        self._news = threading.Condition()
        self._last_call = math.inf  # after this moment, which the end sets, only the last event is delivered
        self._drops = self._abandoned = False
        self._thread = threading.Thread(target=self._run, name=receiver.name, daemon=True)
        self._thread.start()

    def put(self, message: Mapping[str, object], offset: float) -> None:
        """Add an event."""
        with self._news:
            self._waiting.append((message, offset))
            if len(self._waiting) > MOST_WAITING:
                self._drop_oldest()
            self._news.notify()

    def finish(self, within_s: float, drops: bool) -> None:
        """Deliver what waits, then end.

        Args:
            drops: after that time drop all but the last event; else leave them to the next observer.
        """
        with self._news:
            self._last_call, self._drops = time.monotonic() + within_s, drops
            self._news.notify()

    def join(self, timeout_s: float) -> None:
        """Wait for the end; kill what does not end in time, and leave its event to the next observer."""
        self._thread.join(timeout_s)
        self._abandoned = self._thread.is_alive()
        self.receiver.kill()

    def _run(self) -> None:
        while (told := self._next()) is not None:
            message, offset = told
            error = None
            try:
                self.receiver.deliver(message)
            except NotDelivered as failure:
                error = str(failure)
            except Exception as failure:  # a bug here must not silence the hook
                error = f"{type(failure).__name__}: {failure}"
            if self._abandoned:
                return
            now = self.delivery
            if error is not None:
                log.warning("%s, at %s: %s", self.receiver.name, message["kind"], error)
                now = replace(now, failed=now.failed + 1, last_error=error[:500])
            self.delivery = replace(now, offset=now.offset if offset == math.inf else int(offset), done=now.done + 1)
            self._changed()

    def _next(self) -> Told | None:
        with self._news:
            while not self._waiting:
                if self._last_call < math.inf:
                    return None
                self._news.wait()
            if time.monotonic() > self._last_call:
                if not self._drops:
                    return None
                while len(self._waiting) > 1:
                    self._drop_oldest()
            return self._waiting.popleft()

    def _drop_oldest(self) -> None:
        self._waiting.popleft()
        self.delivery = replace(self.delivery, dropped=self.delivery.dropped + 1)
