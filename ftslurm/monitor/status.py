"""How does the run stand? A pure fold over the journal: the same lines give the same status, wherever they are read.

Lines and fields this version does not know are passed over, so that an old client can watch a newer controller.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from ftslurm.core.state.model import Phase
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.monitor.status_groups import GroupStatus, LighthouseStatus, Recovery, scaled, without_left
from ftslurm.monitor.status_jobs import JobsStatus
from ftslurm.monitor.status_jobs import after as jobs_after
from ftslurm.monitor.status_standbys import StandbyStatus, after, is_standby, taken
from ftslurm.monitor.verdict import ORDERLY, mishap, verdict
from ftslurm.run.first_step_report import sentence
from ftslurm.run.journal import Event, integer, names, number, numbers, text
from ftslurm.run.journal_filter import RATE_WINDOW_S


@dataclass(frozen=True)
class RunStatus:
    """The whole run. `RunStatus()` is a run of which nothing is known yet."""

    run_id: str = ""
    name: str = ""
    outcome: str = "running"  # or succeeded, failed, stopped
    reason: str = ""
    mode: str = ""
    job_id: str | None = None
    starts: int = 0  # how many Slurm jobs, or starts of one, its controller has had
    groups: tuple[GroupStatus, ...] = ()
    lighthouse: LighthouseStatus | None = field(default_factory=LighthouseStatus)  # None: groups without a quorum
    standbys: tuple[StandbyStatus, ...] = ()  # by name
    jobs: JobsStatus = field(default_factory=JobsStatus)  # those that give groups their nodes
    scaled: bool = False  # it has become larger or smaller; attempts then tell nothing about restarts
    step: int = 0
    first_step: int | None = None  # the first step any group committed
    total_steps: int | None = None
    started: float | None = None
    updated: float | None = None  # the time of the last line
    finished: float | None = None
    restarts: int = 0
    recoveries: tuple[Recovery, ...] = ()
    full_restarts: tuple[tuple[int, int | None], ...] = ()  # of all groups: from which step back to which checkpoint's
    excluded_nodes: tuple[str, ...] = ()
    checkpoint: int | None = None  # the step of the newest that was saved, or that all groups started from
    warnings: tuple[str, ...] = ()  # what the user should know, in plain words
    no_step: str | None = None  # that no step is committed although all scripts run, and what they do

    @property
    def steps_per_s(self) -> float | None:
        """The usual rate of the groups: they step together, and one that has just come back measures badly."""
        rates = [g.steps_per_s for g in self.groups if g.steps_per_s is not None]
        return median(rates) if rates else None

    @property
    def cautions(self) -> tuple[str, ...]:
        """The warnings, and what is the matter for as long as it is."""
        return self.warnings if self.no_step is None else (*self.warnings, self.no_step)

    @property
    def stepping(self) -> int:
        """How many groups commit steps."""
        return sum(g.stepping for g in self.groups)

    @property
    def at_work(self) -> int:
        """The same; where there is no quorum, how many run."""
        return self.stepping if self.lighthouse is not None else sum(g.phase is Phase.RUNNING for g in self.groups)

    @property
    def still_s(self) -> float | None:
        """How long nobody has stepped; None: somebody does, or nobody was to."""
        still = [g.still_s for g in self.groups if g.still_s is not None]
        return min(still) if still and not any(g.stepping and g.step is not None for g in self.groups) else None

    @property
    def longest_gap(self) -> tuple[float, int] | None:
        """The longest time between two commits of one live group, and the group."""
        return max(((g.longest_gap_s, g.group) for g in self.groups if g.longest_gap_s is not None), default=None)


TOLD_EVERY_S = 1.0  # groups tell of their steps once a second (in large runs fewer of these lines are written)


def fold(status: RunStatus, event: Event) -> RunStatus:
    """The status after one more line of the journal."""
    status, time = _fold(status, event), number(event, "time")
    return status if time is None else replace(status, updated=time)


def _fold(status: RunStatus, event: Event) -> RunStatus:
    match event.get("event"):
        case "run_started":
            return _started(status, event)
        case str(name) if name.startswith("allocation_") and ("pool" in event or name != "allocation_granted"):
            return replace(status, jobs=jobs_after(status.jobs, event))
        case "allocation_granted":
            groups = [replace(g, waiting_for="launch") if g.waiting_for == "nodes" else g for g in status.groups]
            return replace(status, groups=tuple(groups))
        case "step_launched":
            return _launched(status, event)
        case "step_ready":
            if event.get("unit") == LIGHTHOUSE:
                return _lighthouse(status, phase=Phase.RUNNING)
            if is_standby(event):
                return replace(status, standbys=after(status.standbys, event, Phase.RUNNING))
            group = _current(status, event)
            waiting_for = "first step" if status.lighthouse is not None else None
            return _put(status, replace(group, phase=Phase.RUNNING, waiting_for=waiting_for) if group else None)
        case "group_joined":
            return _joined(status, event)
        case "serving" | "session_opened":
            return _works(status, event)
        case "progress":
            return _progressed(status, _current(status, event), event)
        case "step_exited":
            return _exited(status, event)
        case "launch_refused":
            return _refused(status, event)
        case "restart_scheduled":
            group = _group(status, event)
            wait = (number(event, "due") or 0.0) - (number(event, "time") or 0.0)
            waiting_for = f"backoff of {wait:.0f} s" if wait >= 1 else "launch"
            return _put(status, replace(group, phase=Phase.PENDING, waiting_for=waiting_for) if group else None)
        case "group_waits":
            group = _group(status, event)
            if group is None or group.phase is not Phase.PENDING:
                return status
            job = text(event, "allocation") or group.job
            return _put(status, replace(group, waiting_for=text(event, "reason") or "a node", job=job))
        case "scaled":
            nodes_of = "a job of its own" if status.mode == "array" else "nodes"
            groups_now = scaled(status.groups, integer(event, "groups") or 1, nodes_of)
            return replace(status, groups=groups_now, scaled=True)
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
        case "warning":
            return replace(status, warnings=tuple(dict.fromkeys((*status.warnings, text(event, "text") or "?"))))
        case "controller_error":
            return replace(status, warnings=tuple(dict.fromkeys((*status.warnings, mishap(event)))))
        case "no_first_step":
            return replace(status, no_step=sentence(event))
        case "command" if (text(event, "what") or "").split()[:1] == ["stop"]:
            return replace(status, groups=tuple(_stopping(g) for g in status.groups))
        case "checkpoint_saved" | "checkpoint_restored":
            return replace(status, checkpoint=integer(event, "step"))
        case "full_restart":
            step, back = integer(event, "step") or 0, integer(event, "checkpoint_step")
            restarts = (*status.full_restarts, (step, back))
            return replace(status, checkpoint=back, full_restarts=restarts, no_step=None)
        case "step_adopted" if (group := _current(status, event)) is not None:
            return _put(status, replace(group, start=status.starts))
        case "run_requeued":
            return replace(status, groups=tuple(replace(g, waiting_for="nodes") for g in status.groups))
        case "run_finished":
            return _finished(status, event)
    return status


def _started(status: RunStatus, event: Event) -> RunStatus:
    crashed = text(event, "after")
    crashed = crashed and f"{crashed}; another one went on with all that ran"
    count = integer(event, "groups") or 0
    sizes = {role: min(int(size or 0), count) for role, size in numbers(event, "roles").items()}
    roles: list[str | None] = [role for role, size in sizes.items() for _ in range(size)]
    roles += [None] * count
    new = tuple(GroupStatus(n, waiting_for="nodes", role=roles[n]) for n in range(len(status.groups), count))
    return replace(
        status,
        run_id=text(event, "run_id") or status.run_id,
        name=text(event, "name") or status.name,
        mode=text(event, "mode") or status.mode,
        job_id=status.job_id if event.get("cluster") == "local" else _job(event) or status.job_id,
        starts=status.starts + (crashed is None),
        warnings=status.warnings if crashed is None else tuple(dict.fromkeys((*status.warnings, crashed))),
        total_steps=integer(event, "total_steps"),
        # A second controller took over: the run is as old as it was, and goes on.
        started=number(event, "time") if status.started is None else status.started,
        outcome="running",
        reason="",
        finished=None,
        groups=status.groups + new,
        lighthouse=None if event.get("lighthouse") == "none" else status.lighthouse,
    )


def _job(event: Event) -> str | None:
    return None if event.get("job_id") is None else str(event["job_id"])


def _launched(status: RunStatus, event: Event) -> RunStatus:
    attempt = integer(event, "attempt") or 0
    nodes = names(event, "nodes")
    if event.get("unit") == LIGHTHOUSE:
        return _lighthouse(status, phase=Phase.STARTING, attempt=attempt, nodes=nodes)
    if is_standby(event):
        return replace(status, standbys=after(status.standbys, event, Phase.STARTING))
    group = _group(status, event)
    if group is None:
        return status
    status = replace(status, standbys=taken(status.standbys, text(event, "standby")))
    again = attempt == group.attempt  # Slurm has refused the launch before
    if (
        attempt > 0 and group.start == status.starts and not again
    ):  # else it goes on in another job, or has come into the run again
        detail = group.last_error or text(event, "reason") or "unknown"
        recovery = Recovery(group.group, attempt, None, group.last_cause or "unknown", detail)
        status = replace(status, restarts=status.restarts + 1, recoveries=(*status.recoveries, recovery))
        group = replace(group, restarts=group.restarts + 1)
    group = replace(group, phase=Phase.STARTING, attempt=attempt, nodes=nodes, waiting_for="workers")
    group = replace(group, job=_in_job(status, event), start=status.starts)
    if text(event, "standby") and status.lighthouse is None:  # its script runs, and need not say anything
        group = replace(group, phase=Phase.RUNNING, waiting_for=None)
    return _put(status, replace(group, joined=False, participants=None, steps_per_s=None, samples=()))


def _in_job(status: RunStatus, event: Event) -> str | None:
    name = text(event, "allocation")
    return name if status.jobs.named(name) else None


def _lighthouse(status: RunStatus, **changed: Any) -> RunStatus:
    return status if status.lighthouse is None else replace(status, lighthouse=replace(status.lighthouse, **changed))


def _works(status: RunStatus, event: Event) -> RunStatus:
    """A parameter server is up, or a group has a session with one: what it is there for."""
    group = _current(status, event)
    if group is None:
        return status
    if not group.joined:
        status = _timed(status, event, number(event, "recovery_s"))
    group = replace(group, phase=Phase.RUNNING, joined=True, waiting_for=None)
    return _put(status, replace(group, sessions=integer(event, "sessions")))


def _joined(status: RunStatus, event: Event) -> RunStatus:
    group = _current(status, event)
    if group is None:
        return status
    group = replace(group, phase=Phase.RUNNING, joined=True, waiting_for=None)
    first_step = integer(event, "step") if status.first_step is None else status.first_step
    status = _timed(replace(status, first_step=first_step, no_step=None), event, number(event, "recovery_s"))
    return _progressed(status, group, event)


def _timed(status: RunStatus, event: Event, seconds: float | None) -> RunStatus:
    """What the recovery that ends with this line took, and where the time went."""
    this, phases = (event.get("group"), event.get("attempt")), numbers(event, "phases")
    recoveries = tuple(
        r._replace(seconds=seconds, phases=phases or r.phases) if r[:2] == this else r for r in status.recoveries
    )
    return replace(status, recoveries=recoveries)


def _progressed(status: RunStatus, group: GroupStatus | None, event: Event) -> RunStatus:
    step, time = integer(event, "step"), number(event, "at") or number(event, "time")
    if group is not None and "sessions" in event:
        group = replace(group, sessions=integer(event, "sessions"))
        status = _put(status, group)
    if group is None or step is None or time is None:
        return status
    group = replace(group, participants=integer(event, "participants"), quorum_id=integer(event, "quorum_id"))
    if not group.joined:
        return _put(status, group)  # it has a quorum, and no step of its own yet
    samples = (*group.samples, (time, step))
    while len(samples) > 2 and samples[1][0] <= time - RATE_WINDOW_S:
        samples = samples[1:]
    span, steps = time - samples[0][0], step - samples[0][1]
    first = len(samples) == 1
    gap = number(event, "gap_s")
    group = replace(
        group,
        stepped=time if first or group.step is None or step > group.step else group.stepped,
        step=step,
        samples=samples,
        # A line without a new step does not tell how long one takes: where groups meet rarely, it comes in between.
        steps_per_s=steps / span if span >= 0.5 and steps > 0 else group.steps_per_s,
        longest_gap_s=group.longest_gap_s if gap is None else max(gap, group.longest_gap_s or 0.0),
    )
    return _put(status, group)


def _exited(status: RunStatus, event: Event) -> RunStatus:
    ended, ok = number(event, "time"), event.get("cause") == "ok"
    phase = Phase.SUCCEEDED if ok else Phase.PENDING
    if event.get("unit") == LIGHTHOUSE:
        return _lighthouse(status, phase=phase, ended=ended)
    if is_standby(event):
        return replace(status, standbys=after(status.standbys, event, Phase.PENDING))
    group = _current(status, event)
    if group is None:
        return status
    if not group.joined:
        status = _timed(status, event, None)  # how far it got
    if not ok and group.joined and group.stepped is not None and ended is not None:
        gap = max(ended - group.stepped - TOLD_EVERY_S, group.longest_gap_s or 0.0)  # a standstill until its end counts
        group = replace(group, longest_gap_s=round(gap, 3) if gap > 0 else group.longest_gap_s)
    group = replace(group, phase=phase, waiting_for=None, steps_per_s=None, samples=(), participants=None, ended=ended)
    group = replace(group, sessions=None)
    if not ok:
        cause, step = text(event, "cause") or "unknown", integer(event, "step")
        group = replace(group, last_cause=cause, last_error=verdict(event), last_log=text(event, "log"))
        group = replace(group, last_evidence=names(event, "evidence"), last_traceback=text(event, "traceback"))
        group = group if step is None else replace(group, step=step)
    return _put(status, group)


def _refused(status: RunStatus, event: Event) -> RunStatus:
    """Slurm has refused a launch, which is tried again."""
    if event.get("unit") == LIGHTHOUSE:
        return _lighthouse(status, phase=Phase.PENDING)
    if is_standby(event):
        return replace(status, standbys=after(status.standbys, event, Phase.PENDING))
    group = _current(status, event)
    waiting_for = f"srun ({text(event, 'reason')})"
    return _put(status, replace(group, phase=Phase.PENDING, waiting_for=waiting_for) if group else None)


def _stopping(group: GroupStatus) -> GroupStatus:
    alive = group.phase in (Phase.STARTING, Phase.RUNNING)
    return replace(group, phase=Phase.STOPPING, waiting_for=None) if alive else replace(group, waiting_for=None)


def _finished(status: RunStatus, event: Event) -> RunStatus:
    steps, restarts = integer(event, "steps"), integer(event, "restarts")
    return replace(
        _lighthouse(status, phase=Phase.SUCCEEDED),
        outcome=text(event, "outcome") or "failed",
        reason=text(event, "reason") or "",
        finished=number(event, "time"),
        step=status.step if steps is None else steps,
        restarts=status.restarts if restarts is None or status.scaled else restarts,
        groups=tuple(_at_the_end(g) for g in status.groups),
    )


def _at_the_end(group: GroupStatus) -> GroupStatus:
    """A group of a run that is over: what waited for its next attempt has failed."""
    failed = group.phase is Phase.PENDING and group.last_cause is not None and group.last_cause not in ORDERLY
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
    return replace(status, groups=without_left(tuple(groups)), step=step)
