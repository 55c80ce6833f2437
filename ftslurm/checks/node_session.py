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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from ftslurm import __version__
from ftslurm.checks import between, node_verdicts
from ftslurm.checks.finding import Finding, Level, ok, warn
from ftslurm.errors import EnvironmentProblem
from ftslurm.guard.processes import PR_SET_PDEATHSIG, prctl
from ftslurm.protocol.readiness import readable
from ftslurm.security import programs
from ftslurm.security.json_text import read_object
from ftslurm.slurm import client, commands

FACTS_S = 400.0  # three imports that each may take two minutes
END_S = 15.0  # for srun to end after its task
LONGEST = 1 << 20
Program = subprocess.Popen[bytes]
OTHER_VERSION = "it answers as another version of ftslurm would: install the same one here and there"


class Silent(Exception):
    """The node does not answer; the message has the last words of srun."""


def look(
    name: str, prefix: Sequence[str], python: Sequence[str], folder: Path, tried: Sequence[Sequence[str]], wait_s: float
) -> Iterator[Finding]:
    """Run the program on a node; yield what it finds, as it comes.

    Args:
        prefix: srun's command line; empty: here.
        folder: where it writes into a file.
        tried: the options of srun, and the command that tries to submit a job.
        wait_s: for its job to start.

    Raises:
        EnvironmentProblem: the command line cannot be started, or the folder not be written.
    """
    here, begun, started, ahead_s = folder / secrets.token_hex(4), time.monotonic(), False, -3600.0
    words = (str(here), *map(json.dumps, tried), __version__)
    with tempfile.TemporaryFile("a+b") as errors:  # srun writes its words into it
        try:
            here.touch()
            process = _start([*prefix, *programs.module("ftslurm.checks.on_node", *words, python=python)], errors)
        except OSError as error:
            raise EnvironmentProblem(f"nothing can be started on {name}: {error}") from error
        try:
            hello = _await_start(process, errors, name, wait_s)
            started, name, job = True, str(hello["node"]), hello["job"]
            where = f"Slurm job {job}" if job else "the program"
            yield _of(name, ok("job", f"{where} started after {time.monotonic() - begun:.1f} s"))
            for _ in range(2):
                answer = _next(process, errors, FACTS_S)
                if answer is None:
                    raise Silent(f"no answer within {FACTS_S:g} s")
                ahead_s = max(ahead_s, answer["time"] - time.time())  # less the time that its quicker line took
                found = [Finding(Level(level), *rest) for level, *rest in answer["found"]]
                if answer.get("written"):
                    found.append(node_verdicts.caching(_seen_s(here)))
                yield from (_of(name, one) for one in found)
            if job:
                yield _of(name, node_verdicts.clock(ahead_s))
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        except (Silent, OSError, subprocess.SubprocessError) as why:
            yield _of(name, node_verdicts.silence(str(why), started))
        except (KeyError, TypeError, ValueError):
            yield _of(name, node_verdicts.silence(OTHER_VERSION, True))
        finally:
            _end(process)


def connect(count: int, prefix: Sequence[str], python: Sequence[str], folder: Path, wait_s: float) -> Iterator[Finding]:
    """Let nodes dial each other. Yield whether they reach each other, and the faster network if there is one.

    Args:
        count: of the nodes.
        prefix: srun's command line.
        python, folder, wait_s: as for `look`.
    """
    program = programs.module("ftslurm.checks.between", str(folder), str(count), python=python)
    with tempfile.TemporaryFile("a+b") as errors:
        whole_lines = [word for word in prefix if word != "--unbuffered"]
        process = _start([*whole_lines, f"--nodes={count}", f"--ntasks={count}", *program], errors)
        try:
            lines, _ = process.communicate(timeout=wait_s + between.PATIENCE_S)
            nodes = between.read(lines.decode(errors="replace"))
        except subprocess.TimeoutExpired:
            nodes = []
        finally:
            _end(process)
        if len(nodes) == count:
            yield from between.compare(nodes)
        else:
            words = "; ".join(_said(errors)[-3:]) or f"no answer within {wait_s:g} s"
            yield warn("reach", f"whether nodes reach each other is not known: {words}", "try again when they are idle")


def _of(name: str, finding: Finding) -> Finding:
    return replace(finding, what=f"{name}: {finding.what}")


def _start(command: Sequence[str], errors: IO[bytes]) -> Program:
    return subprocess.Popen(
        command,
        env=commands.scrubbed(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        bufsize=0,
        start_new_session=True,  # Ctrl-C is for doctor, which ends srun in order
        preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM),  # with it srun ends the job
    )


def _end(process: Program) -> None:
    """End the program and its job, if they have not ended."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _seen_s(here: Path) -> float | None:
    """Return after how many seconds this machine sees what the node has written; None: not within PATIENCE_S."""
    begun = time.monotonic()
    while not here.stat().st_size:
        if time.monotonic() - begun > node_verdicts.PATIENCE_S:
            return None
        time.sleep(0.002)
    return time.monotonic() - begun


def _await_start(process: Program, errors: IO[bytes], name: str, wait_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + wait_s
    while (hello := _next(process, errors, min(5.0, max(0.1, deadline - time.monotonic())))) is None:
        state = _queue_state(errors)
        if time.monotonic() > deadline:
            raise Silent(f"its job has not started within {wait_s:g} s{state}")
        print(f"waiting for the job on {name}{state}; Ctrl-C cancels it", file=sys.stderr, flush=True)
    return hello


def _next(process: Program, errors: IO[bytes], timeout_s: float) -> dict[str, Any] | None:
    """Return the program's next line; None: there is none in time.

    Raises:
        Silent: it has ended instead.
    """
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_s
    while readable(process.stdout.fileno(), deadline - time.monotonic()):
        line = process.stdout.readline(LONGEST)
        if not line:
            words = [word.strip() for word in _said(errors)]
            raise Silent("; ".join(words[-3:]) or f"its program has ended (srun's exit code: {process.wait(END_S)})")
        found = read_object(line) or {}  # what a profile or a prolog prints is none
        if isinstance(found.get("time"), float):
            return found
    return None


def _said(errors: IO[bytes]) -> list[str]:
    errors.seek(0)
    return errors.read(LONGEST).decode(errors="replace").splitlines()


def _queue_state(errors: IO[bytes]) -> str:
    for line in _said(errors):
        if found := re.search(r"job (\d{1,20}) queued", line):
            state, reason = client.job_state(found[1])
            return f": Slurm job {found[1]} is {state} ({reason})"
    return ""
