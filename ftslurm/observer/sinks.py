"""Sinks: each receiver of events has a thread and a queue of its own, so that none delays another."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from queue import Queue

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
        self._waiting = Queue[Told | None]()  # None: the end
        self._last_call = math.inf  # after this moment, which the end sets, only the last event is delivered
        self._drops = self._abandoned = False
        self._thread = threading.Thread(target=self._run, name=receiver.name, daemon=True)
        self._thread.start()

    def put(self, message: Mapping[str, object], offset: float) -> None:
        """Add an event."""
        self._waiting.put((message, offset))

    def finish(self, within_s: float, drops: bool) -> None:
        """Deliver what waits, then end.

        Args:
            drops: after that time drop all but the last event; else leave them to the next observer.
        """
        self._last_call, self._drops = time.monotonic() + within_s, drops
        self._waiting.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the end; kill what does not end in time, and leave its event to the next observer."""
        self._thread.join(timeout_s)
        self._abandoned = self._thread.is_alive()
        self.receiver.kill()

    def _run(self) -> None:
        while (told := self._waiting.get()) is not None and not self._abandoned:
            late, after = time.monotonic() > self._last_call, self._waiting.qsize()
            if late and not self._drops:
                return
            if after > MOST_WAITING or (late and after > 1):  # the end comes after the last one
                self.delivery = replace(self.delivery, dropped=self.delivery.dropped + 1)
            else:
                self._deliver(*told)

    def _deliver(self, message: Mapping[str, object], offset: float) -> None:
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
