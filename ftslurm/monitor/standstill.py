"""Does a group stand still? The journal cannot say it: nothing is written while nothing happens. The clock can."""

from __future__ import annotations

from dataclasses import replace

from ftslurm.core.groups.progress_lines import every_s
from ftslurm.monitor.status import TOLD_EVERY_S, RunStatus
from ftslurm.monitor.status_groups import GroupStatus

_STILL_S, _STILL_STEPS = 5.0, 5  # a group stands still when it has not stepped for so long, and for so many steps
_STILL_UNKNOWN_S = 60.0  # the same before it is known how long its steps take; the first may have told that it is more


def aged(status: RunStatus, now: float) -> RunStatus:
    """The status as it is at this time, if nothing has been heard since: groups that stand still have no rate."""
    if status.outcome != "running":
        return status
    heard = now - every_s(len(status.groups)) + TOLD_EVERY_S  # their next lines may not be due yet
    return replace(status, groups=tuple(_aged(g, now, heard, status.started) for g in status.groups))


def _aged(group: GroupStatus, now: float, heard: float, started: float | None) -> GroupStatus:
    group = replace(group, still_s=None)
    if not group.stepping or group.stepped is None:
        return group
    rate, still = group.steps_per_s, now - group.stepped
    if rate:
        limit = max(_STILL_S, _STILL_STEPS / rate)
    else:
        limit = max(_STILL_UNKNOWN_S, group.stepped - (group.stepped if started is None else started))
    return replace(group, steps_per_s=None, still_s=still) if heard - group.stepped > limit else group
