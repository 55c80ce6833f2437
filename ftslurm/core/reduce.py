"""Fold events into the state, with one function for each kind of event. rules.py decides on actions."""

from __future__ import annotations

import signal
from typing import Any

from typing_extensions import assert_never

from ftslurm.config.schema import Config
from ftslurm.core import drain, parameter_servers, user_requests
from ftslurm.core.groups import fault_drills, progress_lines, ranks, standby
from ftslurm.core.groups.exits import Outcome, ended
from ftslurm.core.groups.launching import rank_row
from ftslurm.core.groups.timings import since
from ftslurm.core.groups.verdict import aborts, after_abort
from ftslurm.core.health import (
    fitness,
    hang_limit,
    lost_connections,
    node_states,
    silence,
)
from ftslurm.core.jobs import queue, scale, supply
from ftslurm.core.lighthouse_orders import aside
from ftslurm.core.lineage import continuity, rollover, takeover
from ftslurm.core.state.actions import Action, Send
from ftslurm.core.state.events import (
    Alive,
    Asked,
    Ended,
    Event,
    Explained,
    Granted,
    InjectAsked,
    JobEnds,
    JobEvent,
    Looked,
    NodeFate,
    NodesChecked,
    NodesLeft,
    NodesNoted,
    ScaleAsked,
    StepEvent,
    StopAsked,
    TaskFailed,
)
from ftslurm.core.state.model import SIGTERM, SLURM, SRUN, Ending, Evidence, Phase, RunOutcome, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.traces import added
from ftslurm.core.state.transitions import run, stop
from ftslurm.core.state.units import independent, swap, tasks_of
from ftslurm.core.state.values import replace
from ftslurm.protocol import messages, records
from ftslurm.protocol.causes import Cause

CRASHES = (signal.SIGABRT, signal.SIGSEGV)
MOST_WARNINGS = 20  # different ones, per run


def observe(state: RunState, event: Event, now: float, config: Config) -> Outcome:
    """Fold one event into the state.

    Returns:
        The new state; the event's records and the actions that cannot wait for the rules.
    """
    if isinstance(event, JobEvent):
        return queue.observe(state, event, now, config)
    if isinstance(event, Alive):
        return silence.heard(state, (event,), now), []
    if isinstance(event, StepEvent):
        unit = state.table.living(event.id)
        if unit is None:
            return state, []  # late: that attempt is over
        if isinstance(event, TaskFailed):
            return _task_failed(event, state, unit, now, config)
        if isinstance(event, Ended):
            return _ended(event, state, unit, now, config)
        if unit.group is None and isinstance(event.message, OF_GROUPS):
            return state, []  # the Lighthouse and standbys do not train
        return _heard(state, event.message, unit, now, config)
    match event:
        case Granted():
            return _granted(state, event, now, config)
        case NodesLeft():
            return supply.nodes_left(silence.slurm_answered(state), event, config)
        case Looked():
            return silence.looked(state, event, now)
        case NodesNoted(nodes, text):
            return _warn(replace(state, nodes=replace(state.nodes, noted=nodes)), None, text)
        case NodeFate():
            return node_states.told(state, event, now, config)
        case NodesChecked():
            return fitness.checked(state, event, now, config)
        case ScaleAsked():
            return scale.observe(state, event, now, config)
        case Asked():
            return _asked(state, event, now, config)
        case InjectAsked():
            return fault_drills.inject_asked(state, event, now)
        case StopAsked():
            return _stop_asked(state, event, now)
        case JobEnds():
            return rollover.begin(state, event, now, config)
        case Explained():
            return queue.explained(replace(state, ending=state.ending and replace(state.ending, until=0.0))), []
        case _:
            assert_never(event)


REQUESTS = {
    "restart": user_requests.restart,
    "stacks": user_requests.stacks,
    "save": user_requests.save,
    "drain": drain.drain,
    "undrain": drain.undrain,
}


def _asked(state: RunState, event: Asked, now: float, config: Config) -> Outcome:
    """Do what a user asks for, and answer."""
    about: dict[str, Any] = {"command": event.command, "what": event.what, "by": event.by.name}
    about |= {"group": event.group, "rank": event.rank, "node": event.node or None}
    try:
        state, text, actions = REQUESTS[event.what](state, event, now, config)
    except user_requests.Refused as error:
        return state, [records.CommandRefused(reason=str(error), **about)]
    return state, [records.CommandDone(text=text, **about), *actions] if text else actions


