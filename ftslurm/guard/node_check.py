"""Runs the commands of health.preflight on this node: `python -m ftslurm.guard.node_check OPTIONS COMMANDS`.

The controller starts it with a separate srun before anything is placed on the node. What the commands print goes to a
log in the run directory, whose size is limited; the result is one line of JSON on stdout. The commands run one after
the other; the first one that fails, and the time-out, end the check.
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from ftslurm.guard import processes
from ftslurm.protocol.readiness import readable
from ftslurm.run import log_cap
from ftslurm.security import owned_files

PREFLIGHT_S = 120.0  # for all commands of health.preflight on a node; then they are killed, and the node has failed
LONGEST = 400  # characters of a reason
END_S = 5.0  # for killed processes to end


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


def run(commands: Sequence[Sequence[str]], environ: Mapping[str, str], log: Log, timeout_s: float) -> str | None:
    """Run the commands one after the other. Return why the check has failed, or None: it has not."""
    until = time.monotonic() + timeout_s
    for command in commands:
        log.write(f"$ {shlex.join(command)}\n".encode(errors="surrogateescape"))
        how = _run(command, environ, log, until, timeout_s)
        _kill_all()
        if how is not None:
            said = log.last_line()
            said = "" if said.startswith("$ ") else f": {said}"
            return f"{shlex.join(command):.100}: {how}{said}"[: 2 * LONGEST]
    return None


def _run(command: Sequence[str], environ: Mapping[str, str], log: Log, until: float, timeout_s: float) -> str | None:
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
        return f"cannot be started ({error})"
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
            return None if code == 0 else f"exit code {code}" if code > 0 else f"ended by signal {-code}"
    return f"not done after {timeout_s:g} s, killed"


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


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="ftslurm.guard.node_check", allow_abbrev=False)
    parser.add_argument("--timeout-s", type=float, default=PREFLIGHT_S)
    parser.add_argument("--sent", type=float, required=True, help="when the controller has started this, in unix time")
    parser.add_argument("--gpus", type=int, default=0, help="how many GPUs the run uses on this node")
    parser.add_argument("--log-max-mb", type=int, default=0, help="the log grows not beyond this (0: no cap)")
    parser.add_argument("commands", help="a JSON list of lists")
    args = parser.parse_args(words)
    skew_s, begun = time.time() - args.sent, time.monotonic()
    processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)

    def end(*_: object) -> None:
        _kill_all()
        os._exit(1)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    node = processes.node_of(os.environ) or os.uname().nodename
    log = Log(os.path.join(os.environ.get("FTSLURM_RUN_DIR", ""), "logs"), node, args.log_max_mb)
    environ = {
        **os.environ,
        "FTSLURM_NODE": node,
        "FTSLURM_PREFLIGHT_GPUS": str(args.gpus),
        "FTSLURM_PREFLIGHT_SKEW_S": f"{skew_s:.3f}",  # of the clocks, plus the time that srun takes
    }
    reason = run(json.loads(args.commands), environ, log, args.timeout_s)
    answer = {
        "type": "node_check",
        "node": node,
        "seconds": round(time.monotonic() - begun, 3),
        "log": log.path and f"logs/{os.path.basename(log.path)}",
        "reason": reason,
    }
    sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a process that even SIGKILL does not end must not hold the step


if __name__ == "__main__":
    main()
