"""Folds the journal of a run into its status: the same lines always give the same status.

StatusFold applies lines one by one. The cost of a line does not grow with the number of groups; that of a snapshot
(`StatusFold.status`) does. Unknown events and fields are ignored, so that an old client can watch a newer controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from typing_extensions import assert_never

from ftslurm.core.state.model import LIVE, Phase
from ftslurm.core.state.unit_names import LIGHTHOUSE, STANDBY
from ftslurm.core.state.values import replace
from ftslurm.monitor.event_text import controller_error, no_first_step
from ftslurm.monitor.status import (
    GroupStatus,
    HangLimit,
    JobStatus,
    Recovery,
    RunStatus,
    StandbyStatus,
    Starting,
)
from ftslurm.protocol import records
from ftslurm.protocol.causes import is_failure
from ftslurm.run.journal import Event, number
from ftslurm.run.journal_lines import read
from ftslurm.run.journal_writer import TOLD_EVERY_S
from ftslurm.run.run_reader import RATE_WINDOW_S

SCRIPT_RUNS = ("script", "quorum", "step")  # stages of step_starting after script_begun
UnitEvent = records.StepLaunched | records.StepReady | records.StepExited | records.LaunchRefused


def fold(status: RunStatus, *events: Event) -> RunStatus:
    """Return the status after further lines of the journal."""
    return fold_all(events, status)


def fold_all(events: Iterable[Event], status: RunStatus | None = None) -> RunStatus:
    """Return the status after these lines, which follow those in `status`."""
    folding = StatusFold(status)
    for event in events:
        folding.apply(event)
    return folding.status


class StatusFold:
    """Computes a run's status from the lines of its journal."""

    def __init__(self, status: RunStatus | None = None) -> None:
        self._run = status or RunStatus()  # the fields below replace those of the same name in it
        self._updated, self._step = self._run.updated, self._run.step
        self._groups = list(self._run.groups)
        self._recoveries = list(self._run.recoveries)
        self._recovery_of = {(r.group, r.attempt): n for n, r in enumerate(self._recoveries)}
        self._jobs = {job.name: job for job in self._run.jobs.there}
        self._snapshot: RunStatus | None = self._run
        self._live, self._foremost = 0, 0  # number of live groups that have a step, and of those at the run's step
        self._count_steps()

    @property
    def status(self) -> RunStatus:
        """Return the status after the lines so far."""
        if self._snapshot is None:
            self._snapshot = replace(
                self._run,
                updated=self._updated,
                step=self._step,
                groups=tuple(self._groups),
                recoveries=tuple(self._recoveries),
                jobs=replace(self._run.jobs, there=tuple(self._jobs.values())),
            )
        return self._snapshot

    def apply(self, event: Event) -> None:
        """Apply the next line."""
        self.take(read(event), number(event, "time"))

    def take(self, record: records.JournalEvent, time: float | None) -> None:
        """Apply the record of the next line."""
        self._snapshot = None
        if time is not None:
            self._updated = time
        if isinstance(record, records.RunEvent):
            self._apply_to_run(record, time)
        elif isinstance(record, records.ClusterEvent):
            self._apply_to_cluster(record)
        elif isinstance(record, records.StepEvent):
            self._apply_to_step(record, time)
        elif isinstance(record, records.TrainingEvent):
            self._apply_to_training(record, time)
        elif isinstance(record, (records.DrillEvent, records.UnknownEvent)):
            pass
        else:
            assert_never(record)

    # --- the run and its controllers -----------------------------------------------------------------------------

    def _apply_to_run(self, record: records.RunEvent, time: float | None) -> None:
        match record:
            case records.RunStarted():
                self._run_started(record, time)
            case records.ControllerError():
                self._warn(controller_error(record))
            case records.Warned():
                self._warn(record.text or "?")
            case records.Command():
                if record.what.split()[:1] == ["stop"]:
                    self._each_group(_stopping)
            case records.Scaled():
                self._scaled(record.groups or 1, time)
            case records.RunRequeued():
                self._each_group(lambda group: replace(group, waiting_for="nodes"))
            case records.RunFinished():
                self._run_finished(record, time)
            case (
                records.ControllerLeft()
                | records.ScaleRefused()
                | records.CommandDone()
                | records.CommandRefused()
                | records.RollOver()
            ):
                pass
            case _:
                assert_never(record)

    def _run_started(self, record: records.RunStarted, time: float | None) -> None:
        sizes = {role: min(size, record.groups) for role, size in record.roles.items()}
        roles: list[str | None] = [role for role, size in sizes.items() for _ in range(size)]
        roles += [None] * record.groups
        for n in range(len(self._groups), record.groups):
            self._groups.append(GroupStatus(n, waiting_for="nodes", since=time, role=roles[n]))
        run = self._run
        self._run = replace(
            run,
            run_id=record.run_id or run.run_id,
            name=record.name or run.name,
            parent=record.parent or run.parent,
            mode=record.mode or run.mode,
            job_id=run.job_id if record.cluster == "local" else record.job_id or run.job_id,
            starts=run.starts + (record.after is None),
            total_steps=record.total_steps,
            limits=record.limits,
            started=time if run.started is None else run.started,  # a controller that takes over continues the run
            outcome="running",
            reason="",
            finished=None,
            lighthouse=None if record.lighthouse == "none" else run.lighthouse,
        )
        if record.after is not None:
            self._warn(f"{record.after}; another one went on with all that ran")

    def _run_finished(self, record: records.RunFinished, time: float | None) -> None:
        self._lighthouse(Phase.SUCCEEDED)
        if record.steps is not None:
            self._step = record.steps
        restarts = self._run.restarts if record.restarts is None or self._run.scaled else record.restarts
        outcome = record.outcome or "failed"
        self._run = replace(self._run, outcome=outcome, reason=record.reason, finished=time, restarts=restarts)
        self._each_group(_at_the_end)

    def _scaled(self, count: int, time: float | None) -> None:
        """Mark the groups beyond `count` as leaving; add new ones, which wait for their nodes."""
        self._each_group(lambda group: replace(group, leaves=group.group >= count))
        waiting_for = "a job of its own" if self._run.mode == "array" else "nodes"
        self._groups += (GroupStatus(n, waiting_for=waiting_for, since=time) for n in range(len(self._groups), count))
        self._drop_left()
        self._run = replace(self._run, scaled=True)

    def _warn(self, text: str) -> None:
        self._run = replace(self._run, warnings=_with(self._run.warnings, text))

    # --- Slurm jobs and nodes ------------------------------------------------------------------------------------

    def _apply_to_cluster(self, record: records.ClusterEvent) -> None:
        run = self._run
        match record:
            case records.NodeExcluded(node=node):
                self._run = replace(run, excluded_nodes=_with(run.excluded_nodes, node))
            case records.NodeRestored(node=node):
                unfit = tuple(pair for pair in run.unfit_nodes if pair[0] != node)
                self._run = replace(run, excluded_nodes=_without(run.excluded_nodes, node), unfit_nodes=unfit)
            case records.NodeCheckFailed(node=node):
                why = f"{record.reason}; see {record.log}" if record.log else record.reason or "no reason given"
                unfit = (*(pair for pair in run.unfit_nodes if pair[0] != node), (node, why))
                self._run = replace(run, excluded_nodes=_with(run.excluded_nodes, node), unfit_nodes=unfit)
            case records.NodeShunned(node=node):
                self._run = replace(run, draining_nodes={**run.draining_nodes, node: record.reason or ""})
            case records.NodeUnshunned(node=node):
                rest = {name: why for name, why in run.draining_nodes.items() if name != node}
                self._run = replace(run, draining_nodes=rest)
            case records.NodeDrained(node=node):
                self._run = replace(run, drained_nodes=_with(run.drained_nodes, node))
            case records.NodeUndrained(node=node):
                self._run = replace(run, drained_nodes=_without(run.drained_nodes, node))
            case records.AllocationGranted(pool=None):
                self._each_group(lambda g: replace(g, waiting_for="launch") if g.waiting_for == "nodes" else g)
            case records.AllocationRequested(count=count):
                self._run = replace(run, jobs=replace(run.jobs, asked=run.jobs.asked + count))
            case records.AllocationRefused(pool=pool, reason=reason):
                refused = {**run.jobs.refused, pool: reason or "no reason given"}
                self._run = replace(run, jobs=replace(run.jobs, refused=refused))
            case (
                records.PilotRestarted()
                | records.AllocationRequeued()
                | records.NodeSilent()
                | records.NodeChecksStarted()
                | records.NodeCheckPassed()
            ):
                pass
            case _:
                self._apply_to_job(record)

    def _apply_to_job(
        self,
        record: records.AllocationPending
        | records.AllocationGranted
        | records.AllocationEnds
        | records.AllocationLeaving
        | records.AllocationLost,
    ) -> None:
        name, known = record.allocation, self._jobs.get(record.allocation)
        old = known or JobStatus(name, getattr(record, "pool", None) or 0)
        match record:
            case records.AllocationPending():
                self._put_job(replace(old, reason=record.reason, nodes=(), ends=None, leaving=None))
            case records.AllocationGranted():
                self._put_job(JobStatus(name, old.pool, record.nodes, ends=record.ends))
            case records.AllocationEnds():
                if known is not None:
                    self._put_job(replace(known, ends=record.ends))
            case records.AllocationLeaving():
                self._put_job(replace(old, leaving=record.cause or None))
            case records.AllocationLost():
                requeued = record.state == "PENDING"
                if requeued:
                    self._put_job(JobStatus(name, old.pool))
                else:
                    self._jobs.pop(name, None)
                taken_away = requeued or bool(old.nodes and record.state)
                self._run = replace(self._run, jobs=replace(self._run.jobs, lost=self._run.jobs.lost + taken_away))
            case _:
                assert_never(record)

    def _put_job(self, job: JobStatus) -> None:
        jobs = self._run.jobs
        if job.name not in self._jobs and job.pool in jobs.refused:  # sbatch accepts jobs for this pool again
            refused = {pool: reason for pool, reason in jobs.refused.items() if pool != job.pool}
            self._run = replace(self._run, jobs=replace(jobs, refused=refused))
        self._jobs[job.name] = job

    # --- Slurm steps ---------------------------------------------------------------------------------------------

    def _apply_to_step(self, record: records.StepEvent, time: float | None) -> None:
        match record:
            case records.StepLaunched() | records.StepReady() | records.StepExited() | records.LaunchRefused():
                if record.unit == LIGHTHOUSE:
                    self._lighthouse_step(record, time)
                elif record.unit.startswith(STANDBY):
                    self._standby_step(record)
                else:
                    self._group_step(record, time)
            case records.StepStarting():
                if (group := self._current(record)) is not None and not group.joined:
                    self._starting(record, group)
            case records.ScriptBegun():
                if (group := self._current(record)) is not None:
                    self._put(replace(group, phase=Phase.RUNNING, since=time, starting=None))
            case records.StepAdopted():
                if (group := self._current(record)) is not None:
                    self._put(replace(group, start=self._run.starts))
            case records.StepRecalled():
                group = None if record.group is None else self._group(record.group)
                if group is not None and group.attempt == record.attempt:
                    self._put(replace(group, phase=Phase.STOPPING, waiting_for=None))
            case records.RestartScheduled():
                wait = record.due - (time or 0.0)
                waiting_for = f"backoff of {wait:.0f} s" if wait >= 1 else "launch"
                group = _remembering(self._group(record.group))
                backoff_s = wait if wait >= 1 else None
                self._put(replace(group, phase=Phase.PENDING, waiting_for=waiting_for, since=time, backoff_s=backoff_s))
            case records.GroupWaits():
                group = self._group(record.group)
                if group.phase is Phase.PENDING:
                    job = record.allocation or group.job
                    waits = group.since is not None and group.backoff_s is None
                    since = group.since if waits else time  # a limit counts from the first of these lines
                    reason = record.reason or "a node"
                    self._put(replace(group, waiting_for=reason, job=job, since=since, backoff_s=None))
            case records.GroupGivenUp():
                group = _remembering(self._group(record.group))
                self._put(replace(group, phase=Phase.FAILED, waiting_for=None, given_up=record.reason or "unknown"))
            case records.StandbyGivenUp() | records.StacksTaken():
                pass
            case _:
                assert_never(record)

    def _lighthouse_step(self, record: UnitEvent, time: float | None) -> None:
        match record:
            case records.StepLaunched():
                self._lighthouse(Phase.STARTING)
                if (known := self._run.lighthouse) is not None:
                    launched = replace(known, attempt=record.attempt, nodes=record.nodes)
                    self._run = replace(self._run, lighthouse=launched)
            case records.StepReady():
                self._lighthouse(Phase.RUNNING)
            case records.StepExited():
                self._lighthouse(Phase.SUCCEEDED if record.cause == "ok" else Phase.PENDING)
                if (known := self._run.lighthouse) is not None:
                    self._run = replace(self._run, lighthouse=replace(known, ended=time, last_cause=record.cause))
            case records.LaunchRefused():
                self._lighthouse(Phase.PENDING)
            case _:
                assert_never(record)

    def _lighthouse(self, phase: Phase) -> None:
        if self._run.lighthouse is not None:
            self._run = replace(self._run, lighthouse=replace(self._run.lighthouse, phase=phase))

    def _standby_step(self, record: UnitEvent) -> None:
        known = {unit.name: unit for unit in self._run.standbys}
        unit = known.get(record.unit, StandbyStatus(record.unit))
        if isinstance(record, records.StepLaunched):
            unit = StandbyStatus(record.unit, Phase.STARTING, record.attempt, record.nodes)
        elif record.attempt == unit.attempt:
            ready = isinstance(record, records.StepReady)
            phase, nodes = (Phase.RUNNING, unit.nodes) if ready else (Phase.PENDING, ())
            unit = replace(unit, phase=phase, nodes=nodes)
        known[record.unit] = unit
        self._run = replace(self._run, standbys=tuple(known[name] for name in sorted(known)))

    def _group_step(self, record: UnitEvent, time: float | None) -> None:
        if isinstance(record, records.StepLaunched):
            if record.group is not None:
                self._group_launched(record, record.group, time)
            return
        group = self._current(record)
        if group is None:
            return
        match record:
            case records.StepReady():
                waiting_for = "first step" if self._run.lighthouse is not None else None
                self._put(replace(group, phase=Phase.RUNNING, waiting_for=waiting_for, starting=None))
            case records.StepExited():
                self._group_exited(record, group, time)
            case records.LaunchRefused():
                reason = record.reason or None
                pending = replace(group, phase=Phase.PENDING, since=time, starting=None)
                self._put(replace(pending, waiting_for=f"srun ({reason})"))
            case _:
                assert_never(record)

    def _starting(self, record: records.StepStarting, group: GroupStatus) -> None:
        rank = record.missing[0] if record.missing else 0
        starting = Starting(record.stage, max(1, record.tasks), record.lacks, rank, record.other)
        begun = record.stage in SCRIPT_RUNS
        phase = Phase.RUNNING if begun else Phase.STARTING
        since = group.since if record.since is None else record.since
        self._put(replace(group, phase=phase, since=since, starting=starting))

    def _group_launched(self, record: records.StepLaunched, number_: int, time: float | None) -> None:
        group, run = self._group(number_), self._run
        if record.standby is not None:  # the standby's Slurm step has become the group's
            standbys = (
                replace(unit, phase=Phase.PENDING, nodes=())
                if f"{unit.name}/{unit.attempt}" == record.standby
                else unit
                for unit in run.standbys
            )
            self._run = run = replace(run, standbys=tuple(standbys))
        refused_before = record.attempt == group.attempt
        # The first attempt in another start of the controller's job, or of a group that was scaled back in, is no
        # restart.
        if record.attempt > 0 and group.start == run.starts and not refused_before:
            failed = group.last is None or is_failure(group.last.cause)
            if failed:
                detail = group.error or record.reason or "unknown"
                cause = "unknown" if group.last is None else group.last.cause or "unknown"
                recovery = Recovery(group.group, record.attempt, None, cause, detail)
                self._recovery_of[group.group, record.attempt] = len(self._recoveries)
                self._recoveries.append(recovery)
            self._run = run = replace(run, restarts=run.restarts + failed)
            group = replace(group, restarts=group.restarts + failed, again=True)
        runs_at_once = record.standby is not None and run.lighthouse is None  # its script need not report anything
        self._put(
            replace(
                group,
                phase=Phase.RUNNING if runs_at_once else Phase.STARTING,
                waiting_for=None if runs_at_once else "workers",
                since=time,
                backoff_s=None,
                starting=None,
                attempt=record.attempt,
                nodes=record.nodes,
                job=record.allocation if record.allocation in self._jobs else None,
                start=run.starts,
                joined=False,
                aside=None,
                participants=None,
                steps_per_s=None,
                samples=(),
            )
        )

    def _group_exited(self, record: records.StepExited, group: GroupStatus, time: float | None) -> None:
        ok = record.cause == "ok"
        if not group.joined:
            self._time_recovery(record.group, record.attempt, None, record.phases)
        if group.joined and record.step is not None:
            group = replace(group, step=record.step)
            self._put(group)  # the run has come as far as the group, of which no progress may have been read
        group = replace(
            group,
            phase=Phase.SUCCEEDED if ok else Phase.PENDING,
            waiting_for=None,
            since=time,
            starting=None,
            aside=None,
            steps_per_s=None,
            samples=(),
            participants=None,
            quorum_id=None,
            sessions=None,
            stepped=None,
            ended=time,
            longest_gap_s=_longer(group.longest_gap_s, record.longest_gap_s),
        )
        stopped = not is_failure(record.cause) and record.error is None
        at_work = group.joined or self._run.lighthouse is None
        if not ok and not (stopped and not at_work and group.last is not None):  # else: that is still the reason
            group = replace(group, last=record, step=group.step if record.step is None else record.step)
        self._put(_remembering(group) if is_failure(record.cause) else group)

    # --- the training --------------------------------------------------------------------------------------------

    def _apply_to_training(self, record: records.TrainingEvent, time: float | None) -> None:
        match record:
            case records.Progress():
                if (group := self._current(record)) is not None:
                    self._progressed(group, record, time)
            case records.GroupJoined():
                self._joined(record, time)
            case records.Serving() | records.SessionOpened():
                self._serves(record)
            case records.NoFirstStep():
                self._run = replace(self._run, no_step=no_first_step(record))
            case records.CheckpointSaved(step=step) | records.CheckpointRestored(step=step):
                self._run = replace(self._run, checkpoint=step)
            case records.FullRestart(step=step, checkpoint_step=back):
                restarts = (*self._run.full_restarts, (step or 0, back))
                self._run = replace(self._run, checkpoint=back, full_restarts=restarts, no_step=None)
            case records.HangLimit(in_step_s=in_step, between_s=between):
                if in_step is not None and between is not None:
                    limit = HangLimit(in_step, between, record.steps or 0, record.longest_s or 0.0)
                    self._run = replace(self._run, hang_limit=limit)
            case records.GroupSetAside() | records.GroupHeardAgain():
                if (group := self._current(record)) is not None and time is not None:
                    silent = isinstance(record, records.GroupSetAside)
                    self._put(replace(group, aside=time - (record.seconds or 0.0) if silent else None))
            case records.HangFound() | records.QuorumRefused() | records.CheckpointFailed():
                pass
            case _:
                assert_never(record)

    def _serves(self, record: records.Serving | records.SessionOpened) -> None:
        """Mark a group as running: its parameter server is up, or it has a session with one."""
        group = self._current(record)
        if group is None:
            return
        if not group.joined:
            self._time_recovery(record.group, record.attempt, record.recovery_s, record.phases)
        sessions = record.sessions if isinstance(record, records.SessionOpened) else None
        self._put(replace(group, phase=Phase.RUNNING, joined=True, waiting_for=None, sessions=sessions))

    def _joined(self, record: records.GroupJoined, time: float | None) -> None:
        group = self._current(record)
        if group is None:
            return
        first_step = record.step if self._run.first_step is None else self._run.first_step
        self._run = replace(self._run, first_step=first_step, no_step=None)
        self._time_recovery(record.group, record.attempt, record.recovery_s, record.phases)
        gap = group.longest_gap_s
        if not self._live and record.recovery_s is not None:  # no group has trained since it failed
            gap = _longer(gap, record.recovery_s)
        joined = replace(group, phase=Phase.RUNNING, joined=True, waiting_for=None, longest_gap_s=gap)
        self._progressed(joined, record, time)

    def _time_recovery(
        self, group: int | None, attempt: int, seconds: float | None, phases: dict[str, float | None] | None
    ) -> None:
        """Set the duration and the phases of a recovery."""
        n = self._recovery_of.get((-1 if group is None else group, attempt))
        if n is not None:
            recovery = self._recoveries[n]
            self._recoveries[n] = recovery._replace(seconds=seconds, phases=phases or recovery.phases)

    def _progressed(
        self, group: GroupStatus, record: records.Progress | records.GroupJoined, time: float | None
    ) -> None:
        step, gap = record.step, None
        if isinstance(record, records.Progress):
            time, gap = time if record.at is None else record.at, record.longest_gap_s
            if record.sessions is not None:
                group = replace(group, sessions=record.sessions)
        if step is None or time is None:
            self._put(group)
            return
        group = replace(group, participants=record.participants, quorum_id=record.quorum_id)
        if not group.joined:
            self._put(group)  # it has a quorum, but has not committed a step itself
            return
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
                longest_gap_s=_longer(group.longest_gap_s, gap),
            )
        )

    # --- groups --------------------------------------------------------------------------------------------------

    def _group(self, group: int) -> GroupStatus:
        return self._groups[group] if group < len(self._groups) else GroupStatus(group)

    def _current(
        self,
        record: records.StepReady
        | records.StepStarting
        | records.ScriptBegun
        | records.StepAdopted
        | records.StepExited
        | records.LaunchRefused
        | records.GroupJoined
        | records.Progress
        | records.Serving
        | records.SessionOpened
        | records.GroupSetAside
        | records.GroupHeardAgain,
    ) -> GroupStatus | None:
        """Return the group of a record; None if the record is about no group, or not about its current attempt."""
        group = None if record.group is None else self._group(record.group)
        return group if group is not None and group.attempt == record.attempt else None

    def _put(self, group: GroupStatus) -> None:
        """Replace a group and update the run's step: the highest of all live groups, or the last known one.

        The step goes back after a full restart from a checkpoint.
        """
        self._groups += (GroupStatus(n) for n in range(len(self._groups), group.group + 1))
        before, after = self._groups[group.group].live_step, group.live_step
        self._groups[group.group] = group
        self._live += (after is not None) - (before is not None)
        self._foremost += (after == self._step) - (before == self._step)
        if after is not None and after > self._step:
            self._step, self._foremost = after, 1
        elif self._live and not self._foremost:
            self._step = max(step for g in self._groups if (step := g.live_step) is not None)
            self._count_steps()
        if self._groups[-1].leaves:
            self._drop_left()

    def _each_group(self, change: Callable[[GroupStatus], GroupStatus]) -> None:
        self._groups = [change(group) for group in self._groups]
        self._count_steps()

    def _drop_left(self) -> None:
        """Drop groups at the end that have left the run."""
        while self._groups and self._groups[-1].leaves and self._groups[-1].phase not in LIVE:
            self._groups.pop()
        self._count_steps()

    def _count_steps(self) -> None:
        """Count the live groups that have a step, and those at the run's step."""
        steps = [step for group in self._groups if (step := group.live_step) is not None]
        self._live, self._foremost = len(steps), steps.count(self._step)


def _stopping(group: GroupStatus) -> GroupStatus:
    alive = group.phase in (Phase.STARTING, Phase.RUNNING)
    return replace(group, phase=Phase.STOPPING if alive else group.phase, waiting_for=None)


def _remembering(group: GroupStatus) -> GroupStatus:
    """Return a group that has failed with its first failure kept."""
    if group.first is not None or group.last is None or not is_failure(group.last.cause):
        return group
    return replace(group, first=group.last)


def _at_the_end(group: GroupStatus) -> GroupStatus:
    """Return a group after the end of the run. One that waited for its next attempt after a failure has failed."""
    return replace(group, phase=Phase.FAILED if group.down else group.phase, waiting_for=None, steps_per_s=None)


def _longer(one: float | None, other: float | None) -> float | None:
    return max((gap for gap in (one, other) if gap is not None), default=None)


def _with(items: tuple[str, ...], item: str) -> tuple[str, ...]:
    return items if item in items else (*items, item)


def _without(items: tuple[str, ...], item: str) -> tuple[str, ...]:
    return tuple(other for other in items if other != item)
