"""Small questions about units, and how the state gets a changed one."""

from __future__ import annotations

from collections.abc import Iterable

from ftslurm.config.schema import Config, members, role_of
from ftslurm.core.state.model import LIVE, Phase, Place, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.core.state.values import replace


def tasks_of(unit: Unit, config: Config) -> int:
    """How many tasks a step of this unit has."""
    return step_tasks(unit.name, config)


def step_tasks(unit: str, config: Config) -> int:
    """How many tasks a step of the unit of this name has."""
    return 1 if unit == LIGHTHOUSE else config.groups.nodes * config.groups.workers


def independent(config: Config) -> bool:
    """Whether groups have no quorum: none waits for another, heals from it, or is too late when it has finished."""
    return config.lighthouse.kind == "none"


def serves(group: int | None, config: Config) -> bool:
    """Whether this group only serves the others (groups.serve)."""
    if group is None or not config.groups.serve:
        return False
    role = role_of(config.groups.roles, group)
    return role is not None and role.name in config.groups.serve


def pool_of(group: int | None, config: Config) -> int:
    """Which jobs a group may get its nodes from: 0, or i + 1 if it is in cluster.ranges[i]."""
    if group is None:
        return 0
    ranges = (i + 1 for i, one in enumerate(config.cluster.ranges) if group in members(one.groups))
    return next(ranges, 0)


def places(units: Iterable[Unit], *, but: Unit, phases: frozenset[Phase] = LIVE) -> list[Place]:
    """Where all of these units but one are that are in one of these phases."""
    others = (u for u in units if u.phase in phases and u.name != but.name)
    return [u.place for u in others if u.place is not None]


def swap(state: RunState, *units: Unit) -> RunState:
    """The state with units replaced by their new selves, or with new ones."""
    table = state.table
    for unit in units:
        table = table.put(unit)
    return replace(state, table=table)
