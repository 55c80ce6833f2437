"""Submits commands with submitit as Slurm batch jobs.

This is the only module that uses submitit, and it uses two of its private functions. submitit's public `submit` pickles
a Python function into a file that the job unpickles: a user who can write that file can run code in the job, and the
job's process would be submitit's. `_submit_command` submits a shell command instead. `_make_sbatch_string`
writes the sbatch script, which `plan` shows and `sbatch --test-only` tries. pyproject.toml bounds submitit's version to
those with which both were tried (docs/versions.md).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from ftslurm.errors import EnvironmentProblem
from ftslurm.slurm import commands
from ftslurm.slurm.parse import read_job_id


class SbatchRefused(EnvironmentProblem):
    """sbatch has refused a job; the message is sbatch's own."""


def submit_batch(folder: Path, command: str, parameters: Mapping[str, Any], tasks: int = 1) -> str:
    """Submit a shell command as a batch job, or as a job array of `tasks` tasks.

    Args:
        folder: where submitit writes the script and the job its output.
        parameters: those of submitit's SlurmExecutor.

    Returns:
        The job's id.

    Raises:
        SbatchRefused: sbatch has refused it, or cannot be run.
        EnvironmentProblem: sbatch has accepted it, and its answer has no job id that can be read.
    """
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    executor: Any = submitit.SlurmExecutor(folder)
    executor.update_parameters(**parameters)
    executor.parameters.update(_array(tasks))  # update_parameters does not take map_count
    executor._make_submission_command = lambda script: commands.submit(str(script))
    executor._get_job_id_from_submission_command = _job_id
    try:
        # submitit prints sbatch's message; so does the caller.
        with redirect_stderr(StringIO()), _environment(commands.for_sbatch(os.environ)):
            return str(executor._submit_command(command).job_id)
    except (FailedJobError, FailedSubmissionError, subprocess.CalledProcessError) as error:
        raise SbatchRefused(message(str(getattr(error, "stderr", None) or error))) from error


def _job_id(answer: str | bytes) -> str:
    """Return the job's id from sbatch's answer. A site's wrapper may add lines, or leave out --parsable."""
    text = answer if isinstance(answer, str) else answer.decode(errors="replace")
    if (job := read_job_id(text)) is None:
        raise EnvironmentProblem(
            f"sbatch has accepted the job, but which one it is cannot be read from its answer {text.strip()!r:.300}: "
            f"squeue --me shows it"
        )
    return job


def sbatch_script(folder: Path, command: str, parameters: Mapping[str, Any], tasks: int = 1) -> str:
    """Return the sbatch script that submit_batch would submit."""
    from submitit.slurm.slurm import _make_sbatch_string

    return str(_make_sbatch_string(command, folder, **parameters, **_array(tasks)))


@contextmanager
def _environment(environ: Mapping[str, str]) -> Iterator[None]:
    """Replace the environment of this process, which submitit hands on to sbatch, and sbatch to the job."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _array(tasks: int) -> dict[str, int]:
    return {"map_count": tasks, "array_parallelism": tasks} if tasks > 1 else {}


def message(text: str) -> str:
    """Return the output of sbatch, without submitit's text around it."""
    lines = [line.removeprefix("sbatch: ") for line in text.splitlines() if line.startswith("sbatch: ")]
    return "; ".join(line.removeprefix("error: ").strip() for line in lines) or text.strip().rpartition("\n")[2]
