"""Submits shell commands as Slurm batch jobs, with the script that submitit writes.

This is the only module that uses submitit, and it uses a private function of it, which writes the sbatch script that
`plan` shows and `sbatch --test-only` tries. submitit's public `submit` pickles a Python function into a file that the
job unpickles: a user who can write that file can run code in the job, and the job's process would be submitit's.
pyproject.toml bounds submitit's version to those with which it was tried (docs/versions.md).
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Mapping
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
        folder: for the script and the output of the job.
        parameters: those of submitit's SlurmExecutor.

    Returns:
        The job's id.

    Raises:
        SbatchRefused: sbatch has refused it, or cannot be run.
        EnvironmentProblem: sbatch has accepted it, and its answer has no job id that can be read.
    """
    script = folder / f"submission_file_{secrets.token_hex(8)}.sh"
    script.write_text(sbatch_script(folder, command, parameters, tasks), encoding="utf-8", errors="surrogateescape")
    try:
        done = subprocess.run(
            commands.submit(str(script)),
            env=commands.for_sbatch(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise SbatchRefused(f"sbatch cannot be started: {error.strerror}") from error
    if done.returncode:
        raise SbatchRefused(message(done.stderr))
    if (job := read_job_id(done.stdout)) is None:  # a site's wrapper may add lines, or leave out --parsable
        raise EnvironmentProblem(
            f"sbatch has accepted the job, but which one it is cannot be read from its answer "
            f"{done.stdout.strip()!r:.300}: squeue --me shows it"
        )
    return job


def sbatch_script(folder: Path, command: str, parameters: Mapping[str, Any], tasks: int = 1) -> str:
    """Return the sbatch script that submit_batch would submit."""
    from submitit.slurm.slurm import _make_sbatch_string

    array = {"map_count": tasks, "array_parallelism": tasks} if tasks > 1 else {}
    return str(_make_sbatch_string(command, folder, **parameters, **array))


def message(text: str) -> str:
    """Return what sbatch says, without its name before each line."""
    lines = [line.removeprefix("sbatch: ") for line in text.splitlines() if line.startswith("sbatch: ")]
    return "; ".join(line.removeprefix("error: ").strip() for line in lines) or text.strip().rpartition("\n")[2]
