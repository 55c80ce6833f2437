"""What does a person read about an event? One line, or nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.core.model import Phase
from ftslurm.journal import Event, integer, names, number, text
from ftslurm.rundir import LIGHTHOUSE
from ftslurm.status import GroupStatus, RunStatus, verdict

# Ends that were asked for: nobody has to look at a log.
_ORDERLY = {"cancelled": "was stopped", "time_limit": "was stopped: time limit", "preempted": "was preempted"}


def describe(event: Event, status: RunStatus) -> str | None:
    """The line for one event, where `status` already contains it; None for those the live table shows well enough."""
    match event.get("event"):
        case "run_started":
            return _started(event)
        case "allocation_granted":
            return f"allocation {event.get('allocation')}: {few(names(event, 'nodes'), 8)}"
        case "allocation_lost":
            return f"allocation {event.get('allocation')} is lost{_because(event)}"
        case "step_launched":
            return _launched(event, status)
        case "step_ready" if event.get("unit") == LIGHTHOUSE:
            return f"the Lighthouse is up after {seconds(number(event, 'seconds'))}"
        case "group_joined":
            return _joined(event, status)
        case "step_exited":
            return _exited(event, status)
        case "restart_scheduled":
            wait = (number(event, "due") or 0.0) - (number(event, "time") or 0.0)
            if wait < 1:
                return None  # the launch follows at once and says it
            return f"group {event.get('group')}: attempt {event.get('attempt')} will start in {seconds(wait)} (backoff)"
        case "group_given_up":
            return f"group {event.get('group')} is given up{_because(event)}"
        case "node_excluded":
            return f"node {event.get('node')} is used no more{_because(event)}"
        case "node_restored":
            return f"node {event.get('node')} is used again{_because(event)}"
        case "fault_injected":
            step = integer(event, "step")
            at = f" at step {step}" if step is not None else ""
            return f"drill: {event.get('kind')} injected into group {event.get('group')}{at}"
        case "quorum_refused":
            return f"the Lighthouse waits{_because(event)}"
        case "command":
            return f"{event.get('what')}: {text(event, 'reason') or event.get('by')}"
        case "run_finished":
            counts = f"{plural(status.step, 'step')}, {plural(status.restarts, 'restart')}"
            return f"the run {ended(status.outcome)} ({counts}){_because(event)}"
    return None


def _started(event: Event) -> str:
    groups, workers = integer(event, "groups"), integer(event, "workers")
    said = [plural(groups, "group") if groups is not None else "groups unknown"]
    if workers is not None:
        said[0] += f" of {plural(workers, 'worker')}"
    if event.get("cluster") == "local":
        said.append("on this machine")
    elif event.get("job_id") is not None:
        said.append(f"Slurm job {event['job_id']}")
    return f"run {text(event, 'run_id') or ''} starts: {', '.join(said)}"


def _launched(event: Event, status: RunStatus) -> str | None:
    attempt, nodes = integer(event, "attempt") or 0, few(names(event, "nodes"))
    group = _group(event, status)
    if attempt > 0:
        what = f"group {group.group}" if group else _unit(event)
        down = number(event, "down_s")
        after = "" if down is None else f", {seconds(down)} after attempt {attempt - 1} failed"
        return f"{what} relaunched as attempt {attempt} on {nodes}{after}"
    if group is None or any(g.attempt is None for g in status.groups):
        return None  # told once, when all are
    everywhere = few(tuple(dict.fromkeys(node for g in status.groups for node in g.nodes)))
    count = len(status.groups)
    return f"{'the group' if count == 1 else f'all {count} groups'} launched on {everywhere}"


def _joined(event: Event, status: RunStatus) -> str | None:
    group, step = event.get("group"), integer(event, "step")
    size = integer(event, "participants")
    quorum = f" ({plural(size, 'group')} in the quorum)" if size is not None else ""
    if integer(event, "attempt"):
        away, since_launch = number(event, "recovery_s"), number(event, "seconds")
        if away is not None:
            took = f" {seconds(away)} after it died"
        else:
            took = f" {seconds(since_launch)} after its launch" if since_launch is not None else ""
        return f"group {group} is back: first step {step} committed{took}"
    if sum(g.joined or g.restarts > 0 for g in status.groups) == 1:
        since_launch = number(event, "seconds")
        after = f", {seconds(since_launch)} after the launch" if since_launch is not None else ""
        return f"training: step {step} committed{after}{quorum}"
    # The others were in the same first quorum; one that comes later is news.
    return None if step == status.first_step else f"group {group} has joined at step {step}{quorum}"


def _exited(event: Event, status: RunStatus) -> str | None:
    group, attempt, cause = _group(event, status), event.get("attempt"), event.get("cause")
    what = f"group {group.group}" if group else _unit(event)
    at = f" at step {group.step}" if group and group.joined else ""
    if group is None and cause in ("ok", "cancelled"):
        return None  # the Lighthouse goes when the groups have gone
    if cause == "ok":
        return f"{what} has finished"
    if cause in _ORDERLY:
        return f"{what} {_ORDERLY[str(cause)]}{at and f' ({at.strip()})'}"
    log = text(event, "log")
    before = "" if at or not group else " before its first step"
    return f"{what} attempt {attempt} died{at}{before}: {verdict(event)}" + (f" - log: {short_log(log)}" if log else "")


def short_log(path: str) -> str:
    """A log's path inside the run directory, whose own path has been told already."""
    return "logs/" + path.rpartition("/logs/")[2]


def _group(event: Event, status: RunStatus) -> GroupStatus | None:
    group = integer(event, "group")
    return status.groups[group] if group is not None and 0 <= group < len(status.groups) else None


def _unit(event: Event) -> str:
    return "the Lighthouse" if event.get("unit") == LIGHTHOUSE else str(event.get("unit"))


def _because(event: Event) -> str:
    reason = text(event, "reason")
    return f": {reason}" if reason else ""


def ended(outcome: str) -> str:
    """A verb for how the run stands."""
    return {"stopped": "was stopped", "running": "has not finished"}.get(outcome, outcome)


def phase(group: GroupStatus, status: RunStatus) -> str:
    """The phase as a table shows it: in a run that has finished, what had not ended by itself was stopped."""
    over = status.outcome != "running" and group.phase not in (Phase.SUCCEEDED, Phase.FAILED)
    return "stopped" if over else group.phase.value


def few(items: Sequence[str], most: int = 3) -> str:
    """Some names, and how many more."""
    if len(items) <= most:
        return ", ".join(items) or "no node"
    return f"{', '.join(items[: most - 1])} and {len(items) - most + 1} more"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def seconds(value: float | None) -> str:
    """A duration with as much precision as a person wants: 0.07 s, 2.1 s, 48 s, 3 min 20 s, 5 h 2 min."""
    if value is None:
        return "-"
    if value < 0.01:
        return "under 0.01 s"
    if value < 0.95:
        return f"{value:.2g} s"
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def clock(value: float) -> str:
    """A duration for a place that is redrawn all the time: 0:07, 12:40, 1:02:03."""
    minutes, second = divmod(max(0, round(value)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
