"""Folds the journal of a run into its status: the same lines always give the same status.

The cost of a line does not grow with the number of groups; that of a snapshot (`StatusFold.status`) does.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, TypeVar

from ftslurm.core.state.model import LIVE, Phase, replace
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.monitor.event_text import SCRIPT_WAITS, controller_error, no_first_step
from ftslurm.monitor.status import GroupStatus, JobStatus, Recovery, RunStatus, UnitStatus
from ftslurm.protocol import records
from ftslurm.protocol.causes import is_failure
from ftslurm.run.journal import Event
from ftslurm.run.journal_lines import Fold
from ftslurm.run.journal_writer import TOLD_EVERY_S
from ftslurm.run.run_reader import RATE_WINDOW_S

Key = TypeVar("Key")


def fold(status: RunStatus, *events: Event) -> RunStatus:
    """Return the status after further lines of the journal."""
    folding = StatusFold(status)
    for event in events:
        folding.apply(event)
    return folding.status


# Of an attempt that is over, or has only begun.
_NONE = ("starting", "aside", "slow", "participants", "quorum_id", "steps_per_s", "stepped", "waiting_for", "backoff_s")
_OUT: dict[str, Any] = {**dict.fromkeys(_NONE), "samples": ()}


class StatusFold(Fold):
    """Computes a run's status from the lines of its journal."""

    def __init__(self, status: RunStatus | None = None) -> None:
        self._run = status or RunStatus()  # the fields below replace those of the same name in it
        self.time, self._step = self._run.updated, self._run.step
        self._groups = list(self._run.groups)
        self._recoveries: dict[tuple[int, int], Recovery] = {(r.group, r.attempt): r for r in self._run.recoveries}
        self._jobs, self._units = dict(self._run.jobs), dict(self._run.units)

    @property
    def status(self) -> RunStatus:
        """Return the status after the lines so far."""
        return replace(
            self._run,
            updated=self.time,
            step=self._step,
            groups=tuple(self._groups),
            recoveries=tuple(self._recoveries.values()),
            jobs=dict(self._jobs),
            units=dict(self._units),
        )

    # --- the run and its controllers -----------------------------------------------------------------------------

    def run_started(self, record: records.RunStarted) -> None:
        roles = [role for role, size in record.roles.items() for _ in range(min(size, record.groups))]
        for n in range(len(self._groups), record.groups):
            role = roles[n] if n < len(roles) else None
            self._groups.append(GroupStatus(n, waiting_for="nodes", since=self.time, role=role))
        run = self._run
        self._set(
            run_id=record.run_id,
            name=record.name,
            parent=record.parent,
            mode=record.mode,
            job_id=run.job_id if record.cluster == "local" else record.job_id or run.job_id,
            starts=run.starts + (record.after is None),
            total_steps=record.total_steps,
            limits=record.limits,
            started=self.time if run.started is None else run.started,  # one that takes over continues the run
            outcome="running",
            reason="",
            finished=None,
        )
        if record.lighthouse == "none":
            self._units.pop(LIGHTHOUSE, None)
        if record.after is not None:
            self._warn(f"{record.after}; another one went on with all that ran")

    def _set(self, **changes: Any) -> None:
        self._run = replace(self._run, **changes)

    def run_requeued(self, _: records.RunRequeued) -> None:
        self._groups = [replace(group, waiting_for="nodes") for group in self._groups]

    def run_finished(self, record: records.RunFinished) -> None:
        if LIGHTHOUSE in self._units:
            self._units[LIGHTHOUSE] = replace(self._units[LIGHTHOUSE], phase=Phase.SUCCEEDED)
        self._step = self._step if record.steps is None else record.steps
        self._set(outcome=record.outcome or "failed", reason=record.reason, finished=self.time)
        # A group that waited for its next attempt after a failure has failed.
        self._groups = [replace(g, phase=Phase.FAILED if g.down else g.phase, steps_per_s=None) for g in self._groups]

    def command(self, record: records.Command) -> None:
        if record.what == "stop":
            alive = (Phase.STARTING, Phase.RUNNING)
            self._groups = [replace(g, phase=Phase.STOPPING) if g.phase in alive else g for g in self._groups]

    def scaled(self, record: records.Scaled) -> None:
        """Mark the groups beyond the new number as leaving; add new ones, which wait for their nodes."""
        count, waiting_for = record.groups or 1, "a job of its own" if self._run.mode == "array" else "nodes"
        self._groups = [replace(group, leaves=group.group >= count) for group in self._groups]
        new = range(len(self._groups), count)
        self._groups += (GroupStatus(n, waiting_for=waiting_for, since=self.time) for n in new)
        self._drop_left()

    def controller_error(self, record: records.ControllerError) -> None:
        self._warn(controller_error(record))

    def warning(self, record: records.Warned) -> None:
        self._warn(record.text or "?")

    def _warn(self, text: str) -> None:
        self._set(warnings=tuple(dict.fromkeys((*self._run.warnings, text))))

    # --- Slurm jobs and nodes ------------------------------------------------------------------------------------

    def node_excluded(self, record: records.NodeExcluded) -> None:
        self._avoid("excluded_nodes", record.node, self._run.excluded_nodes.get(record.node) or record.reason)

    def node_check_failed(self, record: records.NodeCheckFailed) -> None:
        why = f"has failed its check: {record.reason}" + (f"; see {record.log}" if record.log else "")
        self._avoid("excluded_nodes", record.node, why)

    def node_restored(self, record: records.NodeRestored) -> None:
        self._avoid("excluded_nodes", record.node)

    def node_shunned(self, record: records.NodeShunned) -> None:
        self._avoid("drained_nodes", record.node, record.reason)

    def node_drained(self, record: records.NodeDrained) -> None:
        self._avoid("drained_nodes", record.node, "ftslurm drain")

    def node_undrained(self, record: records.NodeUndrained | records.NodeUnshunned) -> None:
        self._avoid("drained_nodes", record.node)

    node_unshunned = node_undrained

    def _avoid(self, kind: str, node: str, why: str | None = None) -> None:
        """Note why a node is avoided; None: it is no longer."""
        others = _without(getattr(self._run, kind), node)
        self._set(**{kind: others if why is None else others | {node: why}})

    def allocation_refused(self, record: records.AllocationRefused) -> None:
        self._set(jobs_refused={**self._run.jobs_refused, record.pool: record.reason or "no reason given"})

    def allocation_pending(self, record: records.AllocationPending) -> None:
        self._put_job(JobStatus(record.allocation, record.pool or 0, reason=record.reason))

    def allocation_granted(self, record: records.AllocationGranted) -> None:
        if record.pool is None:
            self._groups = [replace(g, waiting_for="launch") if g.waiting_for == "nodes" else g for g in self._groups]
        else:
            self._put_job(JobStatus(record.allocation, record.pool, record.nodes, ends=record.ends))

    def allocation_ends(self, record: records.AllocationEnds) -> None:
        if record.allocation in self._jobs:
            self._put_job(replace(self._jobs[record.allocation], ends=record.ends))

    def allocation_lost(self, record: records.AllocationLost) -> None:
        old = self._jobs.pop(record.allocation, JobStatus(record.allocation))
        if record.state == "PENDING":  # Slurm has requeued it
            self._jobs[old.name] = JobStatus(old.name, old.pool)

    def _put_job(self, job: JobStatus) -> None:
        if job.name not in self._jobs:  # sbatch accepts jobs for this pool again
            self._set(jobs_refused=_without(self._run.jobs_refused, job.pool))
        self._jobs[job.name] = job

    # --- Slurm steps ---------------------------------------------------------------------------------------------

    def step_launched(self, record: records.StepLaunched) -> None:
        if record.group is None:
            last = self._units.get(record.unit, UnitStatus(record.unit))
            self._units[record.unit] = replace(last, phase=Phase.STARTING, attempt=record.attempt, nodes=record.nodes)
            return
        if record.standby is not None:  # the standby's Slurm step has become the group's
            name, _, attempt = record.standby.partition("/")
            self._change_unit(name, int(attempt) if attempt.isdecimal() else -1, phase=Phase.PENDING, nodes=())
        run, group = self._run, self._group(record.group)
        refused_before = record.attempt == group.attempt
        # The first attempt in another start of the controller's job, or of a group that was scaled back in, is no
        # restart.
        if record.attempt > 0 and group.start == run.starts and not refused_before:
            cause = (group.last.cause if group.last else "") or "unknown"
            if failed := is_failure(cause):
                detail = group.error or record.reason or "unknown"
                recovery = Recovery(group.group, record.attempt, None, cause, detail)
                self._recoveries[group.group, record.attempt] = recovery
            self._set(restarts=run.restarts + failed)
            group = replace(group, restarts=group.restarts + failed, again=True)
        runs_at_once = record.standby is not None and LIGHTHOUSE not in self._units  # it need not report
        self._put(
            replace(
                group,
                phase=Phase.RUNNING if runs_at_once else Phase.STARTING,
                since=self.time,
                attempt=record.attempt,
                nodes=record.nodes,
                job=record.allocation if record.allocation in self._jobs else None,
                start=run.starts,
                joined=False,
                **_OUT,
            )
        )

    def step_ready(self, record: records.StepReady) -> None:
        if not self._change(record, phase=Phase.RUNNING, starting=None):
            self._change_unit(record.unit, record.attempt, phase=Phase.RUNNING)

    def step_exited(self, record: records.StepExited) -> None:
        if (group := self._current(record)) is None:
            self._change_unit(record.unit, record.attempt, phase=Phase.PENDING, nodes=(), last_cause=record.cause)
            return
        ok = record.cause == "ok"
        if group.joined and record.step is not None:
            group = replace(group, step=record.step)
            self._step = max(self._step, record.step)  # no progress of the group may have been read
        group = replace(
            group,
            phase=Phase.SUCCEEDED if ok else Phase.PENDING,
            since=self.time,
            **_OUT,
        )
        stopped = not is_failure(record.cause) and record.error is None
        at_work = group.joined or LIGHTHOUSE not in self._units
        if not ok and not (stopped and not at_work and group.last is not None):  # else: that is still the reason
            group = replace(group, last=record, step=group.step if record.step is None else record.step)
        if group.first is None and is_failure(record.cause):
            group = replace(group, first=record)
        self._put(group)

    def launch_refused(self, record: records.LaunchRefused) -> None:
        waiting_for = f"srun ({record.reason or None})"
        if not self._change(record, phase=Phase.PENDING, since=self.time, starting=None, waiting_for=waiting_for):
            self._change_unit(record.unit, record.attempt, phase=Phase.PENDING, nodes=())

    def step_starting(self, record: records.StepStarting) -> None:
        group = self._current(record)
        if group is not None and not group.joined:
            phase = Phase.RUNNING if record.stage in SCRIPT_WAITS else Phase.STARTING
            since = group.since if record.since is None else record.since
            self._put(replace(group, phase=phase, since=since, starting=record))

    def script_begun(self, record: records.ScriptBegun) -> None:
        self._change(record, phase=Phase.RUNNING, since=self.time, starting=None)

    def step_adopted(self, record: records.StepAdopted) -> None:
        self._change(record, start=self._run.starts)

    def step_recalled(self, record: records.StepRecalled) -> None:
        self._change(record, phase=Phase.STOPPING)

    def restart_scheduled(self, record: records.RestartScheduled) -> None:
        group, wait = self._group(record.group), record.due - self.now
        backoff_s = wait if wait >= 1 else None
        self._put(replace(group, phase=Phase.PENDING, since=self.time, waiting_for="launch", backoff_s=backoff_s))

    def group_waits(self, record: records.GroupWaits) -> None:
        group = self._group(record.group)
        if group.phase is Phase.PENDING:
            waits = group.since is not None and group.backoff_s is None
            since = group.since if waits else self.time  # a limit counts from the first of these lines
            waiting_for, job = record.reason or "a node", record.allocation or group.job
            self._put(replace(group, waiting_for=waiting_for, job=job, since=since, backoff_s=None))

    def group_given_up(self, record: records.GroupGivenUp) -> None:
        group = self._group(record.group)
        self._put(replace(group, phase=Phase.FAILED, given_up=record.reason or "unknown"))

    def _change_unit(self, unit: str, attempt: int, **changes: Any) -> None:
        """Change the Lighthouse or a standby, unless it is about an earlier attempt."""
        known = self._units.get(unit)
        if known is not None and known.attempt == attempt:
            self._units[unit] = replace(known, **changes)

    # --- the training --------------------------------------------------------------------------------------------

    def serving(self, record: records.GroupJoined | records.Serving | records.SessionOpened) -> GroupStatus | None:
        """Mark a group as at work: it steps, its parameter server is up, or it has a session with one."""
        group, which = self._current(record), (record.group, record.attempt)
        if group is None:
            return None
        if not group.joined and which in self._recoveries:
            self._recoveries[which] = self._recoveries[which]._replace(seconds=record.recovery_s)
        group = replace(group, phase=Phase.RUNNING, joined=True)
        self._put(group)
        return group

    session_opened = serving

    def group_joined(self, record: records.GroupJoined) -> None:
        if (group := self.serving(record)) is not None:
            first_step = record.step if self._run.first_step is None else self._run.first_step
            self._set(first_step=first_step, no_step=None)
            self._progressed(group, record, self.time)

    def progress(self, record: records.Progress) -> None:
        if (group := self._current(record)) is not None:
            self._progressed(group, record, self.time if record.at is None else record.at)

    def no_first_step(self, record: records.NoFirstStep) -> None:
        self._set(no_step=no_first_step(record))

    def checkpoint_saved(self, record: records.CheckpointSaved | records.CheckpointRestored) -> None:
        self._set(checkpoint=record.step)

    checkpoint_restored = checkpoint_saved

    def full_restart(self, record: records.FullRestart) -> None:
        restarts = self._run.full_restarts + 1
        self._set(checkpoint=record.checkpoint_step, full_restarts=restarts, no_step=None)

    def replicas_differ(self, record: records.ReplicasDiffer) -> None:
        if record.equal == 0:  # else groups end for it
            self._warn(record.reason)

    def hang_limit(self, record: records.HangLimit) -> None:
        if record.in_step_s is not None and record.between_s is not None:
            self._set(hang_limit=record)

    def group_set_aside(self, record: records.GroupSetAside) -> None:
        self._change(record, aside=self.now - (record.seconds or 0.0))

    def group_slow(self, record: records.GroupSlow) -> None:
        times = (record.own_s or 0.0) / (record.others_s or inf)
        self._change(record, slow=times if record.slow else None)

    def group_heard_again(self, record: records.GroupHeardAgain) -> None:
        self._change(record, aside=None)

    def _progressed(
        self, group: GroupStatus, record: records.Progress | records.GroupJoined, time: float | None
    ) -> None:
        step = record.step
        if step is None or time is None:
            self._put(group)
            return
        group = replace(group, participants=record.participants, quorum_id=record.quorum_id)
        if not group.joined:
            self._put(group)  # it has a quorum, but has not committed a step itself
            return
        others = (other for other in self._groups if other.group != group.group)
        goes_on = group.samples or any(other.holds_state for other in others)  # else from a checkpoint
        self._step = max(self._step, step) if goes_on else step
        samples = (*group.samples, (time, step))
        while len(samples) > 2 and samples[1][0] <= time - RATE_WINDOW_S:
            samples = samples[1:]
        span, steps = time - samples[0][0], step - samples[0][1]
        rose = len(samples) == 1 or group.step is None or step > group.step
        self._put(
            replace(
                group,
                stepped=time if rose else group.stepped,
                # A Lighthouse that was replaced meanwhile does not say that the group is heard again.
                aside=None if rose and time > (group.aside or time) + TOLD_EVERY_S else group.aside,
                step=step,
                samples=samples,
                # A line without a new step does not change the rate: steps may take longer than lines are apart.
                steps_per_s=steps / span if span >= 0.5 and steps > 0 else group.steps_per_s,
            )
        )

    # --- groups --------------------------------------------------------------------------------------------------

    def _group(self, group: int) -> GroupStatus:
        return self._groups[group] if group < len(self._groups) else GroupStatus(group)

    def _current(self, record: records.JournalRecord) -> GroupStatus | None:
        """Return the group of a record; None if the record is about no group, or not about its current attempt."""
        number, attempt = getattr(record, "group", None), getattr(record, "attempt", None)
        group = None if number is None else self._group(number)
        return group if group is not None and group.attempt == attempt else None

    def _change(self, record: records.JournalRecord, **changes: Any) -> bool:
        """Change the group of a record about its current attempt. Return whether there is such a group."""
        if (group := self._current(record)) is not None:
            self._put(replace(group, **changes))
        return group is not None

    def _put(self, group: GroupStatus) -> None:
        self._groups += (GroupStatus(n) for n in range(len(self._groups), group.group + 1))
        self._groups[group.group] = group
        if self._groups[-1].leaves:
            self._drop_left()

    def _drop_left(self) -> None:
        """Drop groups at the end that have left the run."""
        while self._groups and self._groups[-1].leaves and self._groups[-1].phase not in LIVE:
            self._groups.pop()


def _without(known: Mapping[Key, str], key: Key) -> dict[Key, str]:
    return {other: why for other, why in known.items() if other != key}
