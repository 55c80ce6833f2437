"""Ctrl-C, SIGTERM and SIGHUP of a process that starts a run and follows it: none of them may leave a run unheeded.

While the run is started they wait (`hold`): one between the start of the controller and the display would end this
process only, and the run would go on unseen. Then each is like Ctrl-C (`heed`).
"""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from typing import Any


class Interrupts(AbstractContextManager["Interrupts"]):
    """The signals that end this process, except those that are ignored (nohup). At its end all is as it was."""

    def __init__(self) -> None:
        """Nothing is changed yet. Handlers, unlike a mask, are not passed on to programs that are started meanwhile."""
        self._before = {
            number: handler
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if (handler := signal.getsignal(number)) is not signal.SIG_IGN
        }
        self._held: list[int] = []

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python
        if self._held and error is None:
            signal.raise_signal(self._held[0])  # nobody has heeded it

    def hold(self) -> None:
        """Let signals wait for `heed`."""
        for number in self._before:
            signal.signal(number, lambda number, _: self._held.append(number))

    def heed(self) -> None:
        """Treat signals as Ctrl-C, from now on and those that have waited.

        Of SIGTERM and SIGHUP only the first counts, because `timeout` sends its signal twice; Ctrl-C always does.

        Raises:
            KeyboardInterrupt: one has waited.
        """
        for number in self._before:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else self._interrupt)
        held, self._held = self._held, []
        if held:
            self._interrupt(held[0])

    def _interrupt(self, number: int, _: Any = None) -> None:
        for later in self._before:
            if later != signal.SIGINT:
                signal.signal(later, signal.SIG_IGN)
        raise KeyboardInterrupt(signal.Signals(number).name)
