"""A guard and its worker as in a step, in real processes, without torch, and the test as their controller."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from ftslurm.guard import guard, kernel_log, processes
from ftslurm.security import owned_files
from ftslurm.worker import lineage_guard, quorum_abort, session
from ftslurm.worker.commits import Commits
from ftslurm.worker.parameter_sessions import Sessions

PATIENCE_S = 20.0
RANK0 = {"rank": 0, "node": "n1", "local_rank": 0, "node_rank": 0}


def key_of(folder: Path) -> bytes:
    """Return the key of a run: the names of sockets on this machine come from it."""
    return hashlib.sha256(str(folder).encode()).digest()


class Step:
    """One task of a step. `folder` holds its rank logs."""

    def __init__(
        self,
        folder: Path,
        flags: Sequence[str] = (),
        env: dict[str, str] | None = None,
        worker: str = "",
        srun: Sequence[str] = (),
    ):
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        known = {"FTSLURM_RUN_DIR": str(folder), "FTSLURM_STEP": "group-0000/0", "FTSLURM_CLUSTER": "slurm"}
        known["FTSLURM_CHECKPOINT_DIR"] = str(folder / "checkpoints")
        if not srun:
            known |= {"FTSLURM_NODE": "n1", "FTSLURM_CLUSTER": "local"}
        self.process = self._start(
            [
                *(*srun, sys.executable, __file__, f"--log-dir={folder}", "--heartbeat-s=0.2", "--orphan-after-s=60"),
                *flags,
            ],
            known | {"GUARDED": worker} | (env or {}),
        )

    def _start(self, argv: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(
            argv,
            env=os.environ | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.folder / "step.log").open("ab"),
            cwd=self.folder,
        )
        self.messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self.lines: list[bytes] = []
        threading.Thread(target=self._listen, daemon=True).start()
        self.send("key", key=key_of(self.folder).hex())
        return self.process

    def _listen(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line)
            self.messages.put(json.loads(line))

    def send(self, kind: str, **fields: object) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"type": kind, **fields}).encode() + b"\n")
        self.process.stdin.flush()

    def until(self, kind: str, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """Return the next message of a kind; drop all others."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                message = self.messages.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {kind} within {patience_s} s\n{self.log()}\n{self.step_log()}") from None
            if message["type"] == kind:
                return message

    def begin(self, script: str, **assignment: object) -> dict[str, Any]:
        """Assign rank 0 of group 0 and start a script, given as text; return when it has printed a line."""
        path = self.folder / "script.py"
        path.write_text(script)
        if not hasattr(self, "pid"):
            self.get_ready()
        words: dict[str, Any] = {"group": 0, "attempt": 0, "lighthouse": "http://x:1", "module": None, "args": []}
        words |= {"script": str(path), "ranks": [RANK0], "run_id": "x", "groups": 1, "max_restarts": 3}
        self.send("assign", **words | assignment)
        self.until("store")
        self.send("store", addr="127.0.0.1", port=1)
        self.log_path = Path(str(assignment.get("log_dir", self.folder))) / "rank-0.log"
        self.wait(lambda: "\n" in self.log(), "the script to print")
        return words

    def get_ready(self) -> None:
        first = [self.messages.get(timeout=PATIENCE_S) for _ in range(2)]  # the worker's may come before its guard's
        while not {"hello", "ready"} <= {message["type"] for message in first}:
            first.append(self.messages.get(timeout=PATIENCE_S))
        self.pid = next(int(message["pid"]) for message in first if message["type"] == "hello")

    log_path = Path("/nowhere")

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def step_log(self) -> str:
        return (self.folder / "step.log").read_text(errors="replace")

    def wait(self, true: Any, what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline, f"no {what}\n{self.log()}\n{self.step_log()}"
            time.sleep(0.01)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Attached(Step):
    """A successor's connection to a running step."""

    def __init__(self, folder: Path, *flags: str, step: str = "group-0000/0", task: int = 0):
        self.folder = folder
        if not (folder / "key").exists():
            owned_files.write_file(folder / "key", key_of(folder), mode=0o600)
        program = [sys.executable, "-m", "ftslurm.guard.attach", f"--step={step}", "--orphan-after-s=60"]
        program.append(f"--log-dir={folder}")
        self._start([*program, *flags], {"FTSLURM_RUN_DIR": str(folder), "FTSLURM_TASK": str(task)})


@contextmanager
def attached(folder: Path, *flags: str, step: str = "group-0000/0") -> Iterator[Attached]:
    """Connect to a running step for the time of a `with`."""
    made = Attached(folder, *flags, step=step)
    try:
        yield made
    finally:
        made.end()


@contextmanager
def step(
    folder: Path, *flags: str, env: dict[str, str] | None = None, worker: str = "", srun: Sequence[str] = ()
) -> Iterator[Step]:
    """Run a step for the time of a `with`; through srun, if its command line is given."""
    made = Step(folder, flags, env, worker, srun)
    try:
        yield made
    finally:
        below = processes.descendants(made.process.pid)
        made.end()
        for pid in below:  # what a script has started outlives it
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class _Observer:
    report = on_quorum = None

    def flush(self) -> None: ...


class _Watch:
    over = True

    def ended(self) -> None: ...


def _host_store(gateway: object) -> tuple[str, int]:
    return "127.0.0.1", 1


if __name__ == "__main__":
    if "KERNEL_LOG" in os.environ:
        guard.Tail = partial(kernel_log.Tail, os.environ["KERNEL_LOG"])  # type: ignore[assignment, attr-defined]
    if os.environ["GUARDED"] != "torch":
        session.import_everything = lambda task, *_: session.Watchers(
            _Observer(),  # type: ignore[arg-type]
            lineage_guard.LineageGuard(lambda _: None),
            _Watch(),  # type: ignore[arg-type]
            Commits(print),
            quorum_abort.BrokenQuorums((), task.position),
            Sessions(),
            left_out=[words for words in [os.environ.get("LEFT_OUT", "")] if words],
        )
        session.host_store = _host_store
    guard.main("ftslurm.worker.session")
