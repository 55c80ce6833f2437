"""A conversation with the program that doctor runs on a compute node, through srun's stdin and stdout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftslurm.doctor import node_script
from ftslurm.guard.processes import PR_SET_PDEATHSIG, prctl
from ftslurm.protocol.messages import Lines
from ftslurm.protocol.readiness import readable
from ftslurm.security import programs
from ftslurm.security.json_text import read_object

END_S = 15.0  # for srun to end after its task
LONGEST = 1 << 20


class Silent(Exception):
    """The node does not answer; the message has the last words of srun."""


class NodeSession:
    """The program on one node."""

    def __init__(self, name: str, command: Sequence[str], environ: dict[str, str]) -> None:
        self.name, self.job, self.seconds = name, "", 0.0
        self._begun = time.monotonic()
        self._lines, self._answers = Lines(LONGEST), list[bytes]()
        self._errors = tempfile.TemporaryFile("a+b")  # noqa: SIM115 kept open; srun writes its words into it
        self._process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
            start_new_session=True,  # Ctrl-C is for doctor, which ends srun in order
            # If doctor is killed: a first SIGINT takes a job out of the queue and does nothing to a running one, which
            # ends with its stdin. SIGTERM would kill the program before it has removed the folder.
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGINT),
        )

    @property
    def said(self) -> list[str]:
        """What srun has said, in lines."""
        self._errors.seek(0)
        return self._errors.read(LONGEST).decode(errors="replace").splitlines()

    def hello(self, timeout_s: float) -> bool:
        """Return whether the program has started, after waiting at most so long.

        Raises:
            Silent: it has ended instead.
        """
        found = self._next(timeout_s)
        if found is None:
            return False
        self.name, self.job = str(found.get("hello") or self.name), str(found.get("job") or "")
        self.seconds = time.monotonic() - self._begun
        return True

    def ask(self, do: str, timeout_s: float = 60.0, **fields: object) -> dict[str, Any]:
        """Ask one question and wait for the answer.

        Raises:
            Silent: none comes, or it is an error.
        """
        self.send(do, **fields)
        return self.answer(timeout_s)

    def send(self, do: str, **fields: object) -> None:
        """Ask without waiting; `answer` waits.

        Raises:
            Silent: the program has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Silent(self._last_words()) from error

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the next answer.

        Raises:
            Silent: none comes, or it is an error.
        """
        found = self._next(timeout_s)
        if found is None:
            raise Silent(f"no answer within {timeout_s:g} s")
        if "error" in found:
            raise Silent(str(found["error"]))
        return found

    def close(self) -> None:
        """End the program and its job."""
        assert self._process.stdin is not None
        ends = [self._process.stdin.close, self._process.terminate, self._process.kill]
        if not self.seconds:  # it waits in the queue: SIGTERM takes the job out of it
            ends = ends[1:]
        for end in ends:
            try:
                end()
                self._process.wait(END_S)
                return
            except (OSError, subprocess.TimeoutExpired):
                continue

    def _next(self, timeout_s: float) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        pipe, deadline = self._process.stdout.fileno(), time.monotonic() + timeout_s
        while True:
            while self._answers:
                if (found := read_object(self._answers.pop(0))) is not None:  # else: what a profile or a prolog prints
                    return found
            if not readable(pipe, deadline - time.monotonic()):
                return None
            data = os.read(pipe, 1 << 16)
            if not data:
                raise Silent(self._last_words())
            self._answers += self._lines.feed(data)

    def _last_words(self) -> str:
        try:
            code: object = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            code = "none"
        words = [line for line in self.said if "queued and waiting" not in line and "has been allocated" not in line]
        return "; ".join(words[-3:]) or f"its program has ended (srun's exit code: {code})"


def program(python: Sequence[str], folder: Path) -> list[str]:
    """Return the command that runs the program, which removes `folder` at its end."""
    return programs.code(Path(node_script.__file__).read_text(encoding="utf-8"), str(folder), python=python)
