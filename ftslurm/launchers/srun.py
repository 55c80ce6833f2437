"""Slurm as a scheduler: one Slurm step per group, in the controller's job or in the group's own."""

from __future__ import annotations

import os
import platform
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ftslurm.config.schema import Config
from ftslurm.core.state.actions import Ask, Attach, Launch
from ftslurm.core.state.events import Event, JobLeaving
from ftslurm.core.state.model import SRUN, Allocation, Evidence, Place
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.errors import EnvironmentProblem
from ftslurm.launchers import container, slurm_requests, step_command
from ftslurm.launchers.job_command import KEEPER
from ftslurm.launchers.scheduler import PATIENCE_S, AskOwnNodes, Command, Request, Scheduler
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.exit_codes import ExitCode
from ftslurm.run.directory import RunDir
from ftslurm.security import secret_variables
from ftslurm.slurm import client, commands
from ftslurm.slurm.evidence import asked_by_slurm, job_ends, read_srun
from ftslurm.slurm.hosts import expand_hosts

_BESIDE = {
    "FTSLURM_TASK": "0",
    "FTSLURM_LOCAL_TASK": "0",
    "FTSLURM_NODE": platform.node(),
}  # a process beside the controller
PRESENT_S, STARTING_S = 1.0, 15.0  # wait for the guards of a step in adoption: one that was up, one just launched
NODE_LOST = ("Requested node configuration is not available", "Node failure on")  # srun: the job may have lost a node
SRUN_RPCS = 3  # for the job, for the step, and to end it
CAUSES = {"SIGTERM": Cause.PREEMPTED, "SIGINT": Cause.PREEMPTED, "SIGUSR1": Cause.PREEMPTED}  # else: time limit


