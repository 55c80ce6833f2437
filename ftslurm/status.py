"""How does the run stand? A pure fold over the journal: the same lines give the same status, wherever they are read.

Lines and fields this version does not know are passed over, so that an old client can watch a newer controller.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from ftslurm.core.model import Phase
from ftslurm.journal import Event, integer, names, number, text
from ftslurm.rundir import LIGHTHOUSE

_RATE_WINDOW_S = 10.0


class Recovery(NamedTuple):
    """One restart of a group: which attempt answered which cause, and how long the group was away."""

    group: int
    attempt: int
    seconds: float | None  # from noticing the death to the first committed step; None: it never committed one
    cause: str  # the word of the journal: killed, node_lost, ...
    detail: str  # the same for a person: "killed (signal 9) on n2"


@dataclass(frozen=True)
class LighthouseStatus:
    phase: Phase = Phase.PENDING
    attempt: int | None = None
    nodes: tuple[str, ...] = ()
    ended: float | None = None  # when its last attempt ended


@dataclass(frozen=True)
class GroupStatus:
    """One replica group."""

    group: int
    phase: Phase = Phase.PENDING
    step: int | None = None  # the last committed step it reported, also of an attempt that is over
    participants: int | None = None  # how many groups its quorum has
    quorum_id: int | None = None
    attempt: int | None = None  # None: never launched
    nodes: tuple[str, ...] = ()
    restarts: int = 0
    steps_per_s: float | None = None  # over the last 10 s
    last_error: str | None = None
    waiting_for: str | None = None
    joined: bool = False  # the current or last attempt has committed a step
    longest_gap_s: float | None = None  # between two of its own commits, within one attempt
    last_cause: str | None = None
    last_log: str | None = None  # of the attempt that ended with last_error
    ended: float | None = None  # when its last attempt ended
    samples: tuple[tuple[float, int], ...] = ()  # (time, step) of this attempt, as far back as the rate needs

    @property
    def stepping(self) -> bool:
        """Whether it commits steps, as far as is known."""
        return self.phase is Phase.RUNNING and self.joined

    @property
    def live(self) -> bool:
        """Whether its step is one of the training's present state."""
        return self.joined and self.phase is not Phase.PENDING and self.phase is not Phase.FAILED


@dataclass(frozen=True)
class RunStatus:
    """The whole run. `RunStatus()` is a run of which nothing is known yet."""

    run_id: str = ""
    name: str = ""
    outcome: str = "running"  # or succeeded, failed, stopped
    reason: str = ""
    mode: str = ""
    job_id: str | None = None
    groups: tuple[GroupStatus, ...] = ()
    lighthouse: LighthouseStatus = LighthouseStatus()
    step: int = 0
    first_step: int | None = None  # the first step any group committed
    total_steps: int | None = None
    started: float | None = None
    updated: float | None = None  # the time of the last line
    finished: float | None = None
    restarts: int = 0
    recoveries: tuple[Recovery, ...] = ()
    excluded_nodes: tuple[str, ...] = ()

    @property
    def steps_per_s(self) -> float | None:
        """The usual rate of the groups: they step together, and one that has just come back measures badly."""
        rates = [g.steps_per_s for g in self.groups if g.steps_per_s is not None]
        return median(rates) if rates else None

    @property
    def stepping(self) -> int:
        """How many groups commit steps."""
        return sum(g.stepping for g in self.groups)

    @property
    def longest_gap(self) -> tuple[float, int] | None:
        """The longest time between two commits of one live group, and the group."""
        return max(((g.longest_gap_s, g.group) for g in self.groups if g.longest_gap_s is not None), default=None)


def fold(status: RunStatus, event: Event) -> RunStatus:
    """The status after one more line of the journal."""
    after = _fold(status, event)
    time = number(event, "time")
    return after if time is None else replace(after, updated=time)


def _fold(status: RunStatus, event: Event) -> RunStatus:
    match event.get("event"):
        case "run_started":
            return _started(status, event)
        case "allocation_granted":
            groups = [replace(g, waiting_for="launch") if g.waiting_for == "nodes" else g for g in status.groups]
            return replace(status, groups=tuple(groups))
        case "step_launched":
            return _launched(status, event)
        case "step_ready":
            if event.get("unit") == LIGHTHOUSE:
                return replace(status, lighthouse=replace(status.lighthouse, phase=Phase.RUNNING))
            group = _current(status, event)
            return _put(status, replace(group, phase=Phase.RUNNING, waiting_for="first step") if group else None)
        case "group_joined":
            return _joined(status, event)
        case "progress":
            return _progressed(status, _current(status, event), event)
        case "step_exited":
            return _exited(status, event)
        case "restart_scheduled":
            group = _group(status, event)
            wait = (number(event, "due") or 0.0) - (number(event, "time") or 0.0)
            waiting_for = f"backoff of {wait:.0f} s" if wait >= 1 else "launch"
            return _put(status, replace(group, phase=Phase.PENDING, waiting_for=waiting_for) if group else None)
        case "group_given_up":
            group = _group(status, event)
            reason = text(event, "reason")
            return _put(
                status,
                replace(group, phase=Phase.FAILED, waiting_for=None, last_error=reason or group.last_error)
                if group
                else None,
            )
        case "node_excluded":
            nodes = dict.fromkeys((*status.excluded_nodes, text(event, "node") or "?"))
            return replace(status, excluded_nodes=tuple(nodes))
        case "node_restored":
            return replace(status, excluded_nodes=tuple(n for n in status.excluded_nodes if n != text(event, "node")))
        case "command" if (text(event, "what") or "").split()[:1] == ["stop"]:
            return replace(status, groups=tuple(_stopping(g) for g in status.groups))
        case "run_finished":
            return _finished(status, event)
    return status


