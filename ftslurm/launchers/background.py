"""Commands that run aside, because Slurm's may take their time: asked, never waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Answered:
    """A command that ran aside has ended. text is what it printed."""

    what: str
    code: int
    text: str


@dataclass
class _Question:
    what: str
    command: subprocess.Popen[bytes]
    printed: int  # a file in memory
    until: float

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.command.pid, signal.SIGKILL)


@dataclass
class Asides:
    """Every command that runs aside. Who reaps the children of this process hands their ends in."""

    running: dict[int, _Question] = field(default_factory=dict)

    def ask(
        self, what: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 600.0
    ) -> None:
        """Run a command; its Answered comes when it has ended. One question is asked once at a time."""
        if self.asking(what):
            return
        with contextlib.suppress(OSError), os.fdopen(os.memfd_create("answer"), "w+b") as sink:
            command = subprocess.Popen(
                argv,
                env=None if env is None else dict(env),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.running[command.pid] = _Question(what, command, os.dup(sink.fileno()), time.monotonic() + timeout_s)

    def asking(self, what: str | None) -> bool:
        """Whether this question has not been answered yet."""
        return any(question.what == what for question in self.running.values())

    def reaped(self, pid: int, code: int) -> Answered | None:
        """The answer of a process that has ended; None: it is not one of these."""
        question = self.running.pop(pid, None)
        if question is None:
            return None
        question.command.returncode = code
        with os.fdopen(question.printed, "rb") as file:
            file.seek(0)
            return Answered(question.what, code, file.read().decode(errors="replace"))

    def kill_overdue(self) -> None:
        """Whatever was to take less time."""
        for question in self.running.values():
            if time.monotonic() > question.until:
                question.kill()

    def wait(self, whats: tuple[str, ...], timeout_s: float) -> None:
        """Until those that begin so have ended, or that time has passed; nobody is told of their answers."""
        until = time.monotonic() + timeout_s
        for question in self.running.values():
            if question.what.startswith(whats):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    question.command.wait(max(0.0, until - time.monotonic()))

    def forget(self, what: str) -> None:
        """Questions that begin so need no answer any more."""
        for question in self.running.values():
            if question.what.startswith(what):
                question.kill()