class Slurm(Scheduler):
    """One srun per step, which carries the control channel; SIGTERM ends it and its tasks within 0.1 s."""

    def __init__(self, config: Config, run: RunDir) -> None:
        self.config, self.run, self.job = config, run, os.environ.get("SLURM_JOB_ID")
        self.mark = run.mark()
        self.pools = run.pools()  # pool of each known job, by name; a site may remove the jobs' comments
        self.unread = False  # whether squeue's last answer had lines that could not be read
        self.noted: list[str] = []  # the nodes of cluster.exclude_file that sbatch has excluded last, the newest first

    def allocation(self) -> Allocation:
        return allocation(self.config, os.environ)

    def leaves(self) -> Mapping[str, str]:
        return client.leaves() if self.config.groups.nodes > 1 else {}

    # --- steps -------------------------------------------------------------------------------------------------------

    def start(self, launch: Launch, log_dir: Path) -> list[Command]:
        argv = step_command.command(self.config, launch, log_dir, local=False, state=self.state)
        env = step_command.environment(self.config, self.run, launch, commands.scrubbed(os.environ), local=False)
        group = launch.id.unit != LIGHTHOUSE  # or a standby, which may become one
        if not group and self.config.job_per_group:  # beside the controller, which may run outside any allocation
            keeper = f"--keeper={os.environ.get(KEEPER) or os.getpid()}"
            return [Command([*argv, keeper], env | _BESIDE, by_order=True)]
        name, groups = launch.id.unit, self.config.groups
        if group:
            extra = [*container.options(self.config, self.run), *self.config.cluster.srun]
            srun = self.srun(name, launch.place, groups.workers, bool(groups.gpus), extra)
        else:
            srun = self.srun(name, launch.place)
        return [_of_a_step([*srun, *argv], env)]

    def attach(self, attach: Attach) -> Command:
        """Return the srun that attaches to the guards of a running step; it has the layout of that step."""
        step, lighthouse = attach.id, attach.id.unit == LIGHTHOUSE
        log_dir = self.run.logs if lighthouse else self.run.attempt(step.unit, step.attempt)
        # A step that has just been launched gets more time than one that has been up.
        patience_s = PRESENT_S if attach.slurm_step is not None or lighthouse else STARTING_S
        argv = step_command.attach(self.config, step, log_dir, patience_s)
        env = {name: value for name, value in self.environ().items() if name not in ("FTSLURM_STEP", "FTSLURM_TASK")}
        if lighthouse and self.config.job_per_group:
            return Command(argv, env | _BESIDE, by_order=True)
        srun = self.srun(f"adopt-{step.unit}", attach.place, 1 if lighthouse else self.config.groups.workers)
        return _of_a_step([*srun, *argv], env)

    def srun(
        self, name: str, place: Place, tasks: int = 1, gpus: bool = False, extra: Sequence[str] | None = None
    ) -> list[str]:
        """Return an srun without its program; extra: None: the user's arguments for memory."""
        extra = commands.memory_of(self.config.cluster.srun) if extra is None else extra
        return commands.srun_command(self.id_of(place.allocation), name, place.nodes, tasks, gpus, extra)

    def environ(self) -> dict[str, str]:
        """Return the environment of a program of ours on a node, without the user's secrets."""
        env = secret_variables.without(self.config.job.secrets, commands.scrubbed(os.environ))
        return env | {"FTSLURM_RUN_DIR": str(self.run.root)}

    def printed(self, line: str) -> Iterator[Evidence | Event | Ask]:
        if any(words in line for words in NODE_LOST):
            yield AskOwnNodes()
        if self.job is not None and (why := job_ends(line, self.job)) is not None:
            yield from asked_by_slurm(why, self.config, batch=commands.is_batch(os.environ), by=SRUN)
        if (evidence := read_srun(line)) is not None:
            yield evidence

    # --- jobs --------------------------------------------------------------------------------------------------------

    def request(self, ask: Ask) -> Request:
        return slurm_requests.request(self, ask)

    def id_of(self, allocation: str | None) -> str:
        """Return a job's id for srun --jobid: a task of an array has one of its own. None: the controller's job."""
        if allocation is None:
            return self.job or "0"
        job = None if self.state is None else self.state.job_pool.by_name.get(allocation)
        return allocation if job is None else job.id or allocation

    def reported(self, command: Mapping[str, Any]) -> list[Event]:
        """Return that a job is about to end. A pilot reports it several times: this controller may be new."""
        name, sign = str(command.get("name")), str(command.get("signal"))
        event = JobLeaving(name, CAUSES.get(sign, Cause.TIME_LIMIT), f"Slurm sent {sign} to it")
        return [event] if name in self.pools else []

    def cancel(self, names: Sequence[str]) -> list[str]:
        """Return the command that ends jobs. Release the running tasks of an array submitted by hand: they complete."""
        if self.config.internal.pilots is None:
            return commands.cancel(*names)
        with suppress(OSError):
            self.run.released.mkdir(mode=0o700, exist_ok=True)
            for name in names:
                (self.run.released / name).touch(mode=0o600)
        return commands.cancel(*names, pending_only=True)

    def end(self, jobs: Sequence[str]) -> None:
        """Cancel the run's jobs, those that were just submitted, and that of the controller if it waits."""
        known = {} if self.state is None else self.state.job_pool.by_name
        names = (*jobs, *(name for name in self.run.pools() if name not in known))
        if names:
            client.call(self.cancel(names), PATIENCE_S)
        own = self.run.job()
        if self.config.job_per_group and own is not None and own.isdigit() and own != self.job:
            client.cancel(own, pending_only=True, timeout_s=PATIENCE_S)


def allocation(config: Config, environ: Mapping[str, str]) -> Allocation:
    """Return the allocation of this process; without nodes in array mode, where groups have jobs of their own.

    Raises:
        EnvironmentProblem: this process runs in no allocation.
    """
    job, nodes = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NODELIST")
    if config.job_per_group:
        return Allocation(commands.job_name(environ) if job else platform.node(), ())
    if not job or not nodes:
        raise EnvironmentProblem(
            "cluster.controller=here needs to run inside a Slurm allocation (sbatch or salloc), and this is none: "
            "SLURM_JOB_ID and SLURM_JOB_NODELIST are not set. Submit sbatch/steps.sbatch "
            "(`ftslurm templates sbatch` writes it), or use cluster.controller=job"
        )
    return Allocation(job, tuple(expand_hosts(nodes)))


def _of_a_step(argv: list[str], env: Mapping[str, str]) -> Command:
    """Return an srun, from our own PATH (job.env may set another for the script), that outlives a killed controller.

    Since Slurm 26.05 an srun kills its step on SIGPIPE. It keeps the signal blocked if it is started so.
    """
    own = {**env, "SLURM_EXIT_ERROR": str(int(ExitCode.SRUN_FAILED))}
    words = [shutil.which(argv[0]) or argv[0], *argv[1:]]
    return Command(words, own, blocked=frozenset({signal.SIGPIPE}), rpcs=SRUN_RPCS)
