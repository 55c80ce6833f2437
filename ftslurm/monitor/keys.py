"""Reads single keys from the terminal, and leaves it as it was."""

from __future__ import annotations

import os
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import FrameType, TracebackType
from typing import Any

from ftslurm.protocol.readiness import readable

_SEQUENCES = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down",
    b"\x1b[5~": "page up", b"\x1b[6~": "page down", b"\r": "enter", b"\n": "enter", b"\x1b": "escape",
}  # fmt: skip
_LONGEST_FIRST = sorted(_SEQUENCES, key=len, reverse=True)
_ENDS = (signal.SIGTERM, signal.SIGHUP)


class Keys(AbstractContextManager["Keys"]):
    """The keys of the terminal at stdin. Ctrl-C, Ctrl-Z and Ctrl-\\ work as always."""

    def __init__(self, fd: int, may_quit: bool) -> None:
        """Set up for a terminal; it is changed only inside the context. `may_quit`: whether q ends the display."""
        self.fd, self.may_quit, self.quit = fd, may_quit, False
        self._mode: Any = None
        self._handlers: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Keys:
        self._mode = termios.tcgetattr(self.fd)
        tty.setcbreak(self.fd)
        self._handlers[signal.SIGCONT] = signal.signal(signal.SIGCONT, self._go_on)  # after Ctrl-Z
        for number in _ENDS:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._handlers[number] = signal.signal(number, self._end)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(self.fd, termios.TCSADRAIN, self._mode)

    def wait(self, seconds: float) -> list[str]:
        """Return the keys that are pressed within this time: as soon as there is one, all that are there."""
        if not readable(self.fd, seconds):
            return []
        data = os.read(self.fd, 1024)
        if not data:  # the terminal is gone: do not turn in a circle
            time.sleep(seconds)
        return split(data)

    def _go_on(self, *_: object) -> None:
        """Read single keys again. A terminal that is gone sends SIGCONT too, after SIGHUP, which ends the display."""
        with suppress(termios.error):
            tty.setcbreak(self.fd)

    def _end(self, number: int, _: FrameType | None) -> None:
        """End by a signal as a process without this context does, after everything is restored."""
        raise SystemExit(128 + number)


def split(data: bytes) -> list[str]:
    """Return the keys in what a terminal has sent: "up", "enter", "q"; sequences of other keys are left out."""
    keys: list[str] = []
    while data:
        known = next((sequence for sequence in _LONGEST_FIRST if data.startswith(sequence)), None)
        if known == b"\x1b" and len(data) > 1 and data[1:2] in b"[O":  # another key: ESC [ ... letter
            end = next((n for n in range(2, len(data)) if 0x40 <= data[n] <= 0x7E), len(data) - 1)
            data = data[end + 1 :]
            continue
        if known is not None:
            keys.append(_SEQUENCES[known])
        elif 0x20 <= data[0] < 0x7F:
            keys.append(chr(data[0]))
        data = data[len(known or b"x") :]
    return keys


def of_terminal(may_quit: bool) -> Keys | None:
    """Return the keys of this process's terminal; None: stdin is none, or the process is in the background."""
    try:
        fd = sys.stdin.fileno()
        return Keys(fd, may_quit) if os.isatty(fd) and os.tcgetpgrp(fd) == os.getpgrp() else None
    except (OSError, ValueError, AttributeError):  # closed, replaced, or not our terminal
        return None
