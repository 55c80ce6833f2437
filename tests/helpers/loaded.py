"""Processes that are born with torch and torchft imported, which costs a process more than a second of CPU time."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

PATIENCE_S = 180.0  # a bound for a hang, not a claim about speed

os.environ.setdefault("RUST_LOG", "warn")  # read when torchft is imported, here and there
LOADED = multiprocessing.get_context("forkserver")  # one server for all modules: the first process starts it
LOADED.set_forkserver_preload(
    [
        *("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torchft.parameter_server"),
        *("torchft.checkpointing.http_transport", "torchft.manager", "torchft.ddp", "torchft.process_group"),
    ]
)


class Started:
    """A running process; its output goes to files."""

    def __init__(self, code: str | Path, words: tuple[str, ...], environ: dict[str, str]) -> None:
        self.files = [tempfile.NamedTemporaryFile("r", errors="replace") for _ in range(2)]  # noqa: SIM115
        names = [file.name for file in self.files]
        self.process: Any = LOADED.Process(target=_run, args=(code, words, dict(os.environ) | environ, names))
        self.process.start()

    def result(self) -> subprocess.CompletedProcess[str]:
        """Wait for the end."""
        self.process.join(PATIENCE_S)
        self.process.kill()
        self.process.join()
        out, err = (file.read() for file in self.files)
        for file in self.files:
            file.close()
        return subprocess.CompletedProcess([], self.process.exitcode, out, err)


def get_ready() -> None:
    """Start the server of these processes, which stays where this process is now: in its network namespace."""
    forkserver.ensure_running()


def start(code: str | Path, *words: str, **environ: str) -> Started:
    """Start a program, given as text or as a path, as `python -c CODE WORDS` or `python PATH WORDS` would."""
    return Started(code, words, environ)


def run(code: str | Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return start(code, *words, **environ).result()


def _run(code: str | Path, words: tuple[str, ...], environ: dict[str, str], files: list[str]) -> None:
    os.environ.clear()  # else it has the environment of the first test's
    os.environ.update(environ)
    for number, name in enumerate(files, 1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND), number)
    sys.argv = [str(code) if isinstance(code, Path) else "-c", *words]
    if isinstance(code, Path):
        sys.path.insert(0, str(code.parent))
        runpy.run_path(str(code), run_name="__main__")
    else:
        exec(compile(code, "<test>", "exec"), {"__name__": "__main__"})
