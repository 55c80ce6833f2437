"""Reads how a run stands: its journal, and what Slurm says of a run that does not write one."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from ftslurm.config.schema import Config
from ftslurm.controller.resume_state import Story
from ftslurm.monitor.starting import with_last_lines
from ftslurm.monitor.status import RunStatus, with_hooks
from ftslurm.run import liveness
from ftslurm.run.directory import RunDir
from ftslurm.submission import jobs_of_run


@dataclass(frozen=True)
class Look:
    """A run, as seen once."""

    status: RunStatus
    moment: float  # up to which time that is known, in unix seconds
    note: str | None  # why the run has not started, or its controller is not heard, for a person


def look(config: Config, run: RunDir, harmless: bool = False) -> Look:
    """Read how the run stands.

    Args:
        harmless: without control characters, which could steer a terminal; JSON and repr escape them themselves.

    Raises:
        EnvironmentProblem: the journal cannot be read.
    """
    note = jobs_of_run.in_queue(run) if config.cluster.kind == "slurm" and not run.events.exists() else None
    story = Story(run)
    story.read()
    status = with_last_lines(story.shown() if harmless else story.status, run)
    status = with_hooks(replace(status, run_id=status.run_id or run.root.name), run)
    running = status.outcome == "running"
    if running and status.started is not None:
        note = jobs_of_run.abandoned(config, run) or jobs_of_run.silence(config, run)
    return Look(status, liveness.moment(config, run) if running else time.time(), note)
