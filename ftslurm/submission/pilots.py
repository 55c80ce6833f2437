"""Runs a pilot: a process that holds its job's nodes for a group and reports Slurm's signals.

Run by Slurm, as the batch process of each job that pilot_jobs.py has submitted (ftslurm.entry calls `hold`), or by
`ftslurm run` in a task of an array that was submitted by hand (array_task.py calls `stay`). The group's step is not the
pilot's child: the controller starts it with `srun --jobid`.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import suppress

from ftslurm.config.schema import Config
from ftslurm.errors import EnvironmentProblem
from ftslurm.guard import processes
from ftslurm.run import inbox, leadership, liveness
from ftslurm.run.configuration import of_run
from ftslurm.run.directory import RunDir
from ftslurm.security import process_title
from ftslurm.slurm import client
from ftslurm.slurm.commands import job_name
from ftslurm.submission.lead import Candidate

# Without a controller a pilot that may lead gives its nodes back after this long, or ten times that limit of a worker.
ALONE_S = 600.0
REPORTS, REPORT_S = 5, 1.0  # how often the end of its job is reported, and the time between two reports
LINGERS_S = 60.0  # how long a pilot without a group waits for Slurm or the controller to end or requeue its job


def hold(run: RunDir) -> int:
    """Run a pilot and return its exit code. If the controller's own job is lost this pilot may carry the controller.

    Raises:
        FtslurmError: the run directory cannot be read, or belongs to another user.
    """
    process_title.of_run("pilot", run.root.name)
    stay(of_run(run), run)
    return 0


def stay(config: Config, run: RunDir) -> None:
    """Hold the nodes of this job until the run is over or Slurm wants them back; report the latter to the controller.

    At Slurm's warning before the time limit (USR2) and at SIGTERM (preemption) the controller lets the group leave.
    The pilot waits for that: if it ended at once, Slurm would kill the group's step with it.
    """
    signals = list[int]()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, lambda caught, _: signals.append(caught))
    candidate = Candidate(config, run)
    released = run.released / job_name(os.environ)  # exists when the run does not need the job any more
    with suppress(OSError):
        released.unlink()  # left by an earlier start of this job
    report, watch = _Report(run), liveness.Watch()
    next_check, until, received = time.monotonic() + candidate.every_s, float("inf"), None
    while time.monotonic() < until:
        signal.sigtimedwait([], 0.5)
        while signals and until == float("inf"):
            received = signal.Signals(signals.pop(0))
            if received != signal.SIGUSR2:  # USR2: the time limit is near, with time to find the group another place
                until = time.monotonic() + config.stop.grace_s + LINGERS_S
                candidate.make_way()
        candidate.tend()
        if received is not None and not candidate.makes_way:
            report.leaving(received)
        if until < float("inf") and not _group_is_here(run) and _job_ends():
            break  # Slurm ends the job: the sooner this process ends, the sooner the nodes are free
        if time.monotonic() >= next_check:
            next_check = time.monotonic() + candidate.every_s
            if over(run, config, watch, candidate.may_lead) or (released.exists() and not candidate.leads):
                break
    candidate.finish()


def over(run: RunDir, config: Config, watch: liveness.Watch, may_lead: bool) -> bool:
    """Return whether the run has ended, or `watch` has seen no controller for a long time.

    Args:
        may_lead: another controller may still come; else the run has ended when the workers have ended themselves.
    """
    if leadership.is_over(run) or not run.root.exists():
        return True
    silent_s = watch.silent_s(run.alive)
    return silent_s is not None and silent_s > (
        max(ALONE_S, 10 * config.orphan_after_s) if may_lead else config.orphan_after_s
    )


class _Report:
    """Reports to each leader that this job is about to end, several times: a new leader may not know the job yet."""

    def __init__(self, run: RunDir) -> None:
        self.run, self.next = run, 0.0
        self.told = Counter[object]()  # by leader and signal

    def leaving(self, received: signal.Signals) -> None:
        """Send the report if it is due."""
        with suppress(OSError, EnvironmentProblem):
            now = leadership.newest(self.run), received
            if self.told[now] < REPORTS and time.monotonic() >= self.next:
                inbox.put(self.run.inbox, "leaving", name=job_name(os.environ), signal=received.name)
                self.told[now] += 1
                self.next = time.monotonic() + REPORT_S


def _group_is_here(run: RunDir) -> bool:
    """Return whether a process of the group in this job is on this node."""
    job = os.environ["SLURM_JOB_ID"]
    return any(theirs.get("SLURM_JOB_ID") == job for _, theirs in processes.of_run(str(run.root)))


def _job_ends() -> bool:
    """Return whether Slurm has begun to end this job."""
    return client.job_state(job_name(os.environ))[0] not in ("RUNNING", "UNKNOWN", "")
