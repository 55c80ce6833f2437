"""Build the commands of steps as local processes, one per worker (`cluster=local`): one machine, no Slurm."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ftslurm.config.schema import Config, nodes_needed
from ftslurm.core.state.actions import Launch
from ftslurm.core.state.model import Allocation
from ftslurm.core.state.unit_names import LIGHTHOUSE, LOCAL_ALLOCATION
from ftslurm.guard.gpus import VARIABLES, names
from ftslurm.launchers import step_command
from ftslurm.launchers.step_processes import Command
from ftslurm.run.directory import RunDir
from ftslurm.security import programs, secret_variables


@dataclass
class LocalLauncher:
    """Launcher of K * W processes for a group of K nodes x W workers; each node is this machine under another name."""

    config: Config
    run: RunDir
    url: str | None = None

    def commands(self, launch: Launch, log_dir: Path) -> list[Command]:
        argv = step_command.command(self.config, launch, log_dir, local=True, url=self.url)
        base = step_command.environment(self.config, self.run, launch, os.environ, local=True)
        workers = 1 if launch.id.unit == LIGHTHOUSE else self.config.groups.workers
        out = []
        for index, node in enumerate(launch.place.nodes):
            for local in range(workers):
                task = {"FTSLURM_TASK": str(index * workers + local), "FTSLURM_LOCAL_TASK": str(local)}
                name, gpus = self._gpus(launch, index)
                out.append(Command(argv, {**base, **task, "FTSLURM_NODE": node, name: ",".join(gpus)}))
        return out

    def probe(self, node: str, allocation: str | None = None) -> Command:  # noqa: ARG002 there is one allocation
        known = secret_variables.without(self.config.job.secrets, os.environ)
        env = {**known, "FTSLURM_RUN_DIR": str(self.run.root), "FTSLURM_NODE": node}
        return Command(programs.module("ftslurm.guard.probe"), env)

    def check_nodes(self, nodes: tuple[str, ...], allocation: str | None, now: float) -> Command:  # noqa: ARG002
        """Return the command that runs those of health.preflight once: all nodes are this machine."""
        known = secret_variables.without(self.config.job.secrets, os.environ)
        env = {**known, "FTSLURM_RUN_DIR": str(self.run.root), "FTSLURM_NODE": nodes[0]}
        return Command(step_command.node_check(self.config, now), env)

    def gpus(self, group: int, slot: int) -> str:  # noqa: ARG002 nodes are virtual here
        count = self.config.groups.gpus or 0
        return f"{group * self.config.groups.nodes * count}:{count}"

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


def allocation(config: Config) -> Allocation:
    """Return this machine under one name per node that the run needs, so that placement and ranks work as on Slurm."""
    return Allocation(LOCAL_ALLOCATION, tuple(f"local{i}" for i in range(nodes_needed(config))))
