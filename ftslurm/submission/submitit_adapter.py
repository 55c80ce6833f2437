"""Writes the batch scripts of a run with submitit, and gives them to sbatch.

This is the only module that uses submitit, and it uses a private function of it. submitit's public `submit` pickles a
Python function into a file that the job unpickles: a user who can write that file can run code in the job, and the
job's process would be submitit's. pyproject.toml bounds submitit's version to those with which it was tried
(docs/versions.md).
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftslurm.config.schema import Config
from ftslurm.errors import EnvironmentProblem
from ftslurm.launchers.job_command import JobRole, job_command
from ftslurm.run.directory import RunDir
from ftslurm.slurm import client, commands
from ftslurm.slurm.parse import read_job_id
from ftslurm.submission import setup_lines


class SbatchRefused(EnvironmentProblem):
    """sbatch has refused a job; the message is sbatch's own."""


def submit_script(folder: Path, text: str) -> str:
    """Submit a batch script. Return the job's id.

    Args:
        folder: for the script.

    Raises:
        SbatchRefused: sbatch has refused it, or cannot be run.
        EnvironmentProblem: sbatch has accepted it, and its answer has no job id that can be read.
    """
    script = folder / f"submission_file_{secrets.token_hex(8)}.sh"
    script.write_text(text, encoding="utf-8", errors="surrogateescape")
    answer = client.call(commands.submit(str(script)), None, commands.for_sbatch(os.environ))
    if not answer.ok:
        raise SbatchRefused(message(answer.err))
    if (job := read_job_id(answer.out)) is None:  # a site's wrapper may add lines, or leave out --parsable
        raise EnvironmentProblem(
            f"sbatch has accepted the job, but which one it is cannot be read from its answer "
            f"{answer.out.strip()!r:.300}: squeue --me shows it"
        )
    return job


def sbatch_script(config: Config, run: RunDir, role: JobRole, options: Mapping[str, Any], tasks: int = 1) -> str:
    """Return the script of a batch job, or of a job array of `tasks` tasks.

    Nodes and tasks go through `options`: as submitit's own parameters they would make its job wait for the results of
    tasks that never start.

    Args:
        options: of sbatch.
    """
    from submitit.slurm.slurm import _make_sbatch_string

    return str(
        _make_sbatch_string(
            batch_command(run, role),
            run.submitit,
            job_name=config.run.name,
            use_srun=False,
            time=None,  # submitit's default would be five minutes
            wckey=None,
            setup=setup_lines.script(config.cluster.setup),
            stderr_to_stdout=True,
            # sbatch removes a backslash from a line of a script, whatever quotes are around it.
            additional_parameters={
                name: value.replace("\\", "\\\\") if isinstance(value, str) else value
                for name, value in options.items()
            },
            **({"map_count": tasks, "array_parallelism": tasks} if tasks > 1 else {}),
        )
    )


def batch_command(run: RunDir, role: JobRole) -> str:
    """Return the last line of a batch script (ftslurm.entry): its process becomes Python, as Slurm's warning would kill
    a shell."""
    return f"exec {shlex.join(job_command(run, role))} || exit"


def message(text: str) -> str:
    """Return what sbatch says, without its name before each line."""
    said = re.findall(r"^sbatch: (?:error: )?(.*?)\s*$", text, re.MULTILINE)
    return "; ".join(said) or text.strip().rpartition("\n")[2]
