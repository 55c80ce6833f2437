"""A real pseudo-terminal with a program in it, and the screen as a person sees it."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyte

PATIENCE_S = 60.0  # a bound for a hang


class Screen:
    """A program in the foreground of a terminal."""

    def __init__(self, words: list[str], columns: int, lines: int = 24, cwd: Path | None = None) -> None:
        """Start `python -m ftslurm WORDS` in a terminal of this size."""
        self.ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(theirs)
        environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ftslurm", *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environ | {"TERM": "xterm-256color"},
            cwd=cwd,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self._theirs = theirs
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)

    @property
    def rows(self) -> list[str]:
        """Return the lines on the screen, without trailing spaces."""
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.rows)

    def read(self, seconds: float = 0.05) -> None:
        """Take in what the program prints within this time."""
        ready, _, _ = select.select([self.ours], [], [], seconds)
        if ready:
            with suppress(OSError):
                self._stream.feed(os.read(self.ours, 65536).replace(b"\x1b[?1049", b"\x1b[H\x1b[2J\x1b[?1049"))

    def until(self, true: Callable[[], object], what: str) -> None:
        """Wait until something is true of the screen, or of the program."""
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S} s:\n{self.text}"
            self.read()

    def shows(self, words: str) -> None:
        self.until(lambda: words in self.text, words)

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def restored(self) -> bool:
        """Return whether the terminal is in the mode in which the program has found it."""
        return termios.tcgetattr(self._theirs) == self.before

    def close(self) -> None:
        """End the program if it still runs."""
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self._theirs)
