"""Build the srun commands of a run's steps: one Slurm step per group, in the controller's job or in the group's own."""

from __future__ import annotations

import os
import platform
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ftslurm.config.schema import Config
from ftslurm.core.state.actions import Launch
from ftslurm.core.state.model import Allocation, Place, StepId
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.errors import EnvironmentProblem
from ftslurm.launchers import container, step_command
from ftslurm.launchers.job_command import KEEPER
from ftslurm.launchers.step_processes import Command
from ftslurm.protocol.exit_codes import ExitCode
from ftslurm.run.directory import RunDir
from ftslurm.security import programs, secret_variables
from ftslurm.slurm import commands
from ftslurm.slurm.hosts import expand_hosts

_BESIDE = {
    "FTSLURM_TASK": "0",
    "FTSLURM_LOCAL_TASK": "0",
    "FTSLURM_NODE": platform.node(),
}  # a process beside the controller
PRESENT_S, STARTING_S = 1.0, 15.0  # wait for the guards of a step in adoption: one that was up, one just launched


@dataclass
class SrunLauncher:
    """Launcher of one srun per step. srun carries the control channel; SIGTERM ends it and its tasks within 0.1 s."""

    config: Config
    run: RunDir
    url: str | None = None
    jobs: Mapping[str, str] = field(default_factory=dict)  # name of an allocation -> its id for srun --jobid

    def commands(self, launch: Launch, log_dir: Path) -> list[Command]:
        if launch.id.unit == LIGHTHOUSE and self.config.cluster.kind == "array":
            return [self._lighthouse(launch, log_dir)]
        argv = command(self.config, self.run, launch, log_dir, self._job(launch.place.allocation), self.url)
        env = step_command.environment(self.config, self.run, launch, commands.scrubbed(os.environ), local=False)
        return [_of_a_step(argv, env)]

    def attach(self, step: StepId, place: Place, known: bool) -> Command:
        """Return the srun that attaches to the guards of a running step; it has the layout of that step.

        Args:
            known: the step has been up. A step that has just been launched gets more time.
        """
        lighthouse = step.unit == LIGHTHOUSE
        log_dir = self.run.logs if lighthouse else self.run.attempt(step.unit, step.attempt)
        patience_s = PRESENT_S if known or lighthouse else STARTING_S
        attach = step_command.attach(self.config, step, log_dir, patience_s)
        env = self._without_secrets() | {"FTSLURM_RUN_DIR": str(self.run.root)}
        env = {name: value for name, value in env.items() if name not in ("FTSLURM_STEP", "FTSLURM_TASK")}
        if lighthouse and self.config.cluster.kind == "array":
            return Command(attach, env | _BESIDE, by_order=True)
        srun = commands.srun_command(
            job=self._job(place.allocation),
            name=f"adopt-{step.unit}",
            nodes=place.nodes,
            tasks_per_node=1 if lighthouse else self.config.groups.workers,
            gpus=False,
            chdir=str(Path.cwd()),
            extra=commands.memory_of(self.config.cluster.srun),
        )
        return _of_a_step([*srun, *attach], env)

    def _without_secrets(self) -> dict[str, str]:
        return secret_variables.without(self.config.job.secrets, commands.scrubbed(os.environ))

    def _job(self, allocation: str | None) -> str:
        return os.environ.get("SLURM_JOB_ID", "0") if allocation is None else self.jobs.get(allocation, allocation)

    def _lighthouse(self, launch: Launch, log_dir: Path) -> Command:
        """Return the Lighthouse as a process beside the controller, which may run outside any allocation."""
        env = step_command.environment(self.config, self.run, launch, commands.scrubbed(os.environ), local=False)
        argv = step_command.command(self.config, launch, log_dir, local=False, url=self.url)
        keeper = os.environ.get(KEEPER) or str(os.getpid())
        return Command([*argv, f"--keeper={keeper}"], env | _BESIDE, by_order=True)

    def probe(self, node: str, allocation: str | None = None) -> Command:
        job = self._job(allocation)
        argv = commands.beside(job, "look", node, self.config.cluster.srun)
        env = self._without_secrets() | {"FTSLURM_RUN_DIR": str(self.run.root)}
        argv = [*argv, *programs.module("ftslurm.guard.probe")]
        argv[0] = shutil.which(argv[0]) or argv[0]
        return Command(argv, env)

    def check_nodes(self, nodes: tuple[str, ...], allocation: str | None, now: float) -> Command:
        """Return the srun that runs the commands of health.preflight on each of the nodes, with the job's GPUs."""
        argv = commands.srun_command(
            job=self._job(allocation),
            name="preflight",
            nodes=nodes,
            tasks_per_node=1,
            gpus=bool(self.config.groups.gpus),
            chdir=str(Path.cwd()),
            extra=[*commands.memory_of(self.config.cluster.srun), *(["--no-kill"] if len(nodes) > 1 else [])],
        )
        env = self._without_secrets() | {"FTSLURM_RUN_DIR": str(self.run.root)}
        argv = [*argv, *step_command.node_check(self.config, now)]
        argv[0] = shutil.which(argv[0]) or argv[0]
        return Command(argv, env)

    def gpus(self, group: int, slot: int) -> str:  # noqa: ARG002 a slot is a share of a node
        count = self.config.groups.gpus or 0
        return f"{slot * count}:{count}"


def _of_a_step(argv: list[str], env: Mapping[str, str]) -> Command:
    """Return an srun, from our own PATH (job.env may set another for the script), that outlives a killed controller.

    Since Slurm 26.05 an srun kills its step on SIGPIPE. It keeps the signal blocked if it is started so.
    """
    own = {**env, "SLURM_EXIT_ERROR": str(int(ExitCode.SRUN_FAILED))}
    return Command([shutil.which(argv[0]) or argv[0], *argv[1:]], own, blocked=frozenset({signal.SIGPIPE}))


def command(config: Config, run: RunDir, launch: Launch, log_dir: Path, job: str, url: str | None) -> list[str]:
    """Return the command of one step, with srun; `url` is the Lighthouse's last address, None before the first."""
    group = launch.id.unit != LIGHTHOUSE  # or a standby, which may become one
    return [
        *commands.srun_command(
            job=job,
            name=launch.id.unit,
            nodes=launch.place.nodes,
            tasks_per_node=config.groups.workers if group else 1,
            gpus=group and bool(config.groups.gpus),
            chdir=str(Path.cwd()),
            extra=[*container.options(config, run), *config.cluster.srun]
            if group
            else commands.memory_of(config.cluster.srun),
        ),
        *step_command.command(config, launch, log_dir, local=False, url=url),
    ]


def allocation(config: Config, environ: dict[str, str] | os._Environ[str]) -> Allocation:
    """Return the allocation of this process; without nodes in array mode, where groups have jobs of their own.

    Raises:
        EnvironmentProblem: this process runs in no allocation.
    """
    job, nodes = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NODELIST")
    if config.cluster.kind == "array":
        return Allocation(job or platform.node(), ())
    if not job or not nodes:
        raise EnvironmentProblem(
            "cluster.controller=here needs to run inside a Slurm allocation (sbatch or salloc), and this is none: "
            "SLURM_JOB_ID and SLURM_JOB_NODELIST are not set. Submit sbatch/steps.sbatch "
            "(`ftslurm templates sbatch` writes it), or use cluster.controller=job"
        )
    return Allocation(job, tuple(expand_hosts(nodes)))
