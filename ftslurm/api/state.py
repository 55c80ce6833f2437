"""Reads how a run stands: its journal, and what Slurm says of a run that does not write one; waits for its end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import BinaryIO

from ftslurm.config.schema import Config
from ftslurm.errors import EnvironmentProblem, RunNotFound
from ftslurm.monitor import logs
from ftslurm.monitor.log_files import Wanted, check, present
from ftslurm.monitor.log_page import View
from ftslurm.monitor.status import RunStatus, lose_controller
from ftslurm.monitor.story import Story
from ftslurm.report.run_report import Report, read_report
from ftslurm.run import deliveries, facts, liveness
from ftslurm.run.directory import RunDir

END_S = 5.0  # how long a local controller may take to exit after it has written the outcome
POLL_S = 0.2


@dataclass(frozen=True)
class Look:
    """A run, as seen once."""

    status: RunStatus
    state: str  # as in a list of runs
    moment: float  # up to which time that is known, in unix seconds
    note: str | None  # why the run has not started, or its controller is not heard, for a person


def look(config: Config, run: RunDir, raw: bool = False) -> Look:
    """Read how the run stands.

    Args:
        raw: leave control characters in it, which could steer a terminal; JSON and repr escape them.

    Raises:
        EnvironmentProblem: the journal cannot be read.
    """
    found = facts.look(config, run)  # before the journal: what a controller writes while it ends is read
    status = Story(run, raw).status
    status.run_id, status.hooks = status.run_id or run.root.name, deliveries.read(run)
    if status.outcome != "running":
        return Look(status, status.outcome, time.time(), None)
    if not found.going:
        lose_controller(status, found.state, found.why or "")
    return Look(status, found.state, liveness.moment(config, run), found.note)


def report(config: Config, run: RunDir) -> Report:
    """Return where the time of a run went; of one that has not started, why.

    Raises:
        EnvironmentProblem: the journal cannot be read.
    """
    seen = look(config, run, raw=True)
    seen.status.reason = seen.status.reason or seen.note or ""
    return read_report(run, seen.status, seen.moment)


def show_logs(config: Config, run: RunDir, wanted: Wanted, out: BinaryIO, view: View, follow: bool = False) -> int:
    """Print logs as logs.show does; of a run that never started, say why it has none.

    Raises:
        RunNotFound: there is no such log; with `follow`, none can come.
    """
    if not present(run, wanted):
        check_started(config, run)
    if follow:
        check(config, wanted)
    watcher = facts.Watcher(config, run)
    left_out = logs.show(run, wanted, out, view, follow=follow, until=lambda: not watcher.there())
    if follow and not present(run, wanted):
        check_started(config, run)  # it was cancelled meanwhile
    return left_out


def check_started(config: Config, run: RunDir) -> None:
    """Raise RunNotFound for a run that never started, with why: it has no logs, and nothing in it has failed."""
    if (found := facts.look(config, run)).never:
        raise RunNotFound(f"run {run.root.name} has no logs, it never started: {found.why}")


# --- until it is over -------------------------------------------------------------------------------------------------


def wait(config: Config, run: RunDir, timeout_s: float | None) -> None:
    """Wait until the run is over.

    Raises:
        TimeoutError: it is not, after `timeout_s` seconds.
        EnvironmentProblem: its controller is gone and has written no outcome.
    """
    deadline, watcher = None if timeout_s is None else time.monotonic() + timeout_s, facts.Watcher(config, run)
    while watcher.there():
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"{run.root.name} is not over after {timeout_s:g} s")
        time.sleep(POLL_S)
    if not run.root.is_dir() or not facts.look(config, run).over:
        raise EnvironmentProblem(no_verdict(config, run))
    if config.local:
        wait_for_exit(run)


def wait_for_exit(run: RunDir) -> None:
    """Wait for a local controller to exit, so that no process of the run outlives the caller."""
    deadline = time.monotonic() + END_S
    while facts.process_lives(run) and time.monotonic() < deadline:
        time.sleep(0.02)


def no_verdict(config: Config, run: RunDir) -> str:
    """Return the message about a run whose controller is gone without an outcome."""
    if not run.root.is_dir():
        return f"the run directory {run.root} was removed: what becomes of the run is written nowhere (squeue --me)"
    found = facts.look(config, run)
    if found.state != "lost":
        return f"{run.root.name} {found.note or 'goes on'}"
    return f"{run.root.name} is lost: {found.why}. See {run.controller_log} and the files in {run.submitit}"
