"""Steps as local processes, one per worker (`cluster=local`): everything on this machine, no Slurm."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from ftslurm.config import Config
from ftslurm.core.model import Allocation, Launch
from ftslurm.launchers import program
from ftslurm.launchers.children import Command
from ftslurm.rundir import RunDir

GPUS = "FTSLURM_LOCAL_GPUS"  # the GPUs the run may use; submitit's local executor hides CUDA_VISIBLE_DEVICES


@dataclass
class LocalLauncher:
    """A group of K nodes x W workers becomes K * W processes; each node is this machine under another name."""

    config: Config
    run: RunDir
    url: str | None = None
    kill_signal: int | None = signal.SIGTERM  # guards obey the `kill` message; this is for what is no guard yet

    def commands(self, launch: Launch, log_dir: Path) -> list[Command]:
        argv = program.command(self.config, launch, log_dir, local=True, url=self.url)
        base = program.environment(self.config, self.run, launch, os.environ, local=True)
        base.pop("SUBMITIT_EXECUTOR", None)
        workers = 1 if launch.group is None else self.config.groups.workers
        out = []
        for index, node in enumerate(launch.place.nodes):
            for local in range(workers):
                task = {"FTSLURM_TASK": str(index * workers + local), "FTSLURM_LOCAL_TASK": str(local)}
                gpus = "" if launch.group is None else ",".join(self._gpus(launch.group, index))
                out.append(Command(argv, {**base, **task, "FTSLURM_NODE": node, "CUDA_VISIBLE_DEVICES": gpus}))
        return out

    def _gpus(self, group: int, node_index: int) -> list[str]:
        """The share of one (group, node) pair; shares of all pairs are disjoint."""
        per_node = self.config.groups.gpus or 0
        first = (group * self.config.groups.nodes + node_index) * per_node
        return visible_gpus(os.environ)[first : first + per_node]


def visible_gpus(environ: dict[str, str] | os._Environ[str]) -> list[str]:
    """The NVIDIA GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    for variable in (GPUS, "CUDA_VISIBLE_DEVICES"):
        if variable in environ:
            return [gpu for gpu in environ[variable].split(",") if gpu]
    return [str(i) for i in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]


def allocation(config: Config) -> Allocation:
    """This machine under as many names as the groups need nodes: placement and ranks are what they are on Slurm."""
    count = config.groups.count * config.groups.nodes + config.cluster.spare_nodes
    return Allocation("local", tuple(f"local{i}" for i in range(count)))
