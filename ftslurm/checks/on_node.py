"""Runs on a node for `ftslurm doctor`: `python -m ftslurm.checks.on_node HERE OPTIONS SUBMIT`.

HERE is a file that doctor makes and looks at.
OPTIONS are srun's, SUBMIT is a command that tries to submit a job (none: that is refused everywhere), both as JSON.

It prints a line of JSON when it has begun, and waits for one on stdin: the folder is there now. It prints another one
when it has written into the folder, and one with all the rest. Then it connects to each HOST PORT that comes on stdin.
When stdin ends, because doctor has finished or was killed, it removes the folder and exits, whatever it is doing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict

from ftslurm.checks import node_facts
from ftslurm.checks.node_facts import PATIENCE_S, FolderFacts
from ftslurm.guard import processes
from ftslurm.slurm import client, commands

LIFE_S = 280
TRY_S = 60.0
SHORT_S = 10.0


def wait_for(check: Callable[[], bool]) -> float | None:
    """Return after how many seconds a check is true, or None if it is not within PATIENCE_S."""
    begun = time.monotonic()
    while not check():
        if time.monotonic() - begun > PATIENCE_S:
            return None
        time.sleep(0.002)
    return time.monotonic() - begun


def _append(path: str, text: str) -> float:
    """Append durably, as the journal does for each decision; return how long that takes."""
    begun = time.monotonic()
    with open(path, "a") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return time.monotonic() - begun


def _look(here: str, found: FolderFacts) -> None:
    """Look for the file of the other side, make it again, append to it; measure durable writes."""
    found.shared = os.path.exists(here)
    if found.shared:
        with suppress(FileExistsError):
            open(here, "x").close()
            found.exclusive = False
        taken = [_append(here, "x" * 200 + "\n") for _ in range(20)]
        found.fsync_s, found.fsync_longest_s = statistics.median(taken), max(taken)


def _as_a_run(options: Sequence[str], submit: Sequence[str], job: str, node: str) -> dict[str, str]:
    """Start a step beside this one, and try to submit a job, as a controller here would.

    Return why it fails, "" if it does not, by check.
    """
    environ = commands.scrubbed(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    tried = {
        "step": [*commands.srun_command(job, "ftslurm-doctor", [node], extra=commands.memory_of(options)), "true"],
        "sbatch": submit,
    }
    answers = {check: client.call(command, TRY_S) for check, command in tried.items() if command}
    return {check: "" if answer.ok else " ".join(answer.text.split())[-500:] for check, answer in answers.items()}


def _say(**answer: object) -> None:
    print(json.dumps({"time": time.time(), **answer}), flush=True)


def _serve(folder: str) -> None:
    for line in sys.stdin:
        host, port = line.split()
        try:
            socket.create_connection((host, int(port)), timeout=SHORT_S).close()
            _say(why="")
        except OSError as error:
            _say(why=f"{type(error).__name__}: {error}"[:300])
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def main(here: str, options: str, submit: str) -> None:
    """Look at everything, and end with stdin."""
    signal.alarm(LIFE_S)  # no end of stdin arrives if srun's whole process group is killed
    folder = os.path.dirname(here)
    found = FolderFacts(os.path.dirname(folder))
    node, job = processes.node_of(os.environ) or socket.gethostname(), os.environ.get("SLURM_JOB_ID", "")
    _say(node=node, job=job)
    sys.stdin.readline()
    threading.Thread(target=_serve, args=[folder], daemon=True).start()
    try:
        _look(here, found)
    except OSError as error:
        found.problem = f"{error.filename or 'it'}: {error.strerror}"
    _say(shared=found.shared)
    there = node_facts.of_node()
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    # The other nodes only connect, so that nothing needs to be accepted.
    with socket.create_server(("", 0), family=family, dualstack_ipv6=both) as server:
        place = [socket.gethostname(), server.getsockname()[1]]
        tried = _as_a_run(json.loads(options), json.loads(submit), job, node) if job else {}
        _say(folder=asdict(found), facts=asdict(there), place=place, tried=tried)
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
