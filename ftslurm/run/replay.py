"""What earlier controllers of a run have left: their state, read from the journal.

`read_past` folds the journal into a Past, from which the core goes on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from ftslurm.core import slow
from ftslurm.core.groups.exits import MOST_EXITS
from ftslurm.core.state.model import Evidence, Exit, Out, Pace, Place, StepId
from ftslurm.core.state.past import Live, Past, Scheduled
from ftslurm.core.state.unit_names import GROUP, LIGHTHOUSE, group_unit
from ftslurm.protocol import records
from ftslurm.protocol.causes import Cause, Says, cause_of, is_failure
from ftslurm.run import log_signs
from ftslurm.run.directory import RunDir
from ftslurm.run.journal_lines import Fold
from ftslurm.run.run_reader import RunReader
from ftslurm.security.names import is_step


def read_past(run: RunDir) -> Past | None:
    """Return the state in which earlier controllers have left this run; None: there was none.

    The run's step goes back at a full restart.

    Raises:
        EnvironmentProblem: there is a journal, and it cannot be read.
    """
    found = Reading()
    for event in RunReader(run).up_to_now():
        found.apply(event)
    return found.past


def home(job: object, requeues: object) -> str:
    """Return the name of one start of a Slurm job: its id and how often it was requeued; empty if not known."""
    return f"{job}.{requeues}" if job is not None and requeues is not None else ""


@dataclass
class Reading(Past, Fold):
    """The journal so far, as much of it as the next controller needs."""

    began: bool = False
    own: str | None = None  # the controller's allocation, if groups may run in it
    ended: dict[str, records.StepExited] = field(default_factory=dict)  # unit -> its last end
    undone: set[str] = field(default_factory=set)  # units whose attempts a full restart has made worthless

    @property
    def past(self) -> Past | None:
        return self if self.began else None

    # --- the run and its controllers -----------------------------------------------------------------------------

    def run_started(self, record: records.RunStarted) -> None:
        self.began = True
        self.own = record.job_id if record.mode != "array" else None
        before, self.home, self.host = self.home, home(record.job_id, record.requeues), record.host
        if self.own is not None and self.home != before:
            self.nodes = replace(self.nodes, passed=frozenset())  # another allocation

    def command(self, record: records.Command) -> None:
        if isinstance(record.by, int):
            self.stopped = (record.reason or "stopped", record.by)

    def scaled(self, record: records.Scaled) -> None:
        self.groups = record.groups or 1

    def controller_left(self, _: records.ControllerLeft) -> None:
        if LIGHTHOUSE in self.live:  # the controller has ended its Lighthouse
            self.live[LIGHTHOUSE] = replace(self.live[LIGHTHOUSE], home="")

    def fault_injected(self, record: records.FaultInjected) -> None:
        self.drilled += record.by == "faults.plan"

    # --- Slurm jobs and nodes ------------------------------------------------------------------------------------

    def allocation_granted(self, record: records.AllocationGranted) -> None:
        if record.pool is None:
            self.node = next(iter(record.nodes), "")

    def node_excluded(self, record: records.NodeExcluded) -> None:
        group = record.group
        self._node(record.node, out=Out.LOST if group is None else Out.BLAMED, since=self.now, group=group)

    def node_check_passed(self, record: records.NodeCheckPassed) -> None:
        self.nodes = replace(self.nodes, passed=self.nodes.passed | {record.node})

    def node_check_failed(self, record: records.NodeCheckFailed) -> None:
        self._node(record.node, out=Out.UNFIT, since=self.now, why=record.reason or "it has failed its check")

    def node_restored(self, record: records.NodeRestored) -> None:
        self.nodes = self.nodes.put({record.node: self.nodes.of(record.node).back()})

    def node_shunned(self, record: records.NodeShunned | records.NodeUnshunned) -> None:
        self._node(record.node, shunned=isinstance(record, records.NodeShunned))

    node_unshunned = node_shunned

    def node_drained(self, record: records.NodeDrained | records.NodeUndrained) -> None:
        self._node(record.node, drained=isinstance(record, records.NodeDrained))

    node_undrained = node_drained

    def _node(self, name: str, **fields: Any) -> None:
        self.nodes = self.nodes.put({name: replace(self.nodes.of(name), **fields)})

    # --- Slurm steps ---------------------------------------------------------------------------------------------

    def step_recalled(self, record: records.StepRecalled) -> None:
        step = self.live.get(record.unit)
        if step is not None and step.attempt == record.attempt:
            self.live[record.unit] = replace(step, recalled=record.reason)

    def restart_scheduled(self, record: records.RestartScheduled) -> None:
        self._schedule(group_unit(record.group), record.due, record.reason)

    def group_given_up(self, record: records.GroupGivenUp) -> None:
        self.scheduled.pop(group_unit(record.group), None)
        self.over[group_unit(record.group)] = record.reason

    def standby_given_up(self, record: records.StandbyGivenUp) -> None:
        self.over[record.unit] = record.reason

    def step_launched(self, record: records.StepLaunched) -> None:
        unit, attempt = record.unit, record.attempt
        self.attempts[unit] = attempt
        self.restarts += self._failed(unit)
        self.over.pop(unit, None)
        self.scheduled.pop(unit, None)
        end = self.ended.get(unit)
        standby, _, standby_attempt = (record.standby or "").partition("/")
        taken = self.live.pop(standby, None)  # the standby's step goes on as this one
        valid = re.fullmatch("[0-9]{1,9}", standby_attempt)
        beside = unit == LIGHTHOUSE or record.allocation == self.own  # in the controller's job, or on its machine
        own_home = self.home if self.own is not None else self.host
        self.live[unit] = Live(
            unit,
            StepId(standby, int(standby_attempt)) if valid else StepId(unit, attempt),
            attempt,
            Place(record.nodes, record.slot or 0, None if beside else record.allocation),
            record.hosts,
            launched=self.now,
            slurm_step=taken.slurm_step if taken else None,
            noticed=end.noticed if end else None,
            home=own_home if beside else None,
            away=end.away_since if end else None,
        )

    def step_ready(self, record: records.StepReady | records.StepAdopted) -> None:
        step = self.live.get(record.unit)
        if step is not None:
            hosts = record.hosts if isinstance(record, records.StepReady) else ()
            slurm_step = record.slurm_step if is_step(record.slurm_step) else step.slurm_step
            self.live[record.unit] = replace(step, hosts=hosts or step.hosts, slurm_step=slurm_step)

    step_adopted = step_ready

    def launch_refused(self, record: records.LaunchRefused) -> None:
        """Slurm has not started the step: it is no attempt, and the failure that it was to answer is still open."""
        self.live.pop(record.unit, None)
        self.attempts[record.unit] = record.attempt - 1
        self.restarts -= self._failed(record.unit)
        if record.attempt > 0 and record.unit.startswith(GROUP):
            self._schedule(record.unit, self.now + (record.again_s or 0.0), record.reason)

    def _schedule(self, unit: str, due: float, reason: str) -> None:
        end = self.ended.get(unit)
        since = (end.noticed, end.away_since) if end else (None, None)
        self.scheduled[unit] = Scheduled(unit, due, reason or "start", *since)

    def _failed(self, unit: str) -> bool:
        """Return whether the last attempt of a group has failed: the next is a restart."""
        end = self.ended.get(unit)
        return end is not None and end.group is not None and is_failure(end.cause)

    def step_exited(self, record: records.StepExited) -> None:
        unit = record.unit
        if unit != LIGHTHOUSE:
            earlier = self.exits.get(unit, ())[: -1 if unit in self.over else None]  # it had seemed to finish
            self.exits[unit] = (*earlier, _exit(record, self.now, self.live.get(unit)))[-MOST_EXITS:]
            self.over.pop(unit, None)
        self.ended[unit] = record
        self.live.pop(unit, None)
        if record.step is not None and unit not in self.undone:
            self.step = max(self.step, record.step)
        self.undone.discard(unit)
        if record.cause == Cause.OK.value and record.group is not None:
            self.over[unit] = None

    # --- the training --------------------------------------------------------------------------------------------

    def group_joined(self, record: records.GroupJoined) -> None:
        unit = group_unit(record.group)
        if unit in self.live:
            self.live[unit] = replace(self.live[unit], joined=self.now)
        self._stepped(record.step)

    def progress(self, record: records.Progress) -> None:
        if record.committed:
            self._stepped(record.step)
            step = self.live.get(group_unit(record.group))
            if step is not None and step.attempt == record.attempt:
                self.live[step.unit] = replace(step, step=record.step)

    def checkpoint_saved(self, record: records.CheckpointSaved) -> None:
        self.saved, self.equal = True, record.equal
        if record.step is not None and self.resuming is None:
            self.step = max(self.step, record.step)

    def hang_limit(self, record: records.HangLimit) -> None:
        self.longest_s, self.seen = record.longest_s or 0.0, record.steps or 0

    def group_slow(self, record: records.GroupSlow) -> None:
        step, own_s = self.live.get(group_unit(record.group)), record.own_s or 0.0
        if step is not None:
            told = slow.times(own_s, record.others_s or 0.0) if record.slow else None
            self.live[step.unit] = replace(step, pace=Pace(own_s, record.step_s or 0.0, told))

    def replicas_differ(self, record: records.ReplicasDiffer) -> None:
        for group, node in zip(record.groups, record.nodes, strict=False) if record.equal else ():
            if step := self.live.get(group_unit(group)):
                sign = Evidence(record.rank, node, error=record.reason, cause=Cause.DIVERGED)
                self.live[step.unit] = replace(step, recalled=record.reason, diverged=sign)

    def full_restart(self, record: records.FullRestart) -> None:
        self.step = max(self.step, record.step or 0)
        self.resuming = self.equal = record.checkpoint_step or 0
        self.undone = set(self.live)
        self.history += 1

    def _stepped(self, step: int | None) -> None:
        """A step is committed. The first one after a full restart is where the history goes on."""
        if step is not None:
            self.step, self.resuming = step if self.resuming is not None else max(self.step, step), None


def _exit(record: records.StepExited, time: float, step: Live | None) -> Exit:
    """What the restart budgets need to know about an exit; the traceback stays in the journal."""
    return Exit(
        record.attempt,
        time,
        cause_of(record.cause),
        step.place.nodes if step is not None else (),
        code=record.code,
        signal=record.signal,
        node=record.node,
        rank=record.rank,
        error=record.error,
        step=record.step,
        echo=Says.ECHO in log_signs.says(record.error),
        launched=record.launched is not False,
        healthy_s=record.healthy_s or 0.0,
        ran_as=None if step is None or step.id == StepId(step.unit, record.attempt) else step.id,
    )