def _started(status: RunStatus, event: Event) -> RunStatus:
    count = integer(event, "groups") or 0
    new = tuple(GroupStatus(n, waiting_for="nodes") for n in range(len(status.groups), count))
    return replace(
        status,
        run_id=text(event, "run_id") or status.run_id,
        name=text(event, "name") or status.name,
        mode=text(event, "mode") or status.mode,
        job_id=status.job_id if event.get("cluster") == "local" else _job(event) or status.job_id,
        total_steps=integer(event, "total_steps"),
        # A second controller took over: the run is as old as it was, and goes on.
        started=number(event, "time") if status.started is None else status.started,
        outcome="running",
        reason="",
        finished=None,
        groups=status.groups + new,
    )


def _job(event: Event) -> str | None:
    return None if event.get("job_id") is None else str(event["job_id"])


def _launched(status: RunStatus, event: Event) -> RunStatus:
    attempt = integer(event, "attempt") or 0
    nodes = names(event, "nodes")
    if event.get("unit") == LIGHTHOUSE:
        unit = replace(status.lighthouse, phase=Phase.STARTING, attempt=attempt, nodes=nodes)
        return replace(status, lighthouse=unit)
    group = _group(status, event)
    if group is None:
        return status
    if attempt > 0:
        detail = group.last_error or text(event, "reason") or "unknown"
        recovery = Recovery(group.group, attempt, None, group.last_cause or "unknown", detail)
        status = replace(status, restarts=status.restarts + 1, recoveries=(*status.recoveries, recovery))
        group = replace(group, restarts=group.restarts + 1)
    group = replace(group, phase=Phase.STARTING, attempt=attempt, nodes=nodes, waiting_for="workers")
    return _put(status, replace(group, joined=False, participants=None, steps_per_s=None, samples=()))


def _joined(status: RunStatus, event: Event) -> RunStatus:
    group = _current(status, event)
    if group is None:
        return status
    group = replace(group, phase=Phase.RUNNING, joined=True, waiting_for=None)
    first_step = integer(event, "step") if status.first_step is None else status.first_step
    recoveries = tuple(
        r._replace(seconds=number(event, "recovery_s")) if r[:2] == (group.group, group.attempt) else r
        for r in status.recoveries
    )
    return _progressed(replace(status, first_step=first_step, recoveries=recoveries), group, event)


def _progressed(status: RunStatus, group: GroupStatus | None, event: Event) -> RunStatus:
    step, time = integer(event, "step"), number(event, "time")
    if group is None or step is None or time is None:
        return status
    group = replace(group, participants=integer(event, "participants"), quorum_id=integer(event, "quorum_id"))
    if not group.joined:
        return _put(status, group)  # it has a quorum, and no step of its own yet
    samples = (*group.samples, (time, step))
    while len(samples) > 2 and samples[1][0] <= time - _RATE_WINDOW_S:
        samples = samples[1:]
    span = time - samples[0][0]
    gap = number(event, "gap_s")
    group = replace(
        group,
        step=step,
        samples=samples,
        steps_per_s=max(0.0, (step - samples[0][1]) / span) if span >= 0.5 else group.steps_per_s,
        longest_gap_s=group.longest_gap_s if gap is None else max(gap, group.longest_gap_s or 0.0),
    )
    return _put(status, group)


def _exited(status: RunStatus, event: Event) -> RunStatus:
    ended, ok = number(event, "time"), event.get("cause") == "ok"
    phase = Phase.SUCCEEDED if ok else Phase.PENDING
    if event.get("unit") == LIGHTHOUSE:
        return replace(status, lighthouse=replace(status.lighthouse, phase=phase, ended=ended))
    group = _current(status, event)
    if group is None:
        return status
    group = replace(group, phase=phase, waiting_for=None, steps_per_s=None, samples=(), participants=None, ended=ended)
    if not ok:
        cause, step = text(event, "cause") or "unknown", integer(event, "step")
        group = replace(group, last_cause=cause, last_error=verdict(event), last_log=text(event, "log"))
        group = group if step is None else replace(group, step=step)
    return _put(status, group)


def _stopping(group: GroupStatus) -> GroupStatus:
    alive = group.phase in (Phase.STARTING, Phase.RUNNING)
    return replace(group, phase=Phase.STOPPING, waiting_for=None) if alive else replace(group, waiting_for=None)


