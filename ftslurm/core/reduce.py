"""What has happened, folded into the state. One function per kind of event; what to do about it is decide.py's."""

from __future__ import annotations

import signal
from functools import singledispatch

from ftslurm.config.schema import Config
from ftslurm.core import parameter_servers
from ftslurm.core.groups import fault_drills, progress_lines, ranks
from ftslurm.core.groups.exits import Outcome, ended
from ftslurm.core.groups.launching import rank_row
from ftslurm.core.groups.timings import since
from ftslurm.core.health import lost_connections, node_fate, silence
from ftslurm.core.jobs import queue, scale, supply
from ftslurm.core.lineage import continuity, rollover, takeover
from ftslurm.core.state.actions import Action, Broken
from ftslurm.core.state.events import (
    Adopted,
    Alive,
    Checkpointed,
    Dumped,
    Ended,
    Event,
    Explained,
    FirstQuorum,
    Granted,
    Hello,
    InjectAsked,
    InjectRefused,
    JobEnds,
    JobEvent,
    LighthouseUp,
    Looked,
    NodeFate,
    NodesLeft,
    NodeState,
    Progressed,
    QuorumBroken,
    QuorumRefused,
    QuorumSeen,
    Ready,
    Restored,
    ScaleAsked,
    ScriptDone,
    Served,
    Serving,
    SessionOpened,
    StepEvent,
    StopAsked,
    StoreUp,
    TaskDone,
    TaskFailed,
    Traced,
    Warned,
)
from ftslurm.core.state.model import SIGTERM, SLURM, SRUN, Cause, Ending, Evidence, Phase, RunOutcome, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.transitions import stop
from ftslurm.core.state.units import independent, swap, tasks_of
from ftslurm.core.state.values import replace
from ftslurm.protocol import records

LONGEST_TRACEBACK = 8000  # characters that are kept
CRASHES = (signal.SIGABRT, signal.SIGSEGV)
MOST_WARNINGS = 20  # different ones, of a run
_OF_GROUPS = (Progressed, Checkpointed, Restored, Served, Serving, SessionOpened)  # events of a group's training


def observe(state: RunState, event: Event, now: float, config: Config) -> Outcome:
    """Fold one event into the state; the actions are the records it leaves and the answers it calls for at once."""
    if isinstance(event, JobEvent):
        return queue.observe(state, event, now, config)
    if isinstance(event, ScaleAsked):
        return scale.observe(state, event, now, config)
    if isinstance(event, Granted):
        known = event.past is None and not supply.array(config)  # nobody has asked for jobs yet
        state = replace(
            state,
            allocation=event.allocation,
            job_pool=replace(state.job_pool, had=len(event.allocation.nodes), polled=known),
        )
        state, actions = continuity.opened(state, event, now, config)
        if event.allocation.nodes:
            granted = records.AllocationGranted(
                allocation=event.allocation.name, nodes=event.allocation.nodes, ends=None
            )
            actions = [granted, *actions]
        return state, actions
    if isinstance(event, NodesLeft):
        return supply.nodes_left(silence.slurm_answered(state), event, config)
    if isinstance(event, Looked):
        return silence.looked(state, event, now)
    if isinstance(event, NodeState):
        return silence.told_of(state, event.node, event.state, event.reason, now, config)
    if isinstance(event, NodeFate):
        return node_fate.told(state, event), []
    if isinstance(event, InjectAsked):
        return fault_drills.inject_asked(state, event, now)
    if isinstance(event, StopAsked):
        if event.by == SRUN and state.ending is not None:
            return state, []  # every srun says the same
        record = records.Command(what="stop", by=event.by.name, reason=event.reason)
        if state.ending is not None and not _forbids(state.ending, event):
            return _explained(state, event), [record]
        ending = Ending(event.outcome, event.reason, event.cause, event.by, now + event.wait_s)
        return replace(state, ending=ending), [record]
    if isinstance(event, JobEnds):
        return rollover.begin(state, event, now, config)
    if isinstance(event, Explained):
        return replace(state, ending=state.ending and replace(state.ending, until=0.0)), []
    if isinstance(event, Alive):
        return silence.heard(state, (event,), now), []
    unit = state.table.living(event.id)
    if unit is None:
        return state, []  # a late word of an attempt that is over
    if unit.group is None and isinstance(event, _OF_GROUPS):
        return state, []  # the Lighthouse and standbys do not train
    return _step_event(event, state, unit, now, config)


def _forbids(ending: Ending, event: StopAsked) -> bool:
    """Whether the run was to go on in another job, and now is not: somebody stops it, or cancels the job."""
    slurms_own = event.by == SLURM or (event.by == SIGTERM and ending.by == SRUN)
    return ending.outcome is RunOutcome.GOES_ON and not slurms_own


