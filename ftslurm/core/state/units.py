"""Facts about units that follow from the configuration."""

from __future__ import annotations

from ftslurm.config.schema import Config, members, role_of
from ftslurm.core.state.model import Unit
from ftslurm.core.state.unit_names import LIGHTHOUSE


def tasks_of(unit: Unit, config: Config) -> int:
    """Return the number of tasks of a step of this unit."""
    return step_tasks(unit.name, config)


def step_tasks(unit: str, config: Config) -> int:
    """Return the number of tasks of a step of the unit of this name."""
    return 1 if unit == LIGHTHOUSE else config.groups.nodes * config.groups.workers


def serves(group: int | None, config: Config) -> bool:
    """Return whether this group only serves the others (groups.serve)."""
    if group is None or not config.groups.serve:
        return False
    role = role_of(config.groups.roles, group)
    return role is not None and role.name in config.groups.serve


def pool_of(group: int | None, config: Config) -> int:
    """Return the pool of jobs that a group gets its nodes from: 0, or i + 1 if it is in cluster.ranges[i]."""
    if group is None:
        return 0
    ranges = (i + 1 for i, one in enumerate(config.cluster.ranges) if group in members(one.groups))
    return next(ranges, 0)