OF_GROUPS = (
    messages.Progress
    | messages.Room
    | messages.CanSave
    | messages.Checkpointed
    | messages.Restored
    | messages.Serving
    | messages.Served
    | messages.SessionOpened
)


def _heard(
    state: RunState, said: messages.FromWorker | messages.FromLighthouse, unit: Unit, now: float, config: Config
) -> Outcome:
    """Fold a message of a live step into the state; `unit` is the unit of the step."""
    match said:
        case messages.Hello():
            return _hello(said, state, unit, now)
        case messages.Adopted():
            return takeover.guard_reported(said, state, unit, now, config)
        case messages.Ready():
            return _ready(said, state, unit, now, config)
        case messages.StoreUp(addr, port):
            return swap(state, replace(unit, current=replace(unit.current, store=(addr, port)))), []
        case messages.LighthouseUp():
            return _lighthouse_up(said, state, unit, now)
        case messages.QuorumRefused(reason):
            return state, [records.QuorumRefused(reason=reason)]
        case messages.QuorumBroken(quorum):
            return state, [Send(u.id, messages.Broken(quorum)) for u in state.table.in_phase(Phase.RUNNING)]
        case messages.GroupAside():
            return aside(state, said)
        case messages.QuorumIssued():
            return _quorum_issued(said, state)
        case messages.FirstQuorum():
            return _first_quorum(state, unit, now)
        case messages.Room():
            return standby.told_room(state, said, unit, config)
        case messages.Progress():
            return _progressed(said, state, unit, now, config)
        case messages.Serving() | messages.Served() | messages.SessionOpened():
            return parameter_servers.observe(said, state, unit, now, config)
        case messages.Trace(text, task=task):
            traces = added(unit.current.traces, task, text)
            return swap(state, replace(unit, current=replace(unit.current, traces=traces))), []
        case messages.Notice(text):
            return _warn(state, unit.group, text)
        case messages.Dumped():
            return _dumped(said, state, unit, now, config)
        case messages.StacksTaken():
            return user_requests.stacks_taken(state, said, unit)
        case messages.Injected():
            return _injected(said, state, unit)
        case messages.CanSave():
            return swap(state, replace(unit, current=replace(unit.current, saves=True))), []
        case messages.Checkpointed():
            return _checkpointed(said, state, unit)
        case messages.Restored():
            return _restored(said, state, unit)
        case messages.Done(task=task):
            return swap(state, replace(unit, current=replace(unit.current, over=unit.current.over | {task}))), []
        case messages.Exited(task=task):
            return swap(state, replace(unit, current=replace(unit.current, done=unit.current.done | {task}))), []
        case messages.Alive() | messages.Failed():
            raise AssertionError(f"{said} is an event of its own")
        case _:
            assert_never(said)


def _granted(state: RunState, event: Granted, now: float, config: Config) -> Outcome:
    known = event.past is None and not supply.array(config)  # no job has been submitted yet
    job_pool = replace(state.job_pool, had=len(event.allocation.nodes), polled=known)
    state, actions = continuity.opened(
        replace(
            state,
            allocation=event.allocation,
            job_pool=job_pool,
            nodes=replace(
                state.nodes,
                leaf_of=event.leaf_of,
            ),
        ),
        event,
        now,
        config,
    )
    if event.allocation.nodes:
        granted = records.AllocationGranted(allocation=event.allocation.name, nodes=event.allocation.nodes, ends=None)
        actions = [granted, *actions]
    return state, actions


def _stop_asked(state: RunState, event: StopAsked, now: float) -> Outcome:
    if state.ending is not None and (
        event.by == SRUN or (event.by, event.reason) == (state.ending.by, state.ending.reason)
    ):
        return state, []  # the srun of every step reports it
    record = records.Command(what="stop", by=event.by.name, reason=event.reason)
    if state.ending is not None and not _forbids(state.ending, event):
        return _explained(state, event), [record]
    ending = Ending(event.outcome, event.reason, event.cause, event.by, now + event.wait_s)
    return replace(state, ending=ending), [record]


def _forbids(ending: Ending, event: StopAsked) -> bool:
    """Return whether a run that was to continue in another job must not: a user has stopped it or cancelled the job."""
    slurms_own = event.by == SLURM or (event.by == SIGTERM and ending.by == SRUN)
    return ending.outcome is RunOutcome.GOES_ON and not slurms_own


