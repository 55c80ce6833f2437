"""The command line and the environment of every task, on Slurm and on one machine alike."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from ftslurm.config.schema import Config, interpreter
from ftslurm.core.state.actions import Launch
from ftslurm.core.state.model import StepId
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.launchers.step_processes import Command
from ftslurm.run.directory import RunDir
from ftslurm.security import secret_variables


class Launcher(Protocol):
    """Builds the commands of a run's steps: with srun (srun.py) or as local processes (local.py)."""

    def commands(self, launch: Launch, log_dir: Path) -> list[Command]:
        """The processes of a step."""

    def probe(self, node: str, allocation: str | None = None) -> Command:
        """A process that lists the run's processes on a node (ftslurm.guard.probe)."""

    def gpus(self, group: int, slot: int) -> str:
        """The share of the GPUs that a standby gets when it becomes this group: FIRST:COUNT."""


def command(config: Config, launch: Launch, log_dir: Path, *, local: bool, url: str | None) -> list[str]:
    """The argument list of one task.

    Args:
        log_dir: where the task writes its logs.
        local: whether everything is on this machine.
        url: the Lighthouse's address, if it has had one: its successor takes the same port if it can.
    """
    health = config.health
    shared = [
        f"--log-dir={log_dir}",
        f"--log-max-mb={config.logs.max_mb}",
        f"--heartbeat-s={health.heartbeat_s}",
        f"--orphan-after-s={health.orphan_after_s}",
        "--eof-ends" if local else "--adoptable",
        *(["--ends-job"] if not local and (config.cluster.mode, config.cluster.controller) == ("steps", "job") else []),
    ]
    if launch.id.unit == LIGHTHOUSE:
        lighthouse = config.lighthouse
        settings = {
            "kind": lighthouse.kind,
            "local": local,
            "port": lighthouse.port if url is None else urlsplit(url).port,
            "may_move": url is not None,  # who asks for a port is told that it is taken; a running training goes on
            "min_replicas": config.groups.min,
            "join_timeout_ms": lighthouse.join_timeout_ms,
            "heartbeat_timeout_ms": lighthouse.heartbeat_timeout_ms,
            "quorum_tick_ms": lighthouse.quorum_tick_ms,
            "lineage": lighthouse.lineage,
        }
        return [sys.executable, "-m", "ftslurm.lighthouse", *shared, f"--lighthouse={json.dumps(settings)}"]
    shared += ["--pilot"] if launch.place.allocation is not None else []
    gpus = config.groups.gpus or 0
    if is_standby(launch):  # its share of the GPUs comes with the assignment
        own = ["--standby", *(["--cuda"] if config.standby.cuda and gpus else [])]
        own += [f"--imports={','.join(config.standby.imports)}"] if config.standby.imports else []
    else:
        own = [f"--gpus={launch.place.slot * gpus}:{gpus}"] if gpus and not local else []
    return [*interpreter(config.job, sys.executable), "-m", "ftslurm.worker", *shared, *own]


def attach(config: Config, step: StepId, log_dir: Path, patience_s: float) -> list[str]:
    """The argument list of one task of a new controller's way to a step that runs (ftslurm.guard.attach)."""
    return [
        *(sys.executable, "-m", "ftslurm.guard.attach", f"--log-dir={log_dir}"),
        *(f"--step={step}", f"--orphan-after-s={config.health.orphan_after_s}", f"--patience-s={patience_s}"),
    ]


def is_standby(launch: Launch) -> bool:
    """Whether a step waits for a group that fails."""
    return launch.id.unit.startswith("standby-")


def environment(config: Config, run: RunDir, launch: Launch, base: Mapping[str, str], *, local: bool) -> dict[str, str]:
    """The environment of every task of a step; the rest comes with the assignment, when the ranks are known.

    What torch reads while it is imported has to be here, the user's variables among it.
    """
    torchft, secrets = config.torchft, config.job.secrets
    if launch.id.unit == LIGHTHOUSE:
        base, secrets = secret_variables.without(secrets, base), []
    env = {
        **{name: value for name, value in base.items() if not name.startswith("FTSLURM_")},  # we may be in a worker
        "OMP_NUM_THREADS": str(config.groups.cpus_per_worker),  # torchrun's default is 1; each worker uses its share
        "TORCHFT_TIMEOUT_SEC": str(torchft.timeout_s),
        "TORCHFT_QUORUM_TIMEOUT_SEC": str(torchft.quorum_timeout_s),
        "TORCHFT_CONNECT_TIMEOUT_SEC": str(torchft.connect_timeout_s),
        "TORCHFT_QUORUM_RETRIES": str(torchft.quorum_retries),
        **{name: str(value) for name, value in config.job.env.items()},
        "FTSLURM_CLUSTER": "local" if local else "slurm",
        "FTSLURM_RUN_DIR": str(run.root),
        "FTSLURM_RUN_ID": run.root.name,
        "FTSLURM_STEP": str(launch.id),
        "FTSLURM_LIGHTHOUSE": config.lighthouse.kind,
        **({secret_variables.NAMES: ",".join(secrets)} if secrets else {}),
        **({"FTSLURM_FENCE": ",".join(str(step) for step in launch.fence)} if launch.fence else {}),
        "FTSLURM_CHECKPOINT_DIR": config.checkpoint.dir or str(run.checkpoints),
        "FTSLURM_CHECKPOINT_EVERY": str(config.checkpoint.every),
        "FTSLURM_CHECKPOINT_KEEP": str(config.checkpoint.keep),
    }
    if "OMP_NUM_THREADS" in base and "OMP_NUM_THREADS" not in config.job.env:
        env["OMP_NUM_THREADS"] = base["OMP_NUM_THREADS"]
    return env
