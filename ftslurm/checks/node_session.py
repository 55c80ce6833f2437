"""Doctor's side of the program on a node (on_node.py): starts it through srun, and reads its findings."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftslurm import __version__
from ftslurm.checks import node_verdicts
from ftslurm.checks.finding import Finding, Level, ok
from ftslurm.checks.on_node import wait_for
from ftslurm.errors import EnvironmentProblem
from ftslurm.guard.processes import PR_SET_PDEATHSIG, prctl
from ftslurm.protocol.readiness import readable
from ftslurm.security import programs
from ftslurm.security.json_text import read_object
from ftslurm.slurm import client, commands

PREFIX = ".ftslurm-doctor-"
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
            tried: the options of srun, and the command that tries to submit a job.

        Raises:
            EnvironmentProblem: the command line cannot be started.
        """
        self.name, self.place = name, list[Any]()  # place: host and free port, when it has answered
        self._begun, self._started, self._ahead_s, self._found = time.monotonic(), False, -3600.0, list[Finding]()
        self._here = folder / secrets.token_hex(4)
        self._errors = tempfile.TemporaryFile("a+b")  # noqa: SIM115 kept open; srun writes its words into it
        words = (str(self._here), *map(json.dumps, tried), __version__)
        program = programs.module("ftslurm.checks.on_node", *words, python=python)
        try:
            self._process = subprocess.Popen(
                [*prefix, *program],
                env=commands.scrubbed(os.environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for doctor, which ends srun in order
                # If doctor is killed: a first SIGINT takes a job out of the queue and does nothing to a running one,
                # which ends with its stdin. SIGTERM would kill the program before it has removed the folder.
                preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGINT),
            )
        except OSError as error:
            raise EnvironmentProblem(f"{error.filename} cannot be started: {error.strerror}") from error

    def look(self, wait_s: float) -> list[Finding]:
        """Wait until the program runs, and for all that it finds."""
        try:
            self._look(wait_s)
        except Silent as why:
            self._found.append(node_verdicts.silence(str(why), self._started))
        except (KeyError, TypeError, ValueError):
            self._found.append(node_verdicts.silence(OTHER_VERSION, True))
        except OSError as error:
            why = f"{error.filename or 'it'} cannot be written here: {error.strerror}"
            self._found.append(node_verdicts.silence(why, True))
        return self._told()

    def reach(self, other: NodeSession) -> list[Finding]:
        """Have the node connect to the port of another one."""
        with suppress(Silent):
            self._say(" ".join(map(str, (other.name, *other.place))))
            self._answer()
        return self._told()

    def _look(self, wait_s: float) -> None:
        hello = self._await_start(wait_s)
        self._started, self.name, job = True, str(hello["node"]), hello["job"]
        where = f"Slurm job {job}" if job else "the program"
        self._found.append(ok("job", f"{where} started after {time.monotonic() - self._begun:.1f} s"))
        self._here.parent.mkdir(mode=0o700, exist_ok=True)
        self._here.touch(mode=0o600)
        self._say("go")
        if self._answer()["written"]:
            self._found.append(node_verdicts.caching(wait_for(lambda: self._here.stat().st_size > 0)))
        self.place = self._answer()["place"]
        if job:
            self._found.append(node_verdicts.clock(self._ahead_s))

    def _told(self) -> list[Finding]:
        """Return what was found since the last call."""
        found, self._found = self._found, []
        return [replace(one, what=f"{self.name}: {one.what}") for one in found]

    def close(self) -> None:
        """End the program and its job."""
        assert self._process.stdin is not None
        ends = [self._process.stdin.close, self._process.terminate, self._process.kill]
        if not self._started:  # it waits in the queue: SIGTERM takes the job out of it
            ends = ends[1:]
        for end in ends:
            with suppress(OSError, subprocess.TimeoutExpired):
                end()
                self._process.wait(END_S)
                break

    def _await_start(self, wait_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + wait_s
        while (hello := self._next(min(5.0, max(0.1, deadline - time.monotonic())))) is None:
            state = self._queue_state()
            if time.monotonic() > deadline:
                raise Silent(f"its job has not started within {wait_s:g} s{state}")
            waits = f"waiting for the job on {self.name}{state}; Ctrl-C cancels it"
            print(waits, file=sys.stderr, flush=True)
        return hello

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended; so says the next answer
            self._process.stdin.write(f"{line}\n".encode())

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


@contextmanager
def scratch_folder(root: Path) -> Iterator[Path]:
    """Yield a folder to make beside the runs, or where they will be, and remove it at the end.

    It is made when a program runs that removes it, too.

    Raises:
        EnvironmentProblem: it cannot be made.
    """
    place = next(path for path in (root, *root.parents) if path.is_dir())
    folder = place / f"{PREFIX}{secrets.token_hex(8)}"
    if not os.access(place, os.W_OK | os.X_OK):
        raise EnvironmentProblem(f"{place} cannot be written: set --root to a shared folder of your own")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
