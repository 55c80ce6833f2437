"""What a run is and what it runs on, for whoever reads its journal in a year."""

from __future__ import annotations

import os
import platform

from ftslurm.config.schema import Config
from ftslurm.core.state.past import Past
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import versions


def about(config: Config, run: RunDir, job: str, number: int | None, past: Past | None = None) -> dict[str, object]:
    """The fields of `run_started`. job: the Slurm job that the controller runs in; number: see leadership.py."""
    groups, local = config.groups, config.cluster.kind == "local"
    return {
        "run_id": run.root.name,
        "name": config.run.name,
        "job_id": job,
        "requeues": int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        "versions": versions(),
        "groups": past.groups if past is not None and past.groups is not None else groups.count,  # `ftslurm scale`
        "workers": groups.nodes * groups.workers,
        "min_groups": groups.min,
        "roles": dict(groups.roles),
        "lighthouse": config.lighthouse.kind,
        "mode": "local" if local else config.cluster.mode,
        "cluster": config.cluster.kind,
        "total_steps": config.job.total_steps,
        "host": platform.node(),
        "pid": os.getpid(),
        "leader": number,
    }
