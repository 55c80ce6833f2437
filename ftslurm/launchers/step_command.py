"""Build the command line and the environment of every task, for Slurm and for one machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from math import ceil
from pathlib import Path

from ftslurm.config import node_commands
from ftslurm.config.process_groups import TRACE, TRACE_PREFIX, nccl_variables, process_group
from ftslurm.config.schema import (
    Config,
    binds_itself,
    interpreter,
    slurm_knows_gpus,
    words,
)
from ftslurm.core.lineage import continuity
from ftslurm.core.state.actions import Launch
from ftslurm.core.state.model import StepId
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.guard import interfaces
from ftslurm.run.directory import RunDir
from ftslurm.security import programs, secret_variables

CONNECT_S = 60.0  # the least for connecting to the Lighthouse or a manager
# torchft sleeps for the limit of a quorum divided by its retries before it asks a Lighthouse again that was down, and
# without any the death of a Lighthouse during a quorum would end every group.
RETRY_S = 0.1


def command(config: Config, launch: Launch, log_dir: Path, *, local: bool, state: RunState | None = None) -> list[str]:
    """Return the argument list of one task.

    Args:
        log_dir: where the task writes its logs.
        local: whether everything is on this machine.
        state: of the run: a Lighthouse is told how far it is.
    """
    shared = [
        f"--log-dir={log_dir}",
        f"--log-max-mb={config.logs.max_mb}",
        f"--heartbeat-s={config.heartbeat_s}",
        f"--orphan-after-s={config.orphan_after_s}",
        f"--adoptable={int(not local)}",
        *(["--ends-job"] if (config.cluster.kind, config.cluster.controller) == ("slurm", "job") else []),
    ]
    if launch.id.unit == LIGHTHOUSE:
        settings = {
            "kind": config.lighthouse.kind,
            "attempt": launch.id.attempt,
            "highest": 0 if state is None else continuity.reached(state, config),
            "min_replicas": config.groups.min,
            "join_timeout_ms": round(1000 * config.late_after_s),
            "heartbeat_timeout_ms": round(1000 * config.silent_after_s),
            "quorum_tick_ms": 20,  # how often the Lighthouse looks for a quorum; its CPU load is negligible
        }
        return programs.module("ftslurm.lighthouse", *shared, f"--lighthouse={json.dumps(settings)}")
    gpus = config.groups.gpus or 0
    if launch.check:
        share = gpus * (config.groups.per_node if is_standby(launch) else 1)
        check = {"nodes": launch.check, "gpus": share, "commands": node_commands.commands(config)}
        shared.append(f"--check={json.dumps(check)}")
    if launch.group is not None and (workers := bind(config)):
        shared += [f"--bind={workers}"]
    if is_standby(launch):  # the assignment brings its share of the GPUs and CPUs
        own = ["--standby", *([f"--imports={','.join(config.standby.imports)}"] if config.standby.imports else [])]
    else:
        own = [f"--gpus={launch.place.slot * gpus}:{gpus}"] if gpus and not local else []
    python = interpreter(config.job, sys.executable if config.cluster.container_image is None else "python3")
    return programs.module("ftslurm.worker", *shared, *own, python=python)


def bind(config: Config) -> int | None:
    """Return how many workers of a group on a node are bound to the CPUs near their GPUs; None: they are not bound."""
    groups = config.groups
    return groups.workers if groups.gpus and groups.bind == "auto" and not binds_itself(config) else None


def gpus(config: Config, group: int, slot: int) -> str:
    """Return the share of the GPUs that a standby gets when it becomes this group: FIRST:COUNT."""
    count, local = config.groups.gpus or 0, config.local  # there all nodes are this machine
    return f"{(group * config.groups.nodes if local else slot) * count}:{count}"


def attach(config: Config, step: StepId, log_dir: Path, patience_s: float) -> list[str]:
    """Return the argument list of one task that attaches a new controller to a running step (ftslurm.guard.attach)."""
    return programs.module(
        "ftslurm.guard.attach",
        f"--log-dir={log_dir}",
        f"--step={step}",
        f"--orphan-after-s={config.orphan_after_s}",
        f"--patience-s={patience_s}",
    )


def is_standby(launch: Launch) -> bool:
    """Return whether a step is a standby."""
    return launch.id.unit.startswith("standby-")


def environment(config: Config, run: RunDir, launch: Launch, base: Mapping[str, str], *, local: bool) -> dict[str, str]:
    """Return the environment of every task of a step; the assignment adds the rest when the ranks are known.

    Variables that torch reads during its import must be here, the user's among them.
    """
    torchft, secrets, ours = config.torchft, config.job.secrets, config.lighthouse.kind == "ftslurm"
    every = 0 if config.independent else config.health.compare_every  # worker/comparison.py
    parts = config.health.compare_parts
    if launch.id.unit == LIGHTHOUSE:
        base, secrets = secret_variables.without(secrets, base), []
    return {
        "OMP_NUM_THREADS": str(config.groups.cpus_per_worker),  # torchrun's default is 1; each worker uses its share
        **nccl_variables(config),
        **({TRACE: str(run.attempt(launch.id.unit, launch.id.attempt) / TRACE_PREFIX)} if config.groups.gpus else {}),
        **{name: value for name, value in base.items() if not name.startswith("FTSLURM_")},  # we may be in a worker
        "TORCHFT_TIMEOUT_SEC": str(torchft.timeout_s),
        "TORCHFT_QUORUM_TIMEOUT_SEC": str(ceil(config.quorum_timeout_s)),
        "TORCHFT_CONNECT_TIMEOUT_SEC": str(ceil(max(CONNECT_S, config.orphan_after_s))),
        "TORCHFT_QUORUM_RETRIES": str(ceil(config.quorum_timeout_s / RETRY_S)),
        **{name: str(value) for name, value in config.job.env.items()},
        "FTSLURM_CLUSTER": "local" if local else "slurm",
        "FTSLURM_RUN_DIR": str(run.root),
        "FTSLURM_RUN_ID": run.root.name,
        "FTSLURM_STEP": str(launch.id),
        "FTSLURM_LIGHTHOUSE": config.lighthouse.kind,
        # Our Lighthouse hears of each death from the controller: managers' heartbeats (worker/torchft_patches.py) are
        # as rare as those of the guards, five in config.silent_after_s or more.
        **({"FTSLURM_MANAGER_HEARTBEAT_MS": str(round(1000 * config.heartbeat_s))} if ours else {}),
        "FTSLURM_PROCESS_GROUP": process_group(config),
        "FTSLURM_TRANSPORT": torchft.transport,
        "FTSLURM_HEAL": torchft.heal,
        "FTSLURM_GPUS": "slurm" if slurm_knows_gpus(config) else "node",
        **(
            {interfaces.WANTED: ",".join(words(config.cluster.interface))}
            if config.cluster.interface and not local
            else {}
        ),
        **({secret_variables.NAMES: ",".join(secrets)} if secrets else {}),
        **({"FTSLURM_FENCE": ",".join(str(step) for step in launch.fence)} if launch.fence else {}),
        **({"FTSLURM_COMPARE_EVERY": str(every), "FTSLURM_COMPARE_PARTS": " ".join(parts)} if every else {}),
        "FTSLURM_BUFFERS": config.health.buffers,
        "FTSLURM_CHECKPOINT_DIR": config.checkpoint.dir or str(run.checkpoints),
        "FTSLURM_CHECKPOINT_EVERY": str(config.checkpoint.every),
        "FTSLURM_CHECKPOINT_KEEP": str(config.checkpoint.keep),
    }
