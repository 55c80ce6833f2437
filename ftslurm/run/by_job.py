"""Finds the run of a Slurm job, from every id that Slurm shows: of the controller, of a pilot, of an array or its task.

The run's own files are asked first, so that a job that Slurm has forgotten is found too. They do not have the number by
which Slurm itself calls a task of an array (SLURM_JOB_ID): squeue alone knows whose it is.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from ftslurm.run import facts
from ftslurm.run.directory import RunDir
from ftslurm.security.names import is_job
from ftslurm.slurm import client, commands
from ftslurm.slurm.parse import QueuedJob, read_jobs

ANSWER_S = 20.0  # longest wait for squeue


def job_in(name: str) -> str | None:
    """Return the job of an id that Slurm shows: 81 for 81, 81.0, 81.batch and 81_[2-5%2]; None: it is no such id."""
    job = re.sub(r"(\.(\d+|batch|extern|interactive)|_\[[\d,%:-]+\])$", "", name, flags=re.ASCII)
    return job if is_job(job) else None


def of_job(job: str, runs: Sequence[RunDir]) -> Path | None:
    """Return the directory of the run that a job belongs to; None: none is known.

    Args:
        job: its id, as from job_in.
        runs: where to look, the first match wins; a job that Slurm knows is found elsewhere, too.
    """
    return _by_files(job, runs) or _by_squeue(job, runs)


def run_of(jobs: Iterable[QueuedJob]) -> Path | None:
    """Return the run directory of jobs of one run, from the place of their batch scripts; None: they do not say."""
    for job in jobs:
        script = Path(job.script)
        if script.is_absolute() and script.parent.name == "submitit":
            return script.parent.parent
    return None


def _by_files(job: str, runs: Sequence[RunDir]) -> Path | None:
    """Find a job of the controller, or one that was submitted for groups."""
    for run in runs:
        names = {facts.job_of(run), *run.pools()}
        with suppress(OSError):
            names |= {path.name.rpartition("_log.")[0].rpartition("_")[0] for path in run.submitit.glob("*_log.*")}
        arrays = {name.partition("_")[0] for name in names if name}
        if job in names | arrays:
            begun = facts.started(run)
            if begun is None or begun.cluster != "local":  # which has a process, whose number is no job
                return run.root
    return None


def _by_squeue(job: str, runs: Sequence[RunDir]) -> Path | None:
    answer = client.call(commands.job_found(job), ANSWER_S) if shutil.which("squeue") else client.Answer()
    jobs, _ = read_jobs(answer.out)
    marks = {found.mark for found in jobs if found.mark is not None}
    return next((run.root for run in runs if marks and run.mark() in marks), None) or run_of(jobs)
