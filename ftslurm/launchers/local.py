"""This machine alone as a scheduler (`cluster=local`): a step is a process per worker, and there are no jobs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ftslurm.config.schema import Config, nodes_needed
from ftslurm.core.state.actions import Ask, Launch, Probe
from ftslurm.core.state.model import Allocation
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.guard.gpus import VARIABLES, names
from ftslurm.launchers import step_command
from ftslurm.launchers.scheduler import Command, Request, Scheduler
from ftslurm.run.directory import RunDir
from ftslurm.security import programs, secret_variables
from ftslurm.slurm.evidence import read_probe


class ThisMachine(Scheduler):
    """K * W processes for a group of K nodes x W workers; each node is this machine under another name."""

    direct = True

    def __init__(self, config: Config, run: RunDir) -> None:
        self.config, self.run = config, run

    def allocation(self) -> Allocation:
        """Return this machine under one name per node that the run needs: placement and ranks work as on Slurm."""
        return Allocation("local", tuple(f"local{i}" for i in range(nodes_needed(self.config))))

    def start(self, launch: Launch, log_dir: Path) -> list[Command]:
        argv = step_command.command(self.config, launch, log_dir, local=True, state=self.state)
        base = step_command.environment(self.config, self.run, launch, os.environ, local=True)
        workers = 1 if launch.id.unit == LIGHTHOUSE else self.config.groups.workers
        out = []
        for index, node in enumerate(launch.place.nodes):
            for local in range(workers):
                task = {"FTSLURM_TASK": str(index * workers + local), "FTSLURM_LOCAL_TASK": str(local)}
                name, gpus = self._gpus(launch, index)
                out.append(Command(argv, {**base, **task, "FTSLURM_NODE": node, name: ",".join(gpus)}))
        return out

    def request(self, ask: Ask) -> Request:
        assert isinstance(ask, Probe)  # nothing else is asked without jobs
        node, env = ask.node, secret_variables.without(self.config.job.secrets, os.environ)
        env |= {"FTSLURM_RUN_DIR": str(self.run.root), "FTSLURM_NODE": node}
        return Request(ask, programs.module("ftslurm.guard.probe"), lambda answer: [read_probe(node, answer.text)], env)

    def _gpus(self, launch: Launch, node_index: int) -> tuple[str, list[str]]:
        """Return the GPUs of one (group, node) pair; pairs share none. A standby sees all until it becomes a group."""
        per_node, group = self.config.groups.gpus or 0, launch.group
        name, visible = visible_gpus(os.environ)
        if group is None:
            return name, visible if per_node and step_command.is_standby(launch) else []
        first = (group * self.config.groups.nodes + node_index) * per_node
        return name, visible[first : first + per_node]


def visible_gpus(environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the GPUs that this process may use, and before them the variable that names them."""
    for name in VARIABLES:
        if name in environ:
            return name, [gpu for gpu in environ[name].split(",") if gpu]
    return next(iter(names().items()))
