"""Build the run_started record: the run's main settings, the versions of its packages and its controller's node."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from ftslurm.config.schema import Config
from ftslurm.core.state.past import Past
from ftslurm.protocol.records import RunStarted
from ftslurm.run.directory import RunDir

_LIMITS = ("start_timeout_s", "join_timeout_s", "first_step_s", "wait_timeout_s")
_PACKAGES = ("ftslurm", "torch", "torchft", "submitit", "hydra-core")


def run_started(
    config: Config, run: RunDir, job: str, number: int | None, past: Past | None = None, after: str | None = None
) -> RunStarted:
    """Return the record with which a controller begins.

    Args:
        job: the Slurm job in which the controller runs.
        number: the controller's number as leader (leadership.py).
        past: state that earlier controllers have left.
        after: how the controller before it crashed.
    """
    groups, local = config.groups, config.cluster.kind == "local"
    return RunStarted(
        run_id=run.root.name,
        name=config.run.name,
        job_id=job,
        requeues=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        versions=_versions(),
        groups=past.groups if past is not None and past.groups is not None else groups.count,  # `ftslurm scale`
        workers=groups.nodes * groups.workers,
        min_groups=groups.min,
        roles=dict(groups.roles),
        lighthouse=config.lighthouse.kind,
        mode="local" if local else config.cluster.mode,
        cluster=config.cluster.kind,
        total_steps=config.job.total_steps,
        host=platform.node(),
        pid=os.getpid(),
        leader=number,
        after=after,
        limits={f"health.{name}": getattr(config.health, name) for name in _LIMITS},
        parent=config.run.parent,
    )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed here"
    return found
