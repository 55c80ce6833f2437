"""Runs one task of a job array that was submitted by hand (sbatch/array.sbatch).

Run by `ftslurm run` in every task of the array, with the same command. The tasks share one run. Each holds its nodes as
a pilot does (pilots.py) and may carry the controller (lead.py).
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from ftslurm.config.schema import Config, fixed_standbys
from ftslurm.errors import EnvironmentProblem
from ftslurm.run import configuration, leadership
from ftslurm.run.directory import RunDir
from ftslurm.run.entries import PART
from ftslurm.security import owned_files
from ftslurm.slurm.commands import job_name
from ftslurm.submission import pilots, submit


def array_of(config: Config, environ: Mapping[str, str]) -> str | None:
    """Return the job array of this process if the run's groups are to run in its tasks, else None.

    The controller of the run is to run here.
    """
    is_task = config.job_per_group and "SLURM_ARRAY_TASK_ID" in environ
    return environ.get("SLURM_ARRAY_JOB_ID") if is_task else None


def stay(run: RunDir) -> int:
    """Be a pilot of the run until the run is over or does not need this task any more.

    Returns:
        The exit code of the run; 0 if it goes on.
    """
    config = configuration.of_run(run)
    print(f"run {run.root}, task {job_name(os.environ)}", flush=True)
    if not leadership.is_over(run):
        pilots.stay(config, run)
    outcome = leadership.outcome(run)
    print(f"the run has {outcome}" if outcome else "this task ends, the run goes on", flush=True)
    return leadership.code(run)


def check(config: Config, environ: Mapping[str, str]) -> None:
    """Refuse an array with too few tasks or nodes, and settings for groups of different kinds.

    Raises:
        EnvironmentProblem: the array does not fit; the message says what to type instead.
    """
    groups, standbys = config.groups, fixed_standbys(config)
    need = groups.count + standbys
    have = int(environ.get("SLURM_ARRAY_TASK_COUNT", need))
    if have < need:
        also = f" and {standbys} standbys" if standbys else ""
        raise EnvironmentProblem(
            f"groups.count={groups.count}{also} need {need} tasks, the array has {have}: ask for more "
            f"(sbatch --array=0-{need - 1}), or change groups.count"
        )
    if config.cluster.ranges:
        raise EnvironmentProblem("cluster.ranges: the tasks of one array are all alike; leave it out")
    nodes = int(environ.get("SLURM_JOB_NUM_NODES", groups.nodes))
    if nodes < groups.nodes:
        raise EnvironmentProblem(
            f"groups.nodes={groups.nodes}, each task of the array has {nodes}: ask for more "
            f"(sbatch --nodes={groups.nodes}), or change groups.nodes"
        )


def join(config: Config) -> RunDir:
    """Return the run directory of all tasks. The first task creates it under another name and renames it.

    Raises:
        EnvironmentProblem: the directory cannot be created, or another run has it.
        Distrusted: other users could replace it, or have.
    """
    array = config.internal.pilots
    root = Path(config.run.dir or f"{config.run.root}/{config.run.name}-{array}")
    run = RunDir(root)
    owned_files.check_way(root, config.run.trust)
    if not run.config.exists():
        config.run.dir = str(root)
        made = submit.create(config, place=root.with_name(f".{root.name}.{secrets.token_hex(4)}{PART}"))
        try:
            made.root.rename(root)
        except OSError as error:
            shutil.rmtree(made.root, ignore_errors=True)
            if not run.config.exists():  # else another task has been faster
                raise EnvironmentProblem(f"the run directory {root} cannot be made: {error.strerror}") from error
    if configuration.of_run(run).internal.pilots != array:
        raise EnvironmentProblem(f"run.dir={root} exists already: every run needs a directory of its own")
    return run
