"""Run commands in the background, because Slurm's may be slow. The controller's loop never waits for one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ftslurm.guard.processes import PR_SET_PDEATHSIG, prctl
from ftslurm.slurm.parse import plain
from ftslurm.slurm.questions import Question

PATIENCE_S = 120.0  # Slurm's commands time out by themselves long before


@dataclass(frozen=True)
class Answered:
    """The end of a background command. `text` is its stdout and stderr."""

    question: Question
    code: int
    text: str


@dataclass
class _Running:
    question: Question
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

    def ask(
        self,
        question: Question,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = PATIENCE_S,
        ends_with_us: bool = False,
    ) -> None:
        """Start a command, unless an equal question is unanswered; `reaped` returns its answer when it has ended.

        Args:
            ends_with_us: it gets SIGTERM when this process dies: the next controller will start it anew.
        """
        if self.asking(question):
            return
        with contextlib.suppress(OSError), os.fdopen(os.memfd_create("answer"), "w+b") as output:
            process = subprocess.Popen(
                argv,
                env=None if env is None else dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=(lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM)) if ends_with_us else None,
            )
            until = time.monotonic() + timeout_s
            self.running[process.pid] = _Running(question, process, os.dup(output.fileno()), until)

    def asking(self, question: Question) -> bool:
        """Return whether this question is still unanswered."""
        return any(command.question == question for command in self.running.values())

    def reaped(self, pid: int, code: int) -> Answered | None:
        """Return the answer of a process that has ended; None if it is no background command."""
        command = self.running.pop(pid, None)
        if command is None:
            return None
        command.process.returncode = code
        with os.fdopen(command.output, "rb") as file:
            file.seek(0)
            return Answered(command.question, code, plain(file.read().decode(errors="replace")))

    def kill_overdue(self) -> None:
        """Kill the commands that have reached their time-out."""
        for command in self.running.values():
            if time.monotonic() > command.until:
                command.kill()

    def wait(self, wanted: Callable[[Question], bool], timeout_s: float) -> None:
        """Wait at most timeout_s seconds for the commands of these questions to end; their answers are dropped."""
        until = time.monotonic() + timeout_s
        for command in self.running.values():
            if wanted(command.question):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    command.process.wait(max(0.0, until - time.monotonic()))

    def end(self, unwanted: Callable[[Question], bool]) -> None:
        """Ask the commands of questions whose answers are no longer needed to end: srun then ends its step."""
        for command in self.running.values():
            if unwanted(command.question):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(command.process.pid, signal.SIGTERM)

    def kill(self, unwanted: Callable[[Question], bool]) -> None:
        """Kill the commands of questions whose answers are no longer needed."""
        for command in self.running.values():
            if unwanted(command.question):
                command.kill()
