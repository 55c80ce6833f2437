"""Build the message `assign` (ftslurm.protocol.messages), which a group's step gets when its ranks are known."""

from __future__ import annotations

import contextlib
import os

from ftslurm.config.schema import Config, most_groups, role_of, script_arguments
from ftslurm.core.state.actions import Assign
from ftslurm.core.state.model import StepId
from ftslurm.core.state.unit_names import group_unit
from ftslurm.launchers import step_command
from ftslurm.protocol import messages
from ftslurm.run.directory import RunDir
from ftslurm.security import sharing


def assignment(config: Config, run: RunDir, action: Assign) -> bytes:
    """Return the line for all tasks of a step; link the log of a standby step into the group's attempt."""
    job, gpus = config.job, config.groups.gpus or 0
    unit = group_unit(action.group)
    log_dir = run.attempt(unit, action.attempt)
    if action.id.unit != unit:
        with contextlib.suppress(OSError):  # the worker reports the error, with the path
            sharing.make_folder(log_dir)
            mine, log = run.step_log(action.id.unit, action.id.attempt), run.step_log(unit, action.attempt)
            log.symlink_to(os.path.relpath(mine, log_dir))
    assign = messages.Assign(
        group=action.group,
        attempt=action.attempt,
        step=str(StepId(unit, action.attempt)),
        fence=tuple(str(step) for step in action.fence),
        log_dir=str(log_dir),
        gpus=None if action.id.unit == unit or not gpus else step_command.gpus(config, action.group, action.slot),
        bind=None if action.id.unit == unit else step_command.bind(config),
        lighthouse=action.lighthouse,
        script=job.script,
        module=job.module,
        args=tuple(script_arguments(job.args)),
        ranks=action.ranks,
        run_id=run.root.name,
        groups=most_groups(config),
        max_restarts=config.restart.max_per_group,
        role=role_of(config.groups.roles, action.group),
        servers=action.servers,
    )
    return messages.encode(assign)
