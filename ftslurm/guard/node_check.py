"""Runs the commands of health.preflight in a worker's process, before it imports anything.

The first task of a step on each node that has not passed yet does so (--check). What the commands print goes to a log
in the run directory, whose size is limited; the result is a message, after which a worker on a node that has failed
ends. The commands run one after the other; the first one that fails, and the time-out, end the check.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ftslurm.guard import processes
from ftslurm.protocol import messages
from ftslurm.run import last_words, log_cap
from ftslurm.security import owned_files, programs, secret_variables

if TYPE_CHECKING:
    from ftslurm.guard.guard import Task

PREFLIGHT_S = 120.0  # for all commands of health.preflight on a node; then they are killed, and the node has failed
SHIPPED = "ftslurm-preflight"  # found also where the environment of this Python is not on PATH
LONGEST = 400  # characters of a reason
UNSTARTED = (126, 127)  # exit codes of a shell that cannot run a program
CUT_EVERY_S = 0.2  # between two looks at the size of the log


class Failed(NamedTuple):
    """How a command has failed."""

    how: str
    unstarted: bool = False  # this node cannot run it: there is no such program, or it is no program


def run(
    commands: Sequence[Sequence[str]], environ: Mapping[str, str], log: Path, file: int, max_mb: int
) -> Failed | None:
    """Run the commands one after the other. Return why the check has failed, or None: it has not.

    Args:
        log: their log, which may be missing.
        file: where their output goes.
        max_mb: the log's limit (logs.max_mb).
    """
    until = time.monotonic() + PREFLIGHT_S
    for command in commands:
        with contextlib.suppress(OSError):  # a full disk; the check itself goes on
            os.write(file, f"$ {shlex.join(command)}\n".encode(errors="surrogateescape"))
        failed = _run(command, environ, log, file, max_mb, until)
        processes.kill_descendants()
        log_cap.cut(log, max_mb)
        if failed is not None:
            lines = last_words.end_of(log, 8 * LONGEST).decode(errors="replace").split("\n")
            last = next((line.strip()[-LONGEST:] for line in reversed(lines) if line.strip()), "$ ")
            said = "" if last.startswith("$ ") else f": {last}"
            return failed._replace(how=f"{shlex.join(command):.100}: {failed.how}{said}"[: 2 * LONGEST])
    return None


def _run(
    command: Sequence[str], environ: Mapping[str, str], log: Path, file: int, max_mb: int, until: float
) -> Failed | None:
    """Run one command. Return how it has failed, or None."""
    try:
        child = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Failed(f"cannot be started ({getattr(error, 'strerror', None) or error})", unstarted=True)
    while (left := until - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(min(left, CUT_EVERY_S))
            how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
            return Failed(how, code in UNSTARTED) if code else None
        log_cap.cut(log, max_mb)
    return Failed(f"not done after {PREFLIGHT_S:g} s, killed")


def pass_or_end(task: Task, say: Callable[[messages.Report], None]) -> None:
    """Check this node, if that is wanted; end this process if the node fails."""
    wanted = json.loads(task.options.check or "{}")
    if task.local_index or task.node not in wanted.get("nodes", ()):
        return
    begun = time.monotonic()
    log = f"logs/preflight-{task.node}-{os.environ['FTSLURM_STEP'].replace('/', '-')}.log"
    path = Path(os.environ["FTSLURM_RUN_DIR"], log)
    try:
        file = owned_files.open_fd(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError:
        log, file = "", 2  # their output goes to that of the step
    environ = secret_variables.without(os.environ.get(secret_variables.NAMES, "").split(","), os.environ)
    environ |= {"FTSLURM_NODE": task.node, "FTSLURM_PREFLIGHT_GPUS": str(wanted["gpus"])}
    commands = [
        programs.module("ftslurm.checks.shipped_check", *words[1:]) if words[0] == SHIPPED else words
        for words in wanted["commands"]
    ]
    processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
    failed = run(commands, environ, path, file, task.options.log_max_mb)
    processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 0)
    how, unstarted = failed or (None, False)
    say(messages.NodeCheck(task.node, round(time.monotonic() - begun, 3), log, how, unstarted))
    if failed is not None:
        os._exit(1)  # a process that even SIGKILL does not end must not hold the step