def _explained(state: RunState, event: StopAsked) -> RunState:
    """Slurm has said why it ends the run, a moment after it began to."""
    ending = state.ending
    if ending is None or ending.by != SIGTERM or event.by != SLURM or event.cause is Cause.CANCELLED:
        return state
    for unit in state.table.in_phase(Phase.STOPPING):
        if unit.current.intent is ending.cause:
            state = swap(state, replace(unit, current=replace(unit.current, intent=event.cause)))
    return replace(state, ending=replace(ending, outcome=event.outcome, reason=event.reason, cause=event.cause))


@singledispatch
def _step_event(event: StepEvent, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    raise TypeError(event)


@_step_event.register
def _(event: Hello, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    hosts = list(unit.current.hosts)
    if event.task < len(hosts):
        hosts[event.task] = event.node
    unit = replace(
        unit, current=replace(unit.current, hosts=tuple(hosts), slurm_step=event.slurm_step or unit.current.slurm_step)
    )
    unit = silence.beat(unit, Alive(event.id, event.task, now))
    if None not in hosts and unit.marks.hello is None:
        unit = replace(unit, marks=replace(unit.marks, hello=now))
    return swap(state, unit), []


@_step_event.register
def _(event: Adopted, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    return takeover.said(event, state, unit, now, config)


@_step_event.register
def _(event: Ready, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    unit = replace(unit, current=replace(unit.current, ready=unit.current.ready | {event.task}))
    actions: list[Action] = []
    if len(unit.current.ready) == tasks_of(unit, config):
        warm = unit.is_standby and unit.phase is Phase.STARTING  # not if it is being brought down
        unit = replace(unit, marks=replace(unit.marks, ready=now), phase=Phase.RUNNING if warm else unit.phase)
        table = ranks.table([str(h) for h in unit.current.hosts])
        other_ranks: tuple[records.RankRow, ...] = ()
        if unit.place is not None and table != ranks.expected(unit.place, config.groups.workers):
            other_ranks = tuple(rank_row(row) for row in table)  # Slurm dealt the tasks out in another order
        actions.append(_ready(unit, now, ranks=other_ranks))
    return swap(state, unit), actions


@_step_event.register
def _(event: StoreUp, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    return swap(state, replace(unit, current=replace(unit.current, store=(event.addr, event.port)))), []


@_step_event.register
def _(event: LighthouseUp, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    if unit.phase is not Phase.STARTING:
        return state, []  # it is being brought down already
    up = replace(unit, phase=Phase.RUNNING, current=replace(unit.current, ready=frozenset({0})))
    state = replace(swap(state, up), lighthouse_url=event.url)
    return state, [] if unit.reason == "adopted" else [_ready(unit, now, url=event.url)]


def _ready(
    unit: Unit, now: float, url: str | None = None, ranks: tuple[records.RankRow, ...] = ()
) -> records.StepReady:
    return records.StepReady(
        unit=unit.name,
        group=unit.group,
        attempt=unit.attempt,
        seconds=since(unit.marks.launched, now),
        url=url,
        slurm_step=unit.current.slurm_step,
        ranks=ranks,
    )


@_step_event.register
def _(event: QuorumRefused, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    return state, [records.QuorumRefused(reason=event.reason)]


@_step_event.register
def _(event: QuorumBroken, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    return state, [Broken(u.id, event.quorum_id) for u in state.table.in_phase(Phase.RUNNING)]


@_step_event.register
def _(event: QuorumSeen, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    groups = (number for number, _ in event.members if 0 <= number < state.table.groups)
    units = {number: u for number in groups if (u := state.table.group(number)).phase is Phase.RUNNING}
    steps = ((units[number], step) for number, step in event.members if number in units)
    seen = (replace(u, current=replace(u.current, seen=(event.quorum_id, step))) for u, step in steps)
    state = replace(state, table=state.table.put_unnoticed(seen))
    return state, []


@_step_event.register
def _(event: Progressed, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    progress = records.Progress(
        group=unit.group_id,
        attempt=unit.attempt,
        step=event.step,
        quorum_id=event.quorum_id,
        participants=event.participants,
        committed=event.committed,
        aborted=event.aborted,
        gap_s=event.gap_s,
    )
    actions: list[Action] = []
    joins = (
        unit.current.step is None and event.committed > 0 and unit.current.adoption is None
    )  # else adopt.said tells of it
    if joins and not independent(config) and continuity.is_new_history(event, unit, state):
        error = (
            f"ended by ftslurm: it had begun a new history (step {event.step}, the run had reached "
            f"{max(unit.current.floor, state.lineage.step)})"
        )
        state = swap(state, replace(unit, current=replace(unit.current, intent=Cause.UNKNOWN)))
        return observe(state, TaskFailed(unit.id, Evidence(None, None, error=error)), now, config)
    if joins:
        unit = replace(unit, marks=replace(unit.marks, joined=now))
        actions.append(takeover.joined(unit, now, event.step, event.quorum_id, event.participants))
    unit, line = progress_lines.reported(
        replace(unit, current=replace(unit.current, aborted=event.aborted)), progress, now, state.table.groups
    )
    actions += line
    if event.committed > 0:
        unit = replace(unit, current=replace(unit.current, step=event.step))
        state = replace(
            state,
            lineage=replace(
                state.lineage,
                step=event.step if state.lineage.resuming else max(state.lineage.step, event.step),
                resuming=False,
            ),
        )
        state = (
            state
            if state.drills.stepping_since is not None
            else replace(state, drills=replace(state.drills, stepping_since=now))
        )
    state, drills = fault_drills.inject_planned(swap(state, unit), unit, now, config)
    text = continuity.unsaved(state, event, config)
    state, warning = (state, []) if text is None else _warn(state, unit, text)
    return state, actions + drills + warning


@_step_event.register
def _(event: Checkpointed, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    state = rollover.checkpointed(replace(state, lineage=replace(state.lineage, saved=True)), event)
    if event.error is not None:
        failed = records.CheckpointFailed(
            group=unit.group_id,
            attempt=unit.attempt,
            step=event.step,
            path=event.path,
            seconds=event.seconds,
            error=event.error,
        )
        return state, [failed]
    if not state.lineage.resuming:  # progress is told once a second, and may be further behind
        state = replace(state, lineage=replace(state.lineage, step=max(state.lineage.step, event.step)))
    saved = records.CheckpointSaved(
        group=unit.group_id, attempt=unit.attempt, step=event.step, path=event.path, seconds=event.seconds
    )
    return state, [saved]


@_step_event.register
def _(event: Restored, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    record = records.CheckpointRestored(group=unit.group_id, attempt=unit.attempt, step=event.step, path=event.path)
    return swap(state, continuity.restored(unit, event, state)), [record]


@_step_event.register
def _(event: FirstQuorum, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    if unit.marks.quorum is not None:
        return state, []
    return swap(state, replace(unit, marks=replace(unit.marks, quorum=now))), []


@_step_event.register(Serving)
@_step_event.register(Served)
@_step_event.register(SessionOpened)
def _(event: Serving | Served | SessionOpened, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    return parameter_servers.observe(event, state, unit, now, config)


@_step_event.register
def _(event: Traced, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    return swap(
        state,
        replace(
            unit, current=replace(unit.current, traceback=(unit.current.traceback + event.text)[-LONGEST_TRACEBACK:])
        ),
    ), []


@_step_event.register
def _(event: Warned, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    return _warn(state, unit, event.text)


def _warn(state: RunState, unit: Unit, text: str) -> Outcome:
    if text in state.warnings or len(state.warnings) >= MOST_WARNINGS:
        return state, []  # every group says the same, and every attempt again
    state = replace(state, warnings=state.warnings | {text})
    return state, [records.Warned(group=unit.group, text=text)]


@_step_event.register
def _(event: Dumped, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    unit = replace(unit, current=replace(unit.current, dumped=unit.current.dumped | {event.task}))
    if unit.phase is Phase.STOPPING and len(unit.current.dumped) == tasks_of(unit, config):
        unit = replace(unit, due=min(unit.due, now))  # nothing more to wait for
    return swap(state, unit), []


@_step_event.register
def _(event: InjectRefused, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    refused = records.FaultRefused(kind=event.fault, group=unit.group, rank=event.task, reason=event.error)
    return swap(state, replace(unit, current=replace(unit.current, drilled=None))), [refused]


@_step_event.register
def _(event: TaskDone, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    return swap(state, replace(unit, current=replace(unit.current, done=unit.current.done | {event.task}))), []


@_step_event.register
def _(event: ScriptDone, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    return swap(state, replace(unit, current=replace(unit.current, over=unit.current.over | {event.task}))), []


@_step_event.register
def _(event: TaskFailed, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    evidence = event.evidence
    if evidence.task in unit.current.over and evidence.signal in CRASHES:
        # Its work was done. Libraries' threads may bring the process down while the interpreter is taken apart (seen
        # with torch: "terminate called without an active exception"); what it had to say is in its log.
        return swap(state, replace(unit, current=replace(unit.current, done=unit.current.done | {evidence.task}))), []
    if evidence.node is None and evidence.task is not None and evidence.task < len(unit.current.hosts):
        evidence = replace(evidence, node=unit.current.hosts[evidence.task])
    unit = replace(unit, current=replace(unit.current, evidence=(*unit.current.evidence, evidence)))
    actions: list[Action] = []
    if evidence.node_lost and evidence.node is not None:
        state, actions = silence.exclude(state, evidence.node, evidence.error or "lost", now, config)
    if unit.phase is not Phase.STOPPING:  # decide.py kills what is STOPPING and due
        if queue.is_told(unit, evidence) and state.ending is None and unit.place is not None:
            state = queue.doubt(state, unit.place.allocation, now)  # why? vacate.py brings it down, politely
            return swap(state, replace(unit, current=replace(unit.current, told=unit.current.told or now))), actions
        unit = stop(unit, None, now, now, detect_s=fault_drills.since(unit, now))
        unit = lost_connections.failed(unit, now, config)
    return swap(state, unit), actions


@_step_event.register
def _(event: Ended, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    again = takeover.not_reached(event, state, unit, now, config)
    return ended(event, state, takeover.never_reached(unit), now, config) if again is None else (again, [])
