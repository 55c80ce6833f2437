"""Run commands in the background, because Slurm's may be slow. The controller's loop never waits for one.

One that does not fit into the run's RPCs to the scheduler (core/state/budget.py) is started later, the urgent first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ftslurm.core.state.actions import Ask, Exclude
from ftslurm.core.state.budget import MINUTE_S, Calls
from ftslurm.core.state.events import Event
from ftslurm.guard import processes
from ftslurm.launchers.scheduler import Answer, Request
from ftslurm.protocol.value_class import Value
from ftslurm.slurm.parse import plain

NOT_STARTED = 127  # the exit code of a command that cannot be started, as in a shell

KILL_AGAIN_S = 1.0  # one that waits for a dead file server does not die at once


class Answered(Value):
    """The end of a request's command."""

    request: Request
    answer: Answer


@dataclass
class _Running:
    request: Request
    process: subprocess.Popen[bytes]
    output: int  # descriptor of an in-memory file
    began: float
    until: float

    def kill(self) -> None:
        self.until = time.monotonic() + KILL_AGAIN_S
        others = processes.descendants(self.process.pid)  # sbatch has a session of its own
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid in others:
            processes.kill(pid)


@dataclass
class BackgroundCommands:
    """All background commands. The caller reaps this process's children and calls `reaped` for each."""

    running: dict[int, _Running] = field(default_factory=dict)
    later: dict[str, Request] = field(default_factory=dict)  # the last Exclude of a job, while one before it runs
    waiting: dict[Ask, Request] = field(default_factory=dict)  # until there is room for their RPCs
    calls: Calls = field(default_factory=Calls)
    rpcs: int = 0  # since `told`
    most: int = 0  # the most in a minute since then, without first launches

    def ask(self, request: Request) -> Sequence[Event]:
        """Start a request's command, at once or later, which `reaped` answers. Return what is known at once.

        What a job must not get is changed by one command at a time: the last one counts.
        """
        if self.asking(request.action):
            if isinstance(request.action, Exclude):
                self.later[request.action.name] = request
            return []
        if not self._fits(request):
            self.waiting[request.action] = request
            return []
        answer = self._start(request)
        return [] if answer is None else request.read(answer)

    def start_waiting(self) -> Iterator[Answered]:
        """Start what has waited and fits now. Yield the answers of what cannot be started."""
        for action in sorted(self.waiting, key=lambda action: -action.share):
            if self._fits(self.waiting[action]) and not self.asking(action):
                request = self.waiting.pop(action)
                answer = self._start(request)
                if answer is not None:
                    yield Answered(request, answer)

    def count(self, rpcs: int, free: bool = False) -> None:
        """Count RPCs to the scheduler that are made now; `free`: nothing waits for their sake, as of first launches."""
        self.rpcs += rpcs
        if rpcs and not free:
            now = time.monotonic()
            self.calls = self.calls.plus(now, rpcs)
            self.most = max(self.most, self.calls.since(now - MINUTE_S))

    def told(self) -> None:
        """Begin to count anew."""
        self.rpcs = self.most = 0

    def _fits(self, request: Request) -> bool:
        share = request.action.share
        return not request.rpcs or self.calls.fit_at(request.rpcs, share) <= time.monotonic()

    def _start(self, request: Request) -> Answer | None:
        """Start a request's command. Return the answer if it cannot be started."""
        began = time.monotonic()
        try:
            with os.fdopen(os.memfd_create("answer"), "w+b") as output:
                process = subprocess.Popen(
                    request.argv,
                    env=request.env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                command = _Running(request, process, os.dup(output.fileno()), began, began + request.timeout_s)
                self.running[process.pid] = command
        except OSError as error:
            return Answer(NOT_STARTED, f"{request.argv[0]} cannot be started: {error.strerror}")
        self.count(request.rpcs)
        return None

    def asking(self, action: Ask) -> bool:
        """Return whether a request for this is still unanswered, or for other nodes that the same job must not get."""
        name = action.name if isinstance(action, Exclude) else None
        asked = [command.request.action for command in self.running.values()]
        return action in asked or any(isinstance(one, Exclude) and one.name == name for one in asked)

    def reaped(self, pid: int, code: int) -> Answered | None:
        """Return the answer of a process that has ended; None if it is no background command."""
        command = self.running.pop(pid, None)
        if command is None:
            return None
        command.process.returncode = code
        action = command.request.action
        if isinstance(action, Exclude) and (request := self.later.pop(action.name, None)) is not None:
            self.ask(request)
        with os.fdopen(command.output, "rb") as file:
            file.seek(0)
            text, took_s = plain(file.read().decode(errors="replace")), time.monotonic() - command.began
            return Answered(command.request, Answer(code, text, took_s))

    def kill_overdue(self) -> None:
        """Kill the commands that have reached their time-out."""
        for command in self.running.values():
            if time.monotonic() > command.until:
                command.kill()

    def wait(self, wanted: type[Ask], timeout_s: float) -> None:
        """Wait at most timeout_s seconds for the commands of such requests to end; their answers are dropped."""
        until = time.monotonic() + timeout_s
        for command in self.running.values():
            if isinstance(command.request.action, wanted):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    command.process.wait(max(0.0, until - time.monotonic()))

    def kill(self, unwanted: type[Ask]) -> None:
        """Kill the commands of such requests: their answers are no longer needed."""
        for command in self.running.values():
            if isinstance(command.request.action, unwanted):
                command.kill()
