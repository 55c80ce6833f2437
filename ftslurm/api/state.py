"""Reads how a run stands: its journal, and what Slurm says of a run that does not write one."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import BinaryIO

from ftslurm.config.schema import Config
from ftslurm.errors import RunNotFound
from ftslurm.monitor import logs
from ftslurm.monitor.log_files import Wanted, present
from ftslurm.monitor.log_page import View
from ftslurm.monitor.starting import with_last_lines
from ftslurm.monitor.status import RunStatus, with_hooks, without_controller
from ftslurm.monitor.story import Story
from ftslurm.report.run_report import Report, read_report
from ftslurm.run import liveness
from ftslurm.run.directory import RunDir
from ftslurm.submission import jobs_of_run


@dataclass(frozen=True)
class Look:
    """A run, as seen once."""

    status: RunStatus
    moment: float  # up to which time that is known, in unix seconds
    note: str | None  # why the run has not started, or its controller is not heard, for a person


def look(config: Config, run: RunDir, raw: bool = False) -> Look:
    """Read how the run stands.

    Args:
        raw: leave control characters in it, which could steer a terminal; JSON and repr escape them.

    Raises:
        EnvironmentProblem: the journal cannot be read.
    """
    status, note = with_last_lines(Story(run, raw).status, run), None
    status = with_hooks(replace(status, run_id=status.run_id or run.root.name), run)
    if status.outcome == "running":
        state, note = jobs_of_run.state(config, run)
        if state not in jobs_of_run.GOING:
            status = without_controller(status, state, (note or "").removeprefix(jobs_of_run.NEVER))
        elif status.started is not None:
            note = jobs_of_run.silence(config, run)
        elif config.cluster.kind != "local":
            note = jobs_of_run.in_queue(run)
    return Look(status, liveness.moment(config, run) if status.outcome in ("running", "lost") else time.time(), note)


def report(config: Config, run: RunDir) -> Report:
    """Return where the time of a run went; of one that has not started, why.

    Raises:
        EnvironmentProblem: the journal cannot be read.
    """
    found = read_report(config, run)
    if found.history.outcome != "running":
        return found
    seen = look(config, run)
    reason = seen.status.reason or seen.note or ""
    return replace(found, history=replace(found.history, outcome=seen.status.outcome, reason=reason))


def show_logs(config: Config, run: RunDir, wanted: Wanted, out: BinaryIO, view: View, follow: bool = False) -> int:
    """Print logs as logs.show does; of a run that never started, say why it has none.

    Raises:
        RunNotFound: there is no such log.
    """
    if not present(run, wanted):
        check_started(config, run)
    there = jobs_of_run.still_there(config, run) if follow else lambda: jobs_of_run.abandoned(config, run) is None
    left_out = logs.show(run, wanted, out, view, follow=follow, until=lambda: not there())
    if follow and not present(run, wanted):
        check_started(config, run)  # it was cancelled meanwhile
    return left_out


def check_started(config: Config, run: RunDir) -> None:
    """Raise RunNotFound for a run that never started, with why: it has no logs, and nothing in it has failed."""
    if (never := jobs_of_run.never_started(config, run)) is not None:
        raise RunNotFound(f"run {run.root.name} has no logs, it never started: {never.reason}")
