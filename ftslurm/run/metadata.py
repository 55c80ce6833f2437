"""Build the run_started record: the run's main settings and its controller's node."""

from __future__ import annotations

import os
import platform

from ftslurm.config.schema import Config
from ftslurm.core.state.run_state import RunState
from ftslurm.protocol.records import RunStarted
from ftslurm.run.directory import RunDir


def run_started(
    config: Config, run: RunDir, job: str, number: int | None, state: RunState, after: str | None = None
) -> RunStarted:
    """Return the record with which a controller begins.

    Args:
        job: the Slurm job in which the controller runs.
        number: the controller's number as leader (leadership.py).
        state: the state from which it goes on.
        after: how the controller before it crashed.
    """
    groups = config.groups
    return RunStarted(
        run_id=run.root.name,
        name=config.run.name,
        job_id=job,
        requeues=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        groups=sum(not unit.retired for unit in state.groups),  # `ftslurm scale` changes it
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
