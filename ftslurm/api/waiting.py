"""Waits for the end of a run."""

from __future__ import annotations

import time

from ftslurm.config.schema import Config
from ftslurm.errors import EnvironmentProblem
from ftslurm.run.directory import RunDir
from ftslurm.run.facts import Watcher, look, process_lives

END_S = 5.0  # how long a local controller may take to exit after it has written the outcome
POLL_S = 0.2


def wait(config: Config, run: RunDir, timeout_s: float | None) -> None:
    """Wait until the run is over.

    Raises:
        TimeoutError: it is not, after `timeout_s` seconds.
        EnvironmentProblem: its controller is gone and has written no outcome.
    """
    deadline, watcher = None if timeout_s is None else time.monotonic() + timeout_s, Watcher(config, run)
    while watcher.there():
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"{run.root.name} is not over after {timeout_s:g} s")
        time.sleep(POLL_S)
    if not run.root.is_dir() or not look(config, run).over:
        raise EnvironmentProblem(no_verdict(config, run))
    if config.cluster.kind == "local":
        wait_for_exit(run)


def wait_for_exit(run: RunDir) -> None:
    """Wait for a local controller to exit, so that no process of the run outlives the caller."""
    deadline = time.monotonic() + END_S
    while process_lives(run) and time.monotonic() < deadline:
        time.sleep(0.02)


def no_verdict(config: Config, run: RunDir) -> str:
    """Return the message about a run whose controller is gone without an outcome."""
    if not run.root.is_dir():
        return f"the run directory {run.root} was removed: what becomes of the run is written nowhere (squeue --me)"
    found = look(config, run)
    if found.state != "lost":
        return f"{run.root.name} {found.note or 'goes on'}"
    return f"{run.root.name} is lost: {found.why}. See {run.controller_log} and the files in {run.submitit}"
