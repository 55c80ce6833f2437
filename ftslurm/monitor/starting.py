"""What a group that commits no steps yet waits for: since when, how long it may, and the last line that it printed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ftslurm.core.state.model import Phase
from ftslurm.core.state.unit_names import group_unit
from ftslurm.monitor.event_text import SCRIPT_WAITS
from ftslurm.monitor.status import GroupStatus, RunStatus
from ftslurm.protocol.records import StepStarting
from ftslurm.protocol.value_class import Value
from ftslurm.run.directory import RunDir
from ftslurm.run.last_words import printed_last
from ftslurm.words import by_count

LONGEST = 80  # characters of the last line
LOGS_READ = 64  # a run may have 1,000 groups that start
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
        return Wait("a sign of life of its node, the others go on without it", group.aside)
    if group.joined and group.phase is not Phase.PENDING:
        return None
    match group.phase:
        case Phase.PENDING:
            if group.backoff_s is not None:
                return Wait("its next launch", group.since, round(group.backoff_s, 3), "restart.backoff_s")
            return Wait(group.waiting_for or "launch", group.since)
        case Phase.STARTING:
            stage = group.starting
            limited = stage is None or stage.stage in ("launch", "check", "import", "store")
            what = "workers" if stage is None else _of_start(stage)
            return _limited(what, group, status, "start") if limited else Wait(what, group.since)
        case Phase.RUNNING if status.lighthouse is not None:
            what = _of_script(group.starting)
            if any(other.joined for other in status.groups):
                return _limited(what, group, status, "join")
            return replace(_limited(what, group, status, "first_step"), warns=True)
        case _:
            return None


def log_of_start(group: GroupStatus, run: RunDir) -> Path:
    """Return the log of the rank that the start of a group waits for, else of rank 0."""
    rank = _rank(group.starting) if group.starting is not None else 0
    return run.rank_log(group_unit(group.group), group.attempt or 0, rank)


def with_last_lines(status: RunStatus, run: RunDir) -> RunStatus:
    """Return the status with the last line that each starting group has printed."""
    found = dict[int, str]()
    for group in status.groups:
        going = group.attempt is not None and group.phase in (Phase.STARTING, Phase.RUNNING) and not group.joined
        if going and status.outcome == "running" and len(found) < LOGS_READ:
            found[group.group] = printed_last(log_of_start(group, run), LONGEST)
    return replace(status, groups=tuple(replace(g, last_line=found.get(g.group) or None) for g in status.groups))


def _limited(what: str, group: GroupStatus, status: RunStatus, name: str) -> Wait:
    limit_s = status.limits.get(name)
    return Wait(what, group.since, limit_s, SETTINGS[name] if limit_s is not None else None)


def _rank(at: StepStarting) -> int:
    return at.missing[0] if at.missing else 0


def _of_start(at: StepStarting) -> str:
    whom = by_count(at.lacks, f"rank {_rank(at)}", f"{at.lacks} of {at.tasks} ranks")
    return {
        "launch": f"{whom}: launch",
        "check": "the check of its nodes (health.preflight)",
        "import": f"{whom}: imports",
        "lighthouse": "the Lighthouse",
        "store": "the store of rank 0",
        "others": f"group {at.other}: all begin together",
        "eviction": "the end of its last attempt in the Lighthouse",
    }.get(at.stage, at.stage)


def _of_script(at: StepStarting | None) -> str:
    return SCRIPT_WAITS.get("script" if at is None else at.stage, "its first step")
