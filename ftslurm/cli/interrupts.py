"""Ctrl-C, SIGTERM and SIGHUP of a process that starts a run and follows it: none of them may leave a run unheeded.

While the run is started they wait (`hold`): one between the start of the controller and the display would end this
process only, and the run would go on unseen. Then each is like Ctrl-C (`heed`).
"""

from __future__ import annotations

import signal
from typing import Any


class Interrupts:
    """The signals of this process that end what it does, except those that are ignored (nohup)."""

    def __init__(self) -> None:
        """Nothing is changed yet. Handlers, unlike a mask, are not passed on to programs that are started meanwhile."""
        every = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._heeded = [number for number in every if signal.getsignal(number) is not signal.SIG_IGN]
        self._held: list[int] = []

    def hold(self) -> None:
        """Let signals wait for `heed`."""
        for number in self._heeded:
            signal.signal(number, lambda number, _: self._held.append(number))

    def heed(self) -> None:
        """Treat signals as Ctrl-C, from now on and those that have waited.

        Of SIGTERM and SIGHUP only the first counts, because `timeout` sends its signal twice; Ctrl-C always does.

        Raises:
            KeyboardInterrupt: one has waited.
        """
        for number in self._heeded:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else self._interrupt)
        if self._held:
            self._interrupt(self._held[0])

    def _interrupt(self, number: int, _: Any = None) -> None:
        for later in self._heeded:
            if later != signal.SIGINT:
                signal.signal(later, signal.SIG_IGN)
        raise KeyboardInterrupt(signal.Signals(number).name)
