"""Waits for the end of a run."""

from __future__ import annotations

import time
from collections.abc import Callable

from ftslurm.config.schema import Config
from ftslurm.errors import EnvironmentProblem
from ftslurm.monitor.status import RunStatus
from ftslurm.monitor.status_fold import StatusFold
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import JournalReader
from ftslurm.submission import jobs_of_run

END_S = 5.0  # how long a local controller may take to exit after it has written the outcome
POLL_S = 0.2


def wait(config: Config, run: RunDir, timeout_s: float | None) -> None:
    """Wait until the run is over.

    Raises:
        TimeoutError: it is not, after `timeout_s` seconds.
        EnvironmentProblem: its controller is gone and has written no outcome.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    there, reader = jobs_of_run.still_there(config, run), JournalReader(run.events)
    folding = StatusFold(RunStatus())
    while True:
        last = not there()  # called before reading, so that everything written until then is read
        for event in reader.iter_new():
            folding.apply(event)
        if folding.status.outcome != "running":
            break
        if last:
            raise EnvironmentProblem(no_verdict(config, run))
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"{run.root.name} is not over after {timeout_s:g} s")
        time.sleep(POLL_S)
    if config.cluster.kind == "local":
        wait_for_exit(there)


def wait_for_exit(there: Callable[[], bool]) -> None:
    """Wait for a local controller to exit, so that no process of the run outlives the caller."""
    deadline = time.monotonic() + END_S
    while there() and time.monotonic() < deadline:
        time.sleep(0.02)


def no_verdict(config: Config, run: RunDir) -> str:
    """Return the message about a run whose controller is gone without an outcome."""
    if not run.root.is_dir():
        return f"the run directory {run.root} was removed: what becomes of the run is written nowhere (squeue --me)"
    state, why = jobs_of_run.state(config, run)
    if state != "lost":
        return f"{run.root.name} {why or 'goes on'}"
    return f"{run.root.name} is lost: {why}. See {run.controller_log} and the files in {run.submitit}"
