"""Folds the journal of a run into its status: the same lines always give the same status.

The cost of a line does not grow with the number of groups.
"""

from __future__ import annotations

from math import inf

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


class StatusFold(Fold):
    """Changes a run's status by the lines of its journal. Who keeps `status` for later takes a copy."""

    def __init__(self, status: RunStatus | None = None) -> None:
        """Begin. `status`: go on from this one, and change it."""
        self.status = status or RunStatus()
        self.time = self.status.updated

    def apply(self, event: Event) -> None:
        """Take in the next line."""
        super().apply(event)
        self.status.updated = self.time
        groups = self.status.groups
        while groups and groups[-1].leaves and groups[-1].phase not in LIVE:  # it has left the run
            groups.pop()

    # --- the run and its controllers -----------------------------------------------------------------------------

    def run_started(self, record: records.RunStarted) -> None:
        status = self.status
        roles = [role for role, size in record.roles.items() for _ in range(min(size, record.groups))]
        for n in range(len(status.groups), record.groups):
            role = roles[n] if n < len(roles) else None
            status.groups.append(GroupStatus(n, waiting_for="nodes", since=self.time, role=role))
        status.run_id, status.name, status.parent, status.mode = record.run_id, record.name, record.parent, record.mode
        status.job_id = status.job_id if record.cluster == "local" else record.job_id or status.job_id
        status.starts += record.after is None
        status.total_steps, status.limits = record.total_steps, record.limits
        if status.started is None:  # one that takes over continues the run
            status.started = self.time
        status.outcome, status.reason, status.finished = "running", "", None
        if record.lighthouse == "none":
            status.units.pop(LIGHTHOUSE, None)
        if record.after is not None:
            self._warn(f"{record.after}; another one went on with all that ran")

    def run_requeued(self, _: records.RunRequeued) -> None:
        for group in self.status.groups:
            group.waiting_for = "nodes"

    def run_finished(self, record: records.RunFinished) -> None:
        status = self.status
        if status.lighthouse is not None:
            status.lighthouse.phase = Phase.SUCCEEDED
        if record.steps is not None:
            status.step = record.steps
        status.outcome, status.reason, status.finished = record.outcome or "failed", record.reason, self.time
        status.missing = record.missing
        for group in status.groups:
            group.steps_per_s = None
            if group.down:  # it waited for its next attempt
                group.phase = Phase.FAILED

    def command(self, record: records.Command) -> None:
        for group in self.status.groups:
            if record.what == "stop" and group.phase in (Phase.STARTING, Phase.RUNNING):
                group.phase = Phase.STOPPING

    def scaled(self, record: records.Scaled) -> None:
        """Mark the groups beyond the new number as leaving; add new ones, which wait for their nodes."""
        groups, count = self.status.groups, record.groups or 1
        waiting_for = "a job of its own" if self.status.mode == "array" else "nodes"
        for group in groups:
            group.leaves = group.group >= count
        groups += (GroupStatus(n, waiting_for=waiting_for, since=self.time) for n in range(len(groups), count))

    def controller_error(self, record: records.ControllerError) -> None:
        self._warn(controller_error(record))

    def warning(self, record: records.Warned) -> None:
        if not record.over:
            self._warn(record.text or "?")
        elif record.over in self.status.warnings:
            self.status.warnings.remove(record.over)

    def _warn(self, text: str) -> None:
        if text not in self.status.warnings:
            self.status.warnings.append(text)

    # --- Slurm jobs and nodes ------------------------------------------------------------------------------------

    def node_excluded(self, record: records.NodeExcluded) -> None:
        self.status.excluded_nodes.setdefault(record.node, record.reason)

    def node_check_failed(self, record: records.NodeCheckFailed) -> None:
        why = f"has failed its check: {record.reason}" + (f"; see {record.log}" if record.log else "")
        self.status.excluded_nodes[record.node] = why

    def node_restored(self, record: records.NodeRestored) -> None:
        self.status.excluded_nodes.pop(record.node, None)

    def slurm_asked(self, record: records.SlurmAsked) -> None:
        self.status.slurm_rpcs += record.rpcs
        self.status.slurm_rpcs_a_minute = max(self.status.slurm_rpcs_a_minute, record.most)

    def node_shunned(self, record: records.NodeShunned) -> None:
        self.status.drained_nodes[record.node] = record.reason

    def node_drained(self, record: records.NodeDrained) -> None:
        self.status.drained_nodes[record.node] = "ftslurm drain"

    def node_undrained(self, record: records.NodeUndrained | records.NodeUnshunned) -> None:
        self.status.drained_nodes.pop(record.node, None)

    node_unshunned = node_undrained

    def allocation_refused(self, record: records.AllocationRefused) -> None:
        self.status.jobs_refused[record.pool] = record.reason or "no reason given"

    def allocation_pending(self, record: records.AllocationPending) -> None:
        self._put_job(JobStatus(record.allocation, record.pool or 0, reason=record.reason))

    def allocation_granted(self, record: records.AllocationGranted) -> None:
        if record.pool is not None:
            self._put_job(JobStatus(record.allocation, record.pool, record.nodes, ends=record.ends))
            return
        for group in self.status.groups:
            if group.waiting_for == "nodes":
                group.waiting_for = "launch"

    def allocation_ends(self, record: records.AllocationEnds) -> None:
        if (job := self.status.jobs.get(record.allocation)) is not None:
            job.ends = record.ends

    def allocation_lost(self, record: records.AllocationLost) -> None:
        old = self.status.jobs.pop(record.allocation, JobStatus(record.allocation))
        if record.state == "PENDING":  # Slurm has requeued it
            self.status.jobs[old.name] = JobStatus(old.name, old.pool)

    def _put_job(self, job: JobStatus) -> None:
        if job.name not in self.status.jobs:  # sbatch accepts jobs for this pool again
            self.status.jobs_refused.pop(job.pool, None)
        self.status.jobs[job.name] = job

    # --- Slurm steps ---------------------------------------------------------------------------------------------

    def step_launched(self, record: records.StepLaunched) -> None:
        status = self.status
        if record.group is None:
            unit = status.units.setdefault(record.unit, UnitStatus(record.unit))
            unit.phase, unit.attempt, unit.nodes = Phase.STARTING, record.attempt, record.nodes
            return
        if record.standby is not None:  # the standby's Slurm step has become the group's
            name, _, attempt = record.standby.partition("/")
            self._unit_ended(name, int(attempt) if attempt.isdecimal() else -1)
        group = self._group(record.group)
        group.retried = record.attempt == group.attempt
        if not group.retried:
            self._restarts(group, record)
        runs_at_once = record.standby is not None and status.lighthouse is None  # it need not report
        group.turn(Phase.RUNNING if runs_at_once else Phase.STARTING, self.time)
        group.attempt, group.nodes, group.start, group.joined = record.attempt, record.nodes, status.starts, False
        group.job = record.allocation if record.allocation in status.jobs else None

    def _restarts(self, group: GroupStatus, record: records.StepLaunched) -> None:
        """Count a restart: not the first attempt in another start of the run's job, or of a group scaled back in."""
        status, group.recovery = self.status, None
        if record.attempt > 0 and group.start == status.starts:
            group.again, cause = True, (group.last.cause if group.last else "") or "unknown"
            if is_failure(cause):
                detail = group.error or record.reason or "unknown"
                group.recovery = Recovery(group.group, record.attempt, None, cause, detail)
                status.recoveries.append(group.recovery)
                status.restarts += 1
                group.restarts += 1

    def step_ready(self, record: records.StepReady) -> None:
        if (group := self._current(record)) is not None:
            group.phase, group.starting = Phase.RUNNING, None
        elif (unit := self._unit(record.unit, record.attempt)) is not None:
            unit.phase = Phase.RUNNING

    def step_exited(self, record: records.StepExited) -> None:
        if (group := self._current(record)) is None:
            self._unit_ended(record.unit, record.attempt)
            return
        status, ok = self.status, record.cause == "ok"
        if group.joined and record.step is not None:
            group.step = record.step
            status.step = max(status.step, record.step)  # no progress of the group may have been read
        group.turn(Phase.SUCCEEDED if ok else Phase.PENDING, self.time)
        stopped = not is_failure(record.cause) and record.error is None
        at_work = group.joined or status.lighthouse is None
        if not ok and (at_work or not stopped or group.last is None):  # else: that is still the reason
            group.last, group.step = record, group.step if record.step is None else record.step

    def cause_corrected(self, record: records.CauseCorrected) -> None:
        group = self._group(record.group)
        if group.last is not None and group.last.attempt == record.attempt:
            group.last = replace(group.last, cause=record.cause)

    def launch_refused(self, record: records.LaunchRefused) -> None:
        if (group := self._current(record)) is None:
            self._unit_ended(record.unit, record.attempt)
            return
        group.phase, group.since, group.starting = Phase.PENDING, self.time, None
        group.waiting_for = f"srun ({record.reason or None})"

    def step_starting(self, record: records.StepStarting) -> None:
        if (group := self._current(record)) is not None and not group.joined:
            group.phase = Phase.RUNNING if record.stage in SCRIPT_WAITS else Phase.STARTING
            group.since = group.since if record.since is None else record.since
            group.starting = record

    def script_begun(self, record: records.ScriptBegun) -> None:
        if (group := self._current(record)) is not None:
            group.phase, group.since, group.starting = Phase.RUNNING, self.time, None

    def step_adopted(self, record: records.StepAdopted) -> None:
        if (group := self._current(record)) is not None:
            group.start = self.status.starts

    def step_recalled(self, record: records.StepRecalled) -> None:
        if (group := self._current(record)) is not None:
            group.phase = Phase.STOPPING

    def restart_scheduled(self, record: records.RestartScheduled) -> None:
        group, wait = self._group(record.group), record.due - self.now
        group.phase, group.since, group.waiting_for = Phase.PENDING, self.time, "launch"
        group.backoff_s = wait if wait >= 1 else None

    def group_waits(self, record: records.GroupWaits) -> None:
        group = self._group(record.group)
        if group.phase is Phase.PENDING:
            if group.since is None or group.backoff_s is not None:
                group.since = self.time  # a limit counts from the first of these lines
            group.waiting_for, group.backoff_s = record.reason or "a node", None
            group.job = record.allocation or group.job

    def group_given_up(self, record: records.GroupGivenUp) -> None:
        group = self._group(record.group)
        group.phase, group.given_up = Phase.FAILED, record.reason or "unknown"

    def _unit(self, name: str, attempt: int) -> UnitStatus | None:
        """Return the Lighthouse or a standby; None if this is about an earlier attempt."""
        unit = self.status.units.get(name)
        return unit if unit is not None and unit.attempt == attempt else None

    def _unit_ended(self, name: str, attempt: int) -> None:
        if (unit := self._unit(name, attempt)) is not None:
            unit.phase, unit.nodes = Phase.PENDING, ()

    # --- the training --------------------------------------------------------------------------------------------

    def serving(self, record: records.GroupJoined | records.Serving | records.SessionOpened) -> GroupStatus | None:
        """Mark a group as at work: it steps, its parameter server is up, or it has a session with one."""
        if (group := self._current(record)) is not None:
            if not group.joined and group.recovery is not None:
                group.recovery.seconds = record.recovery_s
            group.phase, group.joined = Phase.RUNNING, True
        return group

    session_opened = serving

    def group_joined(self, record: records.GroupJoined) -> None:
        if (group := self.serving(record)) is not None:
            status = self.status
            status.first_step = record.step if status.first_step is None else status.first_step
            status.no_step = None
            self._progressed(group, record, self.time)

    def progress(self, record: records.Progress) -> None:
        if (group := self._current(record)) is not None:
            self._progressed(group, record, self.time if record.at is None else record.at)

    def no_first_step(self, record: records.NoFirstStep) -> None:
        self.status.no_step = no_first_step(record)

    def checkpoint_saved(self, record: records.CheckpointSaved | records.CheckpointRestored) -> None:
        self.status.checkpoint = record.step

    checkpoint_restored = checkpoint_saved

    def checkpoints_distrusted(self, record: records.CheckpointsDistrusted) -> None:
        if (self.status.checkpoint or 0) > record.step:
            self.status.checkpoint = None  # which one is the newest now, the journal does not say

    def full_restart(self, record: records.FullRestart) -> None:
        self.status.checkpoint, self.status.no_step = record.checkpoint_step, None
        self.status.full_restarts += 1

    def replicas_differ(self, record: records.ReplicasDiffer) -> None:
        if record.equal == 0:  # else groups end for it
            self._warn(record.reason)

    def hang_limit(self, record: records.HangLimit) -> None:
        if record.in_step_s is not None and record.between_s is not None:
            self.status.hang_limit = record

    def group_set_aside(self, record: records.GroupSetAside) -> None:
        if (group := self._current(record)) is not None:
            group.aside = self.now - (record.seconds or 0.0)

    def group_slow(self, record: records.GroupSlow) -> None:
        if (group := self._current(record)) is not None:
            group.slow = (record.own_s or 0.0) / (record.others_s or inf) if record.slow else None

    def group_heard_again(self, record: records.GroupHeardAgain) -> None:
        if (group := self._current(record)) is not None:
            group.aside = None

    def _progressed(
        self, group: GroupStatus, record: records.Progress | records.GroupJoined, time: float | None
    ) -> None:
        status, step = self.status, record.step
        if step is None or time is None:
            return
        group.participants, group.quorum_id = record.participants, record.quorum_id
        if not group.joined:
            return  # it has a quorum, but has not committed a step itself
        others = (other for other in status.groups if other is not group)
        goes_on = group.samples or any(other.holds_state for other in others)  # else from a checkpoint
        status.step = max(status.step, step) if goes_on else step
        samples = (*group.samples, (time, step))
        while len(samples) > 2 and samples[1][0] <= time - RATE_WINDOW_S:
            samples = samples[1:]
        span, steps = time - samples[0][0], step - samples[0][1]
        if len(samples) == 1 or group.step is None or step > group.step:
            group.stepped = time
            # A Lighthouse that was replaced meanwhile does not say that the group is heard again.
            if group.aside is not None and time > group.aside + TOLD_EVERY_S:
                group.aside = None
        group.step, group.samples = step, samples
        # A line without a new step does not change the rate: steps may take longer than lines are apart.
        if span >= 0.5 and steps > 0:
            group.steps_per_s = steps / span

    # --- groups --------------------------------------------------------------------------------------------------

    def _group(self, number: int) -> GroupStatus:
        groups = self.status.groups
        groups += (GroupStatus(n) for n in range(len(groups), number + 1))
        return groups[number]

    def _current(self, record: records.JournalRecord) -> GroupStatus | None:
        """Return the group of a record; None if the record is about no group, or not about its current attempt."""
        number, attempt = getattr(record, "group", None), getattr(record, "attempt", None)
        group = None if number is None or number >= len(self.status.groups) else self.status.groups[number]
        return group if group is not None and group.attempt == attempt else None
