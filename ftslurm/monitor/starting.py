"""What a group that commits no steps yet waits for: since when, and how long it may."""

from __future__ import annotations

from ftslurm.core.groups.reports import SILENT
from ftslurm.core.state.model import Phase
from ftslurm.monitor.event_text import SCRIPT_WAITS
from ftslurm.monitor.status import GroupStatus, RunStatus
from ftslurm.protocol.records import StepStarting
from ftslurm.protocol.value_class import Value
from ftslurm.words import by_count

SETTINGS = {  # of the limits that the journal has
    "start": "health.start_timeout_s",
    "join": "job.longest_step_s",
    "first_step": "job.longest_step_s",
}


class Wait(Value):
    """What a group waits for."""

    what: str
    since: float | None  # in unix seconds
    limit_s: float | None = None  # counted from `since`; None: no limit
    setting: str | None = None  # from which the limit follows
    warns: bool = False  # the limit is that of a warning: nothing is ended


def wait_of(group: GroupStatus, status: RunStatus) -> Wait | None:
    """Return what a group waits for; None: it steps, it ends, or it is over."""
    if status.outcome != "running":
        return None
    if group.phase is Phase.RUNNING and group.aside:
        return Wait("a sign of life of its rank 0, the others go on without it", group.aside)
    if group.joined and group.phase is not Phase.PENDING:
        return None
    match group.phase:
        case Phase.PENDING:
            if group.backoff_s is not None:
                return Wait("its next launch", group.since, round(group.backoff_s, 3), "restart.backoff_s")
            return Wait(group.waiting_for or "launch", group.since)
        case Phase.STARTING:
            at = group.starting
            limited = at is None or at.stage in ("launch", "check", "import", "store")
            what = "workers" if at is None else _of_start(at)
            return _limited(what, group, status, "start") if limited else Wait(what, group.since)
        case Phase.RUNNING if status.lighthouse is not None:
            first = not any(other.joined for other in status.groups)
            stage = "script" if group.starting is None else group.starting.stage
            what = SCRIPT_WAITS.get(stage, "its first step")
            return _limited(what, group, status, "first_step" if first else "join")
        case _:
            return None


def _limited(what: str, group: GroupStatus, status: RunStatus, name: str) -> Wait:
    limit_s = status.limits.get(name)
    return Wait(what, group.since, limit_s, SETTINGS[name] if limit_s is not None else None, name == "first_step")


def _of_start(at: StepStarting) -> str:
    whom = by_count(at.lacks, f"rank {next(iter(at.missing), 0)}", f"{at.lacks} of {at.tasks} ranks")
    return {
        "launch": f"{whom}: launch" if at.lacks < at.tasks else f"{whom}: launch; {SILENT}",
        "check": "the check of its nodes (health.preflight)",
        "import": f"{whom}: imports",
        "lighthouse": "the Lighthouse",
        "store": "the store of rank 0",
        "others": f"group {at.other}: all begin together",
    }.get(at.stage, at.stage)
