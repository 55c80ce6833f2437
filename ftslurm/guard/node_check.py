"""Runs the commands of health.preflight on this node: `python -m ftslurm.guard.node_check OPTIONS COMMANDS`.

The controller starts it with a separate srun before anything is placed on the node. What the commands print goes to a
log in the run directory, whose size is limited; the result is one line of JSON on stdout. The commands run one after
the other; the first one that fails, and the time-out, end the check. Imports only the standard library.
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
from ftslurm.security import sharing

HEAD, TAIL = 1 << 20, 1 << 16  # bytes of a log that are kept: its first, and its last
PREFLIGHT_S = 120.0  # for all commands of health.preflight on a node; then they are killed, and the node has failed
MOST_LOGS = 1000  # of one node
LONGEST = 400  # characters of a reason
END_S = 5.0  # for killed processes to end


class Log:
    """The output of a check: all of it goes to the file, as far as there is room; the last line is remembered."""

    def __init__(self, folder: str, node: str) -> None:
        """Make the next log of a node, as preflight-n1-0.log. Without one the check goes on."""
        self.name, self._file, self._size, self._tail = "", -1, 0, b""
        for number in range(MOST_LOGS):
            name = f"preflight-{node}-{number}.log"
            path = os.path.join(folder, name)
            try:
                self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
            except FileExistsError:
                continue
            except OSError:
                return
            sharing.follow(self._file, path)
            self.name = name
            return

    def write(self, data: bytes) -> None:
        room = max(0, HEAD - self._size)
        self._put(data[:room])
        self._size += len(data)
        self._tail = (self._tail + data)[-TAIL:]

    def close(self) -> None:
        """Write the end of what did not fit, and how much is missing before it."""
        rest = self._size - HEAD
        if rest > 0:
            end = self._tail[-min(rest, TAIL) :]
            self._put(f"\nftslurm: {rest - len(end)} bytes of this log were dropped here\n".encode() + end)
        if self._file >= 0:
            os.close(self._file)

    def last_line(self) -> str:
        lines = [line.strip() for line in self._tail.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][-LONGEST:] if lines else ""

    def _put(self, data: bytes) -> None:
        if self._file >= 0 and data:
            with contextlib.suppress(OSError):  # a full disk; the check itself goes on
                os.write(self._file, data)


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
    log = Log(os.path.join(os.environ.get("FTSLURM_RUN_DIR", ""), "logs"), node)
    environ = {
        **os.environ,
        "FTSLURM_NODE": node,
        "FTSLURM_PREFLIGHT_GPUS": str(args.gpus),
        "FTSLURM_PREFLIGHT_SKEW_S": f"{skew_s:.3f}",  # of the clocks, plus the time that srun takes
    }
    reason = run(json.loads(args.commands), environ, log, args.timeout_s)
    log.close()
    answer = {
        "type": "node_check",
        "node": node,
        "seconds": round(time.monotonic() - begun, 3),
        "log": f"logs/{log.name}" if log.name else "",
        "reason": reason,
    }
    sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a process that even SIGKILL does not end must not hold the step


if __name__ == "__main__":
    main()
