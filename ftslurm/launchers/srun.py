"""Steps through srun: one step per group, in the allocation that this process runs in."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from ftslurm import slurm
from ftslurm.config import Config
from ftslurm.core.model import Allocation, Launch
from ftslurm.errors import EnvironmentProblem
from ftslurm.launchers import program
from ftslurm.launchers.children import Command
from ftslurm.rundir import RunDir


@dataclass
class SrunLauncher:
    """One srun per step; it carries the control channel and dies of SIGTERM with all its tasks in 0.1 s."""

    config: Config
    run: RunDir
    url: str | None = None
    kill_signal: int | None = signal.SIGTERM

    def commands(self, launch: Launch, log_dir: Path) -> list[Command]:
        argv = command(self.config, launch, log_dir, os.environ["SLURM_JOB_ID"], self.url)
        argv[0] = shutil.which(argv[0]) or argv[0]  # by our own PATH: job.env may give the script another
        env = program.environment(self.config, self.run, launch, slurm.scrubbed(os.environ), local=False)
        return [Command(argv, {**env, "SLURM_EXIT_ERROR": str(slurm.SRUN_FAILED)})]


def command(config: Config, launch: Launch, log_dir: Path, job: str, url: str | None) -> list[str]:
    """The whole command of one step, srun and what it runs; `url` is the Lighthouse's, if it has had one."""
    group = launch.group is not None
    return [
        *slurm.srun_command(
            job=job,
            name=launch.id.unit,
            nodes=launch.place.nodes,
            tasks_per_node=config.groups.workers if group else 1,
            gpus=group and bool(config.groups.gpus),
            chdir=str(Path.cwd()),
            extra=config.cluster.srun if group else [],
        ),
        *program.command(config, launch, log_dir, local=False, url=url),
    ]


def allocation(environ: dict[str, str] | os._Environ[str]) -> Allocation:
    """The allocation this process runs in.

    Raises:
        EnvironmentProblem: it runs in none.
    """
    job, nodes = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NODELIST")
    if not job or not nodes:
        raise EnvironmentProblem(
            "cluster.controller=here needs to run inside a Slurm allocation (sbatch or salloc), and this is none: "
            "SLURM_JOB_ID and SLURM_JOB_NODELIST are not set. Submit sbatch/steps.sbatch, or use cluster.controller=job"
        )
    return Allocation(job, tuple(slurm.expand_hosts(nodes)))
