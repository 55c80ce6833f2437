"""Build the run_started record: the run's main settings, the versions of its packages and its controller's node."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ftslurm.config.schema import Config
from ftslurm.protocol.records import RunStarted
from ftslurm.run.directory import RunDir

if TYPE_CHECKING:  # a submission, which needs the rest of this module, is faster without the core
    from ftslurm.core.state.past import Past

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
    groups = config.groups
    return RunStarted(
        run_id=run.root.name,
        name=config.run.name,
        job_id=job,
        requeues=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        versions=_versions(),
        groups=past.groups if past is not None and past.groups is not None else groups.count,  # `ftslurm scale`
        workers=groups.nodes * groups.workers,
        roles=dict(groups.roles),
        lighthouse=config.lighthouse.kind,
        mode="steps" if config.cluster.kind == "slurm" else config.cluster.kind,
        cluster=config.cluster.kind,
        total_steps=config.job.total_steps,
        host=platform.node(),
        pid=os.getpid(),
        leader=number,
        after=after,
        limits={
            "start": config.health.start_timeout_s,
            "join": config.join_timeout_s,
            "first_step": config.first_step_s,
        },
        parent=config.internal.parent,
        sweep=config.internal.sweep,
    )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed here"
    own = {"torch_cuda": torch_cuda(), "nvidia_driver": nvidia_driver()}
    return found | {name: text for name, text in own.items() if text is not None}


def nvidia_driver() -> str | None:
    """Return the version of this machine's NVIDIA driver, without asking it."""
    with contextlib.suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text(errors="replace")
        if found := re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text):
            return found[1]
    return None


def torch_cuda() -> str | None:
    """Return the CUDA version that the installed torch was built for, without importing it."""
    with contextlib.suppress(OSError, ImportError, ValueError):
        spec = find_spec("torch")
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            text = Path(folder, "version.py").read_text(errors="replace")
            if found := re.search(r"^cuda\b[^=\n]*=\s*'([^']+)'", text, re.MULTILINE):
                return found[1]
    return None
