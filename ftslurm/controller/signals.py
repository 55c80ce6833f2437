"""Makes signals visible to a selector. The handlers only record the number; the controller's loop acts."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)  # those that a controller handles


class Wakeup:
    """Wakes a selector at SIGCHLD and collects the other signals.

    Create it in the main thread, the only one in which Python handles signals.
    """

    def __init__(self, numbers: Sequence[int], passed_on: int | None = None) -> None:
        """Start to collect signals.

        Args:
            numbers: the signals to collect.
            passed_on: a pipe of the keeper's, with a byte for each of its signals; the selector waits for it too.
        """
        self.passed_on = passed_on
        self.fd, self._write = os.pipe()
        for end in (self.fd, self._write):
            os.set_blocking(end, False)
        self._seen: list[int] = []
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup: the user wants it ignored
                signal.signal(number, lambda seen, _: self._seen.append(seen))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # the keeper blocks them until now

    def drain(self) -> list[int]:
        """Return the signals since the last call, without SIGCHLD."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.fd, 512):
                pass
        seen, self._seen = self._seen, []  # not clear(): a handler may run between any two lines
        with contextlib.suppress(BlockingIOError):
            seen += os.read(self.passed_on, 512) if self.passed_on is not None else b""
        return list(dict.fromkeys(seen))  # one may come twice: to this process, and to the keeper, which passes it on
