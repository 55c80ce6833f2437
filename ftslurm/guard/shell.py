"""Starts a shell beside a rank, with the environment of the rank: `python -m ftslurm.guard.shell`.

`ftslurm attach` runs it on the rank's node, in a terminal. The environment comes from the memory of the rank's guard
(guard.py keeps it there), so that secrets never stand on a command line or in a file.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from contextlib import suppress
from typing import NoReturn

from ftslurm.guard import processes
from ftslurm.guard.guard import ENVIRONMENT

# The shell is no process of the step: the next attempt must not kill it, nor a probe count it.
_OF_THE_STEP = ("FTSLURM_STEP", "FTSLURM_FENCE", "FTSLURM_TASK")


def main() -> NoReturn:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--run", required=True)  # the run directory
    parser.add_argument("--step", required=True)  # the name under which the step was launched, UNIT/ATTEMPT
    parser.add_argument("--task", required=True)  # of the step
    parser.add_argument("--name", required=True)  # the rank, for a person
    options = parser.parse_args()
    found = find(options.run, options.step, options.task)
    if found is None:
        where = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
        _say(f"{options.name} is not on {where}: it has ended, or its script has not begun")
        sys.exit(1)
    guard, environ = found
    _say(f"a shell beside {options.name}, with its environment; leave it with: exit")
    become_shell(guard, environ)


def find(run: str, step: str, task: str) -> tuple[int, dict[str, str]] | None:
    """Return the pid of a task's guard on this node, and the environment of its worker; None: there is none."""
    for pid, theirs in sorted(processes.of_run(run)):  # the guard is older than its worker
        mine = theirs.get("FTSLURM_TASK") or theirs.get("SLURM_PROCID")
        if theirs.get("FTSLURM_STEP") == step and mine == task and (environ := _kept(pid)):
            return pid, environ
    return None


def _kept(pid: int) -> dict[str, str]:
    """Return the environment that a guard keeps in its memory; empty: it is none, or its script has not begun."""
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{number}"
            with suppress(OSError):
                if os.readlink(path).startswith(f"/memfd:{ENVIRONMENT} "):
                    with open(path, "rb") as file:
                        return processes.variables(file.read())
    return {}


def become_shell(guard: int, environ: dict[str, str]) -> NoReturn:
    """Replace this process by the user's shell, in the container of a guard."""
    environ = {key: value for key, value in environ.items() if key not in _OF_THE_STEP}
    environ |= {key: os.environ[key] for key in ("TERM", "SHELL") if key in os.environ}
    enter = [shutil.which("nsenter") or "nsenter", f"--target={guard}", "--wd"]
    options = {"user": ["--user", "--preserve-credentials"], "mnt": ["--mount", "--root"]}
    try:
        for kind, words in options.items():
            if os.readlink(f"/proc/{guard}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}"):
                enter += words
        shell = [*enter, "/bin/sh", "-c", 'test -x "$SHELL" && exec "$SHELL"; exec /bin/sh']
        os.execve(shell[0], shell, environ)  # noqa: S606 an argument list
    except OSError as error:
        _say(f"there is no way to where the rank runs: {error}")
        sys.exit(1)


def _say(words: str) -> None:
    with suppress(OSError):
        os.write(2, f"\r\nftslurm: {words}\r\n".encode())


if __name__ == "__main__":
    main()
