"""Run commands in the background, because Slurm's may be slow. The controller's loop never waits for one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftslurm.core.state.events import Event
from ftslurm.launchers.scheduler import Answer, Request
from ftslurm.slurm.parse import plain

NOT_STARTED = 127  # the exit code of a command that cannot be started, as in a shell


@dataclass(frozen=True)
class Answered:
    """The end of a request's command."""

    request: Request[Any, Any]
    answer: Answer


@dataclass
class _Running:
    request: Request[Any, Any]
    process: subprocess.Popen[bytes]
    output: int  # descriptor of an in-memory file
    until: float

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


@dataclass
class BackgroundCommands:
    """All background commands. The caller reaps this process's children and calls `reaped` for each."""

    running: dict[int, _Running] = field(default_factory=dict)

    def ask(self, request: Request[Any, Any]) -> Sequence[Event]:
        """Start a request's command, which `reaped` answers. Return the answer if it cannot be started."""
        if self.asking(request):
            return []
        argv = request.argv()
        try:
            with os.fdopen(os.memfd_create("answer"), "w+b") as output:
                process = subprocess.Popen(
                    argv,
                    env=request.env(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                until = time.monotonic() + request.timeout_s
                self.running[process.pid] = _Running(request, process, os.dup(output.fileno()), until)
        except OSError as error:
            return request.read(Answer(NOT_STARTED, f"{argv[0]} cannot be started: {error.strerror}"))
        return []

    def asking(self, request: Request[Any, Any]) -> bool:
        """Return whether a request with the same key is still unanswered."""
        return any(command.request.key == request.key for command in self.running.values())

    def reaped(self, pid: int, code: int) -> Answered | None:
        """Return the answer of a process that has ended; None if it is no background command."""
        command = self.running.pop(pid, None)
        if command is None:
            return None
        command.process.returncode = code
        with os.fdopen(command.output, "rb") as file:
            file.seek(0)
            return Answered(command.request, Answer(code, plain(file.read().decode(errors="replace"))))

    def kill_overdue(self) -> None:
        """Kill the commands that have reached their time-out."""
        for command in self.running.values():
            if time.monotonic() > command.until:
                command.kill()

    def wait(self, wanted: Callable[[Request[Any, Any]], bool], timeout_s: float) -> None:
        """Wait at most timeout_s seconds for the commands of these requests to end; their answers are dropped."""
        until = time.monotonic() + timeout_s
        for command in self.running.values():
            if wanted(command.request):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    command.process.wait(max(0.0, until - time.monotonic()))

    def kill(self, unwanted: Callable[[Request[Any, Any]], bool]) -> None:
        """Kill the commands of requests whose answers are no longer needed."""
        for command in self.running.values():
            if unwanted(command.request):
                command.kill()