def _explained(state: RunState, event: StopAsked) -> RunState:
    """Correct the cause of the run's end: Slurm reports it a moment after its signal."""
    ending = state.ending
    if ending is None or ending.by != SIGTERM or event.by != SLURM or event.cause is Cause.CANCELLED:
        return state
    for unit in state.table.in_phase(Phase.STOPPING):
        if unit.current.intent is ending.cause:
            state = swap(state, replace(unit, current=replace(unit.current, intent=event.cause)))
    return replace(state, ending=replace(ending, outcome=event.outcome, reason=event.reason, cause=event.cause))


def _hello(said: messages.Hello, state: RunState, unit: Unit, now: float) -> Outcome:
    hosts = list(unit.current.hosts)
    if said.task < len(hosts):
        hosts[said.task] = said.host
    slurm_step = said.slurm_step or unit.current.slurm_step
    unit = replace(unit, current=replace(unit.current, hosts=tuple(hosts), slurm_step=slurm_step))
    unit = silence.beat(unit, Alive(unit.id, said.task, now))
    if None not in hosts and unit.marks.hello is None:
        unit = replace(unit, marks=replace(unit.marks, hello=now))
    return swap(state, unit), []


def _ready(said: messages.Ready, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    unit = replace(unit, current=replace(unit.current, ready=unit.current.ready | {said.task}))
    if len(unit.current.ready) < tasks_of(unit, config):
        return swap(state, unit), []
    unit = replace(unit, marks=replace(unit.marks, ready=now))
    if unit.is_standby and unit.phase is Phase.STARTING:
        unit = run(unit)
    table = ranks.table([str(host) for host in unit.current.hosts])
    rows: tuple[records.RankRow, ...] = ()
    if unit.place is not None and table != ranks.expected(unit.place, config.groups.workers):
        rows = tuple(rank_row(row) for row in table)  # Slurm has distributed the tasks in another order
    return swap(state, unit), [_step_ready(unit, now, ranks=rows)]


def _lighthouse_up(said: messages.LighthouseUp, state: RunState, unit: Unit, now: float) -> Outcome:
    if unit.phase is not Phase.STARTING:
        return state, []  # it is already being brought down
    up = run(replace(unit, current=replace(unit.current, ready=frozenset({0}))))
    state = replace(swap(state, up), lighthouse_url=said.url)
    return state, [] if unit.reason == "adopted" else [_step_ready(unit, now, url=said.url)]


def _step_ready(
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


def _quorum_issued(said: messages.QuorumIssued, state: RunState) -> Outcome:
    """Note the step that each group asks to take. A large quorum comes as several messages, each with some members."""
    steps = {group: step for group, step in zip(said.members, said.steps, strict=False) if group is not None}
    units = [state.table.group(group) for group in steps if 0 <= group < state.table.groups]
    seen = (
        replace(unit, current=replace(unit.current, seen=(said.quorum_id, steps[unit.group_id])))
        for unit in units
        if unit.phase is Phase.RUNNING
    )
    return replace(state, table=state.table.put_unnoticed(seen)), []


def _progressed(said: messages.Progress, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    actions: list[Action] = []
    # An adopted attempt may have joined before: takeover.guard_reported writes its line.
    joins = unit.current.step is None and said.committed > 0 and unit.current.adoption is None
    if joins and not independent(config) and continuity.is_new_history(said, unit, state):
        return _began_new_history(said, state, unit, now, config)
    if joins:
        unit = replace(unit, marks=replace(unit.marks, joined=now))
        actions.append(takeover.joined(unit, now, said.step, said.quorum_id, said.participants))
    progress = records.Progress(
        group=unit.group_id,
        attempt=unit.attempt,
        step=said.step,
        quorum_id=said.quorum_id,
        participants=said.participants,
        committed=said.committed,
        aborted=said.aborted,
        gap_s=said.gap_s,
    )
    unit = replace(unit, current=replace(unit.current, aborted=said.aborted))
    unit, line = progress_lines.reported(unit, progress, now, state.table.groups)
    actions += line
    if said.committed > 0:
        unit = replace(unit, current=replace(unit.current, step=said.step))
        lineage = state.lineage
        reached = said.step if lineage.resuming else max(lineage.step, said.step)
        state = replace(state, lineage=replace(lineage, step=reached, resuming=False))
        if state.drills.stepping_since is None:
            state = replace(state, drills=replace(state.drills, stepping_since=now))
    state = hang_limit.learn(swap(state, unit), said.gap_s, now, config)
    state, drills = fault_drills.inject_planned(state, unit, now, config)
    text = continuity.unsaved(state, said, config)
    state, warning = (state, []) if text is None else _warn(state, unit.group, text)
    return state, actions + drills + warning


def _began_new_history(said: messages.Progress, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    """Bring down a group that trains from the start although the run is further."""
    reached = max(unit.current.floor, state.lineage.step)
    error = f"ended by ftslurm: it had begun a new history (step {said.step}, the run had reached {reached})"
    unit = replace(unit, current=replace(unit.current, intent=Cause.UNKNOWN))
    return _task_failed(TaskFailed(unit.id, Evidence(None, None, error=error)), swap(state, unit), unit, now, config)


def _checkpointed(said: messages.Checkpointed, state: RunState, unit: Unit) -> Outcome:
    state = rollover.checkpointed(replace(state, lineage=replace(state.lineage, saved=True)), said)
    if said.error is not None:
        failed = records.CheckpointFailed(
            group=unit.group_id,
            attempt=unit.attempt,
            step=said.step,
            path=said.path,
            seconds=said.seconds,
            error=said.error,
        )
        return state, [failed]
    if not state.lineage.resuming:  # progress is reported once a second, and may be behind
        state = replace(state, lineage=replace(state.lineage, step=max(state.lineage.step, said.step)))
    saved = records.CheckpointSaved(
        group=unit.group_id, attempt=unit.attempt, step=said.step, path=said.path, seconds=said.seconds
    )
    return state, [saved]


def _restored(said: messages.Restored, state: RunState, unit: Unit) -> Outcome:
    record = records.CheckpointRestored(group=unit.group_id, attempt=unit.attempt, step=said.step, path=said.path)
    return swap(state, continuity.restored(unit, said, state)), [record]


def _first_quorum(state: RunState, unit: Unit, now: float) -> Outcome:
    if unit.marks.quorum is not None:
        return state, []
    return swap(state, replace(unit, marks=replace(unit.marks, quorum=now))), []


def _warn(state: RunState, group: int | None, text: str) -> Outcome:
    if not text or text in state.warnings or len(state.warnings) >= MOST_WARNINGS:
        return state, []  # every group and every attempt reports the same
    state = replace(state, warnings=state.warnings | {text})
    return state, [records.Warned(group=group, text=text)]


def _dumped(said: messages.Dumped, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    unit = replace(unit, current=replace(unit.current, dumped=unit.current.dumped | {said.task}))
    if unit.phase is Phase.STOPPING and len(unit.current.dumped) == tasks_of(unit, config):
        unit = replace(unit, due=min(unit.due, now))  # all stacks are written
    return swap(state, unit), []


def _injected(said: messages.Injected, state: RunState, unit: Unit) -> Outcome:
    if said.error is None:
        return state, []
    refused = records.FaultRefused(kind=said.fault, group=unit.group, rank=said.task, reason=said.error)
    return swap(state, replace(unit, current=replace(unit.current, drilled=None))), [refused]


def _task_failed(event: TaskFailed, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    evidence = event.evidence
    if evidence.task in unit.current.over and evidence.signal in CRASHES:
        # Its script had ended without an error. Threads of libraries may crash the process while the interpreter shuts
        # down (seen with torch: "terminate called without an active exception").
        return swap(state, replace(unit, current=replace(unit.current, done=unit.current.done | {evidence.task}))), []
    if evidence.node is None and evidence.task is not None and evidence.task < len(unit.current.hosts):
        evidence = replace(evidence, node=unit.current.hosts[evidence.task])
    if aborts(evidence) and unit.place is not None and len(unit.place.nodes) == 1:
        return state, []  # silence.py decides whether its only node is lost
    evidence = after_abort(unit, evidence)
    unit = replace(unit, current=replace(unit.current, evidence=(*unit.current.evidence, evidence)))
    actions: list[Action] = []
    if evidence.node_lost and evidence.node is not None:
        state, actions = silence.exclude(state, evidence.node, evidence.error or "lost", now, config)
    if unit.phase is Phase.STOPPING:
        return swap(state, unit), actions  # rules._bring_down kills it when it is due
    if queue.is_told(unit, evidence) and state.ending is None and unit.place is not None:
        job = unit.place.allocation
        state = queue.doubt(state, job, now)  # Slurm is asked why
        unit = replace(unit, current=replace(unit.current, told=unit.current.told or now))
        if job is not None:
            return swap(state, unit), actions  # handover.vacate brings it down
    unit = stop(unit, None, now, now, detect_s=fault_drills.since(unit, now))
    return swap(state, lost_connections.failed(unit, now, config)), actions


def _ended(event: Ended, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    again = takeover.not_reached(event, state, unit, now, config)
    if again is not None:
        return again, []
    state, actions = ended(event, state, takeover.never_reached(unit), now, config)
    return fitness.doubt(state, unit.name, config), actions