def _finished(status: RunStatus, event: Event) -> RunStatus:
    steps, restarts = integer(event, "steps"), integer(event, "restarts")
    return replace(
        status,
        outcome=text(event, "outcome") or "failed",
        reason=text(event, "reason") or "",
        finished=number(event, "time"),
        step=status.step if steps is None else steps,
        restarts=status.restarts if restarts is None else restarts,
        groups=tuple(_at_the_end(g) for g in status.groups),
        lighthouse=replace(status.lighthouse, phase=Phase.SUCCEEDED),
    )


def _at_the_end(group: GroupStatus) -> GroupStatus:
    """A group of a run that is over: what waited for its next attempt has failed."""
    failed = group.phase is Phase.PENDING and group.last_cause not in (None, "cancelled", "time_limit")
    return replace(group, phase=Phase.FAILED if failed else group.phase, waiting_for=None, steps_per_s=None)


def _group(status: RunStatus, event: Event) -> GroupStatus | None:
    """The group a line is about; None: it is about no group."""
    group = integer(event, "group")
    if group is None or group < 0:
        return None
    return status.groups[group] if group < len(status.groups) else GroupStatus(group)


def _current(status: RunStatus, event: Event) -> GroupStatus | None:
    """The same, and None when the line is about an attempt that is no longer the current one."""
    group = _group(status, event)
    return group if group is not None and event.get("attempt") == group.attempt else None


def _put(status: RunStatus, group: GroupStatus | None) -> RunStatus:
    if group is None:
        return status
    groups = [*status.groups, *(GroupStatus(n) for n in range(len(status.groups), group.group + 1))]
    groups[group.group] = group
    step = status.step
    if group.live and group.step is not None and group.step >= step:
        step = group.step
    else:
        # After a full restart from a checkpoint the run's step goes back, so only attempts that live are asked.
        step = max((g.step for g in groups if g.live and g.step is not None), default=step)
    return replace(status, groups=tuple(groups), step=step)


def verdict(event: Event) -> str:
    """Why a step ended, for a person: "killed (signal 9) on n2"."""
    code, signal, node = integer(event, "code"), integer(event, "signal"), text(event, "node")
    sign = f" (signal {signal})" if signal is not None else f" (exit code {code})" if code is not None else ""
    cause = text(event, "cause") or "unknown"
    said = {
        "ok": "finished",
        "user_error": f"the script failed{sign}",
        "killed": f"killed{sign}",
        "out_of_memory": "out of memory",
        "node_lost": "node lost",
        "hang": "hung",
        "start_failed": f"could not start{sign}",
        "start_timeout": "took too long to start",
        "lighthouse_lost": "lost the Lighthouse",
        "cancelled": "stopped",
        "unknown": f"ended for no known reason{sign}",
    }.get(cause, cause.replace("_", " "))
    error = text(event, "error")
    if cause == "unknown" and error:
        return error + (f" on {node}" if node else "")
    return said + (f" on {node}" if node else "") + (f": {error}" if error else "")


def to_json(status: RunStatus) -> dict[str, object]:
    """The status as `status --json` prints it. The keys are stable; new ones may be added.

    run_id, name, mode, job_id; outcome (running, succeeded, failed, stopped) and reason; step, total_steps (or null),
    steps_per_s; started, updated, finished (unix seconds or null); restarts; longest_gap_s; excluded_nodes;
    lighthouse: phase, attempt, nodes;
    groups, by id: group, phase, step, participants, quorum_id, attempt, nodes, restarts, steps_per_s, longest_gap_s,
    last_error, waiting_for;
    recoveries, in order: group, attempt, seconds (null: it has not committed a step), cause, detail.
    """
    return {
        "run_id": status.run_id,
        "name": status.name,
        "mode": status.mode,
        "job_id": status.job_id,
        "outcome": status.outcome,
        "reason": status.reason,
        "step": status.step,
        "total_steps": status.total_steps,
        "steps_per_s": _rounded(status.steps_per_s),
        "started": status.started,
        "updated": status.updated,
        "finished": status.finished,
        "restarts": status.restarts,
        "longest_gap_s": _rounded(status.longest_gap[0] if status.longest_gap else None),
        "excluded_nodes": list(status.excluded_nodes),
        "lighthouse": {
            "phase": status.lighthouse.phase.value,
            "attempt": status.lighthouse.attempt,
            "nodes": list(status.lighthouse.nodes),
        },
        "groups": [
            {
                "group": g.group,
                "phase": g.phase.value,
                "step": g.step,
                "participants": g.participants,
                "quorum_id": g.quorum_id,
                "attempt": g.attempt,
                "nodes": list(g.nodes),
                "restarts": g.restarts,
                "steps_per_s": _rounded(g.steps_per_s),
                "longest_gap_s": _rounded(g.longest_gap_s),
                "last_error": g.last_error,
                "waiting_for": g.waiting_for,
            }
            for g in status.groups
        ],
        "recoveries": [r._asdict() for r in status.recoveries],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
