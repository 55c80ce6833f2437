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
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ftslurm.guard import processes
from ftslurm.protocol import messages
from ftslurm.protocol.readiness import readable
from ftslurm.run import log_cap
from ftslurm.security import owned_files, programs, secret_variables

if TYPE_CHECKING:
    from ftslurm.guard.guard import Task

PREFLIGHT_S = 120.0  # for all commands of health.preflight on a node; then they are killed, and the node has failed
SHIPPED = "ftslurm-preflight"  # found also where the environment of this Python is not on PATH
LONGEST = 400  # characters of a reason
UNSTARTED = (126, 127)  # exit codes of a shell that cannot run a program
END_S = 5.0  # for killed processes to end


class Failed(NamedTuple):
    """How a command has failed."""

    how: str
    unstarted: bool = False  # this node cannot run it: there is no such program, or it is no program


class Log:
    """The output of a check: it goes to a file, as far as there is room; its end is remembered."""

    def __init__(self, folder: str, node: str, max_mb: int) -> None:
        """Make the next log of a node, as preflight-n1-0.log. Without one the check goes on."""
        self.path, self._max_mb, self._file, self._end = "", max_mb, -1, b""
        with contextlib.suppress(OSError):
            self.path, self._file = owned_files.open_next(folder, f"preflight-{node}-{{}}.log")

    def write(self, data: bytes) -> None:
        self._end = (self._end + data)[-8 * LONGEST :]
        if self.path:
            with contextlib.suppress(OSError):  # a full disk; the check itself goes on
                os.write(self._file, data)
            log_cap.cut(self.path, self._max_mb)

    def last_line(self) -> str:
        lines = [line.strip() for line in self._end.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][-LONGEST:] if lines else ""


def run(commands: Sequence[Sequence[str]], environ: Mapping[str, str], log: Log, timeout_s: float) -> Failed | None:
    """Run the commands one after the other. Return why the check has failed, or None: it has not."""
    until = time.monotonic() + timeout_s
    for command in commands:
        log.write(f"$ {shlex.join(command)}\n".encode(errors="surrogateescape"))
        failed = _run(command, environ, log, until, timeout_s)
        _kill_all()
        if failed is not None:
            said = log.last_line()
            said = "" if said.startswith("$ ") else f": {said}"
            return failed._replace(how=f"{shlex.join(command):.100}: {failed.how}{said}"[: 2 * LONGEST])
    return None


def _run(command: Sequence[str], environ: Mapping[str, str], log: Log, until: float, timeout_s: float) -> Failed | None:
    """Run one command. Return how it has failed, or None."""
    try:
        child = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Failed(f"cannot be started ({getattr(error, 'strerror', None) or error})", unstarted=True)
    assert child.stdout is not None
    pipe = child.stdout.fileno()
    while (left := until - time.monotonic()) > 0:
        if readable(pipe, min(left, 0.2)):
            data = os.read(pipe, 1 << 16)
            log.write(data)
            if data:
                continue
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(min(left, 0.2))
        if child.poll() is not None:  # its own children may hold the pipe open
            code = child.returncode
            how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
            return Failed(how, code in UNSTARTED) if code else None
    return Failed(f"not done after {timeout_s:g} s, killed")


def _kill_all() -> None:
    """Kill whatever the command has left."""
    until = time.monotonic() + END_S
    while (rest := processes.descendants(os.getpid())) and time.monotonic() < until:
        for pid in rest:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def pass_or_end(task: Task, say: Callable[[messages.Report], None]) -> None:
    """Check this node, if that is wanted; end this process if the node fails."""
    wanted = json.loads(task.options.check or "{}")
    if task.local_index or task.node not in wanted.get("nodes", ()):
        return
    begun = time.monotonic()
    log = Log(os.path.join(os.environ["FTSLURM_RUN_DIR"], "logs"), task.node, task.options.log_max_mb)
    environ = secret_variables.without(os.environ.get(secret_variables.NAMES, "").split(","), os.environ)
    environ |= {"FTSLURM_NODE": task.node, "FTSLURM_PREFLIGHT_GPUS": str(wanted["gpus"])}
    commands = [
        programs.module("ftslurm.checks", *words[1:]) if words[0] == SHIPPED else words for words in wanted["commands"]
    ]
    processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
    failed = run(commands, environ, log, PREFLIGHT_S)
    processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 0)
    name = log.path and f"logs/{os.path.basename(log.path)}"
    how, unstarted = failed or (None, False)
    say(messages.NodeCheck(task.node, round(time.monotonic() - begun, 3), name, how, unstarted))
    if failed is not None:
        os._exit(1)  # a process that even SIGKILL does not end must not hold the step
