"""Doctor's side of the program on a node (on_node.py): starts it through srun, and reads its findings."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftslurm import __version__
from ftslurm.checks import node_verdicts
from ftslurm.checks.finding import Finding, Level, ok
from ftslurm.errors import EnvironmentProblem
from ftslurm.guard.processes import PR_SET_PDEATHSIG, prctl
from ftslurm.protocol.readiness import readable
from ftslurm.security import programs
from ftslurm.security.json_text import read_object
from ftslurm.slurm import client, commands

FACTS_S = 400.0  # three imports that each may take two minutes
END_S = 15.0  # for srun to end after its task
LONGEST = 1 << 20
OTHER_VERSION = "it answers as another version of ftslurm would: install the same one here and there"


class Silent(Exception):
    """The node does not answer; the message has the last words of srun."""


class NodeSession:
    """The program on one node."""

    def __init__(
        self, name: str, prefix: Sequence[str], python: Sequence[str], folder: Path, tried: Sequence[Sequence[str]]
    ) -> None:
        """Start it.

        Args:
            prefix: srun's command line; empty: here.
            folder: where it writes into a file.
            tried: the options of srun, and the command that tries to submit a job.

        Raises:
            EnvironmentProblem: the command line cannot be started, or the folder not be written.
        """
        self._name, self._begun, self._started, self._ahead_s = name, time.monotonic(), False, -3600.0
        self._found = list[Finding]()
        self._here = folder / secrets.token_hex(4)
        self._errors = tempfile.TemporaryFile("a+b")  # noqa: SIM115 kept open; srun writes its words into it
        words = (str(self._here), *map(json.dumps, tried), __version__)
        program = programs.module("ftslurm.checks.on_node", *words, python=python)
        try:
            self._here.touch()
            self._process = subprocess.Popen(
                [*prefix, *program],
                env=commands.scrubbed(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for doctor, which ends srun in order
                preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM),  # with it srun ends the job
            )
        except OSError as error:
            raise EnvironmentProblem(f"nothing can be started on {name}: {error}") from error

    def look(self, wait_s: float) -> list[Finding]:
        """Wait until the program runs, and for all that it finds."""
        try:
            self._look(wait_s)
        except (Silent, OSError) as why:
            self._found.append(node_verdicts.silence(str(why), self._started))
        except (KeyError, TypeError, ValueError):
            self._found.append(node_verdicts.silence(OTHER_VERSION, True))
        return [replace(one, what=f"{self._name}: {one.what}") for one in self._found]

    def _look(self, wait_s: float) -> None:
        hello = self._await_start(wait_s)
        self._started, self._name, job = True, str(hello["node"]), hello["job"]
        where = f"Slurm job {job}" if job else "the program"
        self._found.append(ok("job", f"{where} started after {time.monotonic() - self._begun:.1f} s"))
        if self._answer()["written"]:
            self._found.append(node_verdicts.caching(self._seen_s()))
        self._answer()
        if job:
            self._found.append(node_verdicts.clock(self._ahead_s))
        with suppress(Silent):
            self._answer()  # there is no further one: it ends

    def _seen_s(self) -> float | None:
        """Return after how many seconds this machine sees what the node has written; None: not within PATIENCE_S."""
        begun = time.monotonic()
        while not self._here.stat().st_size:
            if time.monotonic() - begun > node_verdicts.PATIENCE_S:
                return None
            time.sleep(0.002)
        return time.monotonic() - begun

    def close(self) -> None:
        """End the program and its job, if they have not ended."""
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _await_start(self, wait_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + wait_s
        while (hello := self._next(min(5.0, max(0.1, deadline - time.monotonic())))) is None:
            state = self._queue_state()
            if time.monotonic() > deadline:
                raise Silent(f"its job has not started within {wait_s:g} s{state}")
            waits = f"waiting for the job on {self._name}{state}; Ctrl-C cancels it"
            print(waits, file=sys.stderr, flush=True)
        return hello

    def _answer(self) -> dict[str, Any]:
        answer = self._next(FACTS_S)
        if answer is None:
            raise Silent(f"no answer within {FACTS_S:g} s")
        return answer

    def _next(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the program's next line; None: there is none in time.

        Raises:
            Silent: it has ended instead.
        """
        assert self._process.stdout is not None
        pipe, deadline = self._process.stdout, time.monotonic() + timeout_s
        while readable(pipe.fileno(), deadline - time.monotonic()):
            line = pipe.readline(LONGEST)
            if not line:
                raise Silent(self._last_words())
            found = read_object(line) or {}  # what a profile or a prolog prints is none
            if isinstance(told := found.get("time"), float):
                self._ahead_s = max(self._ahead_s, told - time.time())  # less the time that its quickest line took
                self._found += [Finding(Level(level), *words) for level, *words in found["found"]]
                return found
        return None

    def _said(self) -> list[str]:
        self._errors.seek(0)
        return self._errors.read(LONGEST).decode(errors="replace").splitlines()

    def _queue_state(self) -> str:
        for line in self._said():
            if found := re.search(r"job (\d{1,20}) queued", line):
                state, reason = client.job_state(found[1])
                return f": Slurm job {found[1]} is {state} ({reason})"
        return ""

    def _last_words(self) -> str:
        try:
            code: object = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            code = "none"
        words = [line.strip() for line in self._said()]
        return "; ".join(words[-3:]) or f"its program has ended (srun's exit code: {code})"
