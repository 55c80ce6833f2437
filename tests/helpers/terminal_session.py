"""A program in a real pseudo-terminal, with the test as its user."""

from __future__ import annotations

import os
import pty
import select
import time
from collections.abc import Sequence

PATIENCE_S = 60.0


class Terminal:
    """A program with a terminal of its own."""

    def __init__(self, argv: Sequence[str], environ: dict[str, str]) -> None:
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], list(argv), environ | {"TERM": "dumb", "SHELL": "/bin/sh", "PS1": "$ "})

    def type(self, line: str) -> None:
        os.write(self.fd, line.encode() + b"\n")

    def until(self, words: str) -> str:
        """Return all output once these words have been printed."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.seen:
            assert time.monotonic() < deadline, f"no {words!r} within {PATIENCE_S} s:\n{self.seen}"
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.fd, 65536).decode(errors="replace")
                except OSError as error:  # the program has ended
                    raise AssertionError(f"ended without {words!r}:\n{self.seen}") from error
        return self.seen

    def exit_code(self) -> int:
        """Wait for the end; return the exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, f"still runs after {PATIENCE_S} s:\n{self.seen}"
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    self.seen += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    time.sleep(0.05)
