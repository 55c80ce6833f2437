"""Connects a new controller to the guard of one task: `python -m ftslurm.guard.attach --step group-0003/2`.

An srun with the step's own layout starts it, so each task finds its guard by SLURM_PROCID. It copies stdin to the guard
and the guard's lines to stdout, and ends when the guard ends. If the task has ended without a controller, it prints
the end file of the guard (connection.py). Tasks do not notice the death of their srun, so it ends when it reads
nothing for --orphan-after-s; so does the guard, unless another controller attaches.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ftslurm.errors import Distrusted, complain
from ftslurm.guard import processes
from ftslurm.guard.connection import address, end_file, peer_uid
from ftslurm.protocol import messages
from ftslurm.protocol.exit_codes import ExitCode
from ftslurm.security import owned_files, run_key

LOOK_S = 1.0


def main() -> NoReturn:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--step", required=True)  # the name under which the step was launched, UNIT/ATTEMPT
    parser.add_argument("--log-dir", required=True)  # of the step
    parser.add_argument("--orphan-after-s", type=float, required=True)
    parser.add_argument("--patience-s", type=float, default=10.0)  # for a guard that has just been launched
    options = parser.parse_args()
    task, node = processes.task_of(os.environ), processes.node_of(os.environ) or os.uname().nodename
    who, left_behind = f"task {task} of step {options.step} on {node}", end_file(options.log_dir, task)
    try:
        key = run_key.load_or_make(Path(os.environ["FTSLURM_RUN_DIR"], "key"))
    except (OSError, Distrusted) as error:
        _fail(f"{who} cannot be adopted: {error}")
    guard = _connect(address(key, options.step, task), options.patience_s, left_behind)
    if isinstance(guard, str):
        end = _say_for(left_behind)
        if end is None:
            _fail(f"{who} cannot be adopted: {guard}")
        os._exit(end)
    if peer_uid(guard) != os.getuid():
        _fail(f"{who} cannot be adopted: user {peer_uid(guard)} holds the name of its socket")
    processes.leave_signals_to_the_script()
    code = _pump(guard, options.orphan_after_s)
    told = _say_for(left_behind) if code == ExitCode.DETACHED else code  # the guard may have been ending already
    if told is None:
        complain(f"{who} has left: another controller has attached, or it was killed")
    os._exit(ExitCode.DETACHED if told is None else told)


def _connect(name: bytes, patience_s: float, left_behind: str) -> socket.socket | str:
    """Connect to the guard. Return the reason if that fails; do not wait for a guard that has left an end file."""
    deadline = time.monotonic() + patience_s
    while True:
        guard = socket.socket(socket.AF_UNIX)
        try:
            guard.connect(name)
            return guard
        except OSError as error:
            guard.close()
            if time.monotonic() >= deadline or os.path.exists(left_behind):
                return f"its guard does not answer ({error.strerror}): it has ended, or never began"
            time.sleep(0.1)


def _say_for(left_behind: str) -> int | None:
    """Print the end file and return the exit code; None: the file does not exist."""
    try:
        with owned_files.open_own(Path(left_behind)) as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    return _pass_on(lines)


def _pass_on(lines: list[bytes]) -> int | None:
    """Write lines to the controller. Return the exit code if a line reports the end of the task, else None."""
    end = None
    for line in lines:
        try:
            os.write(1, line + b"\n")  # line by line: srun interleaves longer writes of several tasks
        except OSError:
            return ExitCode.ORPHANED  # slurmstepd is gone
        raw = messages.parse(line)
        if raw is not None and raw["type"] in (messages.Failed.kind, messages.Exited.kind):
            end = 0 if raw.get("code") == 0 else ExitCode.END_REPORTED
    return end


def _pump(guard: socket.socket, orphan_after_s: float) -> int:
    """Copy in both directions until one side ends; return the exit code."""
    lines, end = messages.Lines(), int(ExitCode.DETACHED)
    poll, left = select.poll(), orphan_after_s
    poll.register(0, select.POLLIN)
    poll.register(guard, select.POLLIN)
    while True:
        begun = time.monotonic()
        ready = poll.poll(1000 * max(0.0, min(LOOK_S, left)))
        left -= min(LOOK_S, time.monotonic() - begun)  # more than that: this process stood, and so did the controller
        if left <= 0 and all(fd != 0 for fd, _ in ready):
            return ExitCode.ORPHANED
        for fd, _ in ready:
            try:
                if fd == 0:
                    data = os.read(0, 65536)
                    if not data:
                        return ExitCode.ORPHANED
                    left = orphan_after_s
                    with suppress(OSError):  # the guard has ended: its last lines are read below
                        guard.sendall(data)
                    continue
                data = guard.recv(65536)
            except OSError:
                data = b""
            if not data:
                return end
            told = _pass_on(lines.feed(data))
            if told == ExitCode.ORPHANED:
                return ExitCode.ORPHANED
            end = end if told is None else told


def _fail(words: str) -> NoReturn:
    complain(words)
    os._exit(ExitCode.NO_GUARD)


if __name__ == "__main__":
    main()
