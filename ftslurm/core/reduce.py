"""Fold events into the state, with one function for each kind of event. rules.py decides on actions."""

from __future__ import annotations

import signal
from typing import Any

from immutables import Map
from typing_extensions import assert_never

from ftslurm.core import leaving, orders, slow, user_requests
from ftslurm.core.groups import fault_drills, finishing, reports, standby
from ftslurm.core.groups.exits import ended
from ftslurm.core.groups.verdict import after_abort
from ftslurm.core.health import (
    divergence,
    hangs,
    lost_connections,
    node_health,
    partition,
)
from ftslurm.core.jobs import queue, supply
from ftslurm.core.lineage import continuity, rollover, takeover
from ftslurm.core.state import errands
from ftslurm.core.state.events import (
    Alive,
    Asked,
    Ended,
    ErrandDone,
    Event,
    Explained,
    Granted,
    JobEnds,
    JobEvent,
    JobsSeen,
    Leaving,
    Looked,
    NodeFate,
    NodesLeft,
    NodesNoted,
    StepEvent,
    StopAsked,
    TaskFailed,
)
from ftslurm.core.state.model import SIGTERM, SLURM, SRUN, Ending, Evidence, Phase, RunOutcome, Unit, replace
from ftslurm.core.state.transitions import run, stop, stop_politely
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.units import tasks_of
from ftslurm.protocol import messages, records
from ftslurm.protocol.causes import Cause, Says
from ftslurm.protocol.traces import added
from ftslurm.words import by_count, listed

MOST_COMMANDS = 200  # taken last, of which a file may still be in the inbox
DOUBTS_S = 1.5  # Slurm is asked for at most this long whether the controller's own job ends
CRASHES = (signal.SIGABRT, signal.SIGSEGV)


def observe(turn: Turn, event: Event) -> None:
    """Fold one event into the state, with its records and the actions that cannot wait for the rules."""
    if isinstance(event, StepEvent):
        unit = turn.table.living(event.id)
        if unit is not None:  # else it is late, and that attempt is over
            _of_step(turn, unit, event)
        return
    if isinstance(event, JobEvent):
        queue.observe(turn, event)
        if isinstance(event, JobsSeen) and turn.goes_on and queue.all_cancelled(turn):
            _stop_asked(turn, StopAsked(queue.ALL_CANCELLED, SLURM))
        return
    match event:
        case Alive():
            node_health.heard(turn, (event,))
        case Granted():
            _granted(turn, event)
        case Leaving(reason, leader):
            turn.set(left=True)
            turn.do(records.ControllerLeft(reason=reason, leader=leader))
        case ErrandDone(errand):
            errands.done(turn, errand)
        case NodesLeft():
            queue.slurm_answered(turn)
            supply.nodes_left(turn, event)
        case Looked():
            node_health.looked(turn, event)
        case NodesNoted(nodes, text):
            turn.node(*(turn.nodes.those(lambda node: node.noted) - nodes), noted=False)
            turn.node(*nodes, noted=True)
            reports.warn(turn, None, text)
        case NodeFate():
            node_health.told(turn, event)
        case Asked():
            _asked(turn, event)
        case StopAsked():
            _stop_asked(turn, event)
        case JobEnds():
            rollover.begin(turn, event)
        case Explained(signalled):
            if signalled and turn.state.ending is not None:
                turn.set(ending=replace(turn.state.ending, until=0.0))
            turn.set(doubted=0.0)
        case _:
            assert_never(event)


def _of_step(turn: Turn, unit: Unit, event: StepEvent) -> None:
    if isinstance(event, TaskFailed):
        _task_failed(turn, event.evidence, unit, event.exited)
    elif isinstance(event, Ended):
        if not takeover.not_reached(turn, event, unit):
            ended(turn, event, unit)
    elif unit.group is not None or not isinstance(event.message, OF_GROUPS):  # the others do not train
        _heard(turn, event.message, unit)


REQUESTS = {
    "scale": user_requests.scale,
    "restart": user_requests.restart,
    "stacks": user_requests.stacks,
    "save": user_requests.save,
    "inject": fault_drills.inject_asked,
    "drain": leaving.drain,
    "undrain": leaving.undrain,
}


def _asked(turn: Turn, event: Asked) -> None:
    """Do what a user asks for, or say why not."""
    if not _take(turn, event.command):
        return
    try:
        REQUESTS[event.what](turn, event)
    except user_requests.Refused as error:
        wrong = isinstance(error, user_requests.Wrong)
        turn.do(records.CommandRefused(reason=str(error), wrong=wrong, **event.about))


def _take(turn: Turn, command: str) -> bool:
    """Note that a command is taken; return False if an earlier controller has taken it."""
    known = turn.state.commands
    if command and command in known:
        return False
    turn.set(commands=(*known, command)[-MOST_COMMANDS:])
    return True


OF_GROUPS = (
    messages.Progress
    | messages.Digest
    | messages.Room
    | messages.CanSave
    | messages.Checkpointed
    | messages.Restored
    | messages.Healed
    | messages.Reads
    | messages.Serving
    | messages.Served
    | messages.SessionOpened
)


def _heard(turn: Turn, said: messages.Report, unit: Unit) -> None:
    """Fold a message of a live step into the state; `unit` is the unit of the step."""
    match said:
        case messages.Hello():
            _hello(turn, said, unit)
        case messages.NodeCheck():
            _node_checked(turn, said, unit)
        case messages.Adopted():
            takeover.guard_reported(turn, said, unit)
        case messages.Ready(torchft):
            reports.step_up(turn, turn.attempt(unit, ready=unit.current.ready.set(said.task, torchft)))
        case messages.StoreUp(addr, port, task=task):
            turn.attempt(unit, stores=unit.current.stores.set(task, (addr, port)))
        case messages.LighthouseUp():
            _lighthouse_up(turn, said, unit)
        case messages.QuorumRefused(reason):
            turn.do(records.QuorumRefused(reason=reason))
        case messages.QuorumBroken(quorum):
            for other in turn.table.in_phase(Phase.RUNNING):
                turn.send(other, messages.Broken(quorum))
        case messages.GroupAside():
            orders.aside(turn, said)
        case messages.FirstQuorum():
            if unit.marks.quorum is None:
                turn.mark(unit, quorum=turn.now)
        case messages.Room():
            standby.told_room(turn, said, unit)
        case messages.Progress():
            _progressed(turn, said, unit)
        case messages.Digest():
            divergence.compare(turn, said, unit)
        case messages.Serving() | messages.Served() | messages.SessionOpened():
            orders.server_said(turn, said, unit)
        case messages.Trace(text, task=task):
            turn.attempt(unit, traces=added(unit.current.traces, task, text))
        case messages.Notice(text):
            reports.warn(turn, unit.group, text)
        case messages.Dumped(command, task=task):
            errands.answered(turn, unit, messages.Dump(command, task))
            (user_requests.stacks_taken if command else _dumped)(turn, said, unit)
        case messages.Injected():
            _injected(turn, said, unit)
        case messages.Unreached():
            partition.answered(turn, said, unit)
        case messages.CanSave():
            turn.attempt(unit, saves=True)
        case messages.Checkpointed():
            _checkpointed(turn, said, unit)
        case messages.Restored():
            continuity.restored(turn, said, unit)
        case messages.Reads():
            reports.reads(turn, said, unit)
        case messages.Healed():
            reports.healed(turn, said, unit)
        case messages.Done(task=task):
            _release_rank_0(turn, turn.attempt(unit, over=unit.current.over | {task}))
        case messages.Exited():
            _exited(turn, said, unit)
        case _:
            raise AssertionError(f"{said} is an event of its own")


_TOLD = (Cause.REQUESTED, Cause.CANCELLED, Cause.HANG)  # with these the controller itself has sent SIGTERM


def _granted(turn: Turn, event: Granted) -> None:
    if event.resumed is not None:
        takeover.resume(turn, event)
        return
    granted = event.allocation
    if granted.nodes:
        turn.do(takeover.granted(granted))
    turn.set(allocation=granted, home=event.home)
    turn.set_job_pool(had=len(granted.nodes), polled=not turn.config.job_per_group)  # no job has been submitted yet
    turn.set_nodes(leaf_of=event.leaf_of)
    continuity.opened(turn, event)


def _stop_asked(turn: Turn, event: StopAsked) -> None:
    ending = turn.state.ending
    if event.command and not _take(turn, event.command):
        return
    if ending is not None and isinstance(event.by, str) and (event.by == SRUN or event.reason == ending.reason):
        return  # the srun of every step reports it; a user, who has a number, gets an answer each time
    if event.outcome is RunOutcome.REQUEUED:
        if ending is not None and ending.outcome is RunOutcome.STOPPED and isinstance(ending.by, int):
            return  # what a user has stopped stays stopped
        event = replace(event, reason=event.reason + _by_the_script(turn))
    turn.do(records.Command(what="stop", by=event.by, reason=event.reason))
    if ending is None or _forbids(ending, event):
        turn.set(ending=Ending(event.outcome, event.reason, event.cause, event.by, turn.now + event.wait_s))
    elif ending.by == SIGTERM and event.by == SLURM and event.cause is not Cause.CANCELLED:  # a moment after its signal
        turn.set(ending=replace(ending, outcome=event.outcome, reason=event.reason, cause=event.cause))


def _by_the_script(turn: Turn) -> str:
    """Return a hint that a script has requeued the job; empty: nothing speaks for it."""
    line = turn.config.internal.requeues
    told = [f"group {unit.group}" for unit in turn.table.in_phase(Phase.STOPPING) if unit.current.intent in _TOLD]
    if not told and line is None:
        return ""
    when = f" when {listed(told)} {by_count(len(told), 'was', 'were')} told to leave" if told else ""
    return f". If the script did that{when} ({line or 'scontrol requeue'}), remove the line: ftslurm requeues the job"


def _forbids(ending: Ending, event: StopAsked) -> bool:
    """Return whether a run that was to continue in another job must not: a user has stopped it or cancelled the job."""
    slurms_own = event.by == SLURM or (event.by == SIGTERM and ending.by == SRUN)
    return ending.outcome is RunOutcome.GOES_ON and not slurms_own


def _hello(turn: Turn, said: messages.Hello, unit: Unit) -> None:
    hosts = list(unit.current.hosts)
    if said.task < len(hosts):
        hosts[said.task] = said.host
    unit = turn.attempt(unit, hosts=tuple(hosts), slurm_step=said.slurm_step or unit.current.slurm_step)
    turn.put(node_health.beat(unit, Alive(unit.id, said.task, turn.now), turn.config))
    if turn.state.retries:  # Slurm starts steps again
        turn.set(retries=0)
    if None not in hosts and unit.marks.hello is None:
        reports.step_up(turn, turn.mark(unit, hello=turn.now))


def _node_checked(turn: Turn, said: messages.NodeCheck, unit: Unit) -> None:
    if said.node not in unit.place.nodes:
        return
    turn.attempt(unit, checking=unit.current.checking - {said.node})
    if said.error is not None and said.unstarted:  # the setting may be wrong, and the node sound
        error = f"health.preflight cannot be run there: {said.error}"
        sign = Evidence(said.task, said.node, error=error, cause=Cause.START_FAILED)
        _task_failed(turn, sign, unit)
    elif (why := node_health.checked(turn, said)) is not None:
        _task_failed(turn, Evidence(said.task, said.node, hardware=why), unit)


def _lighthouse_up(turn: Turn, said: messages.LighthouseUp, unit: Unit) -> None:
    if said.serves:
        turn.mark(unit, begun=unit.marks.begun or turn.now)
    if unit.phase is not Phase.STARTING:
        return  # it is already being brought down
    is_known = bool(unit.current.ready)  # to the controller before this one
    run(turn, turn.attempt(unit, ready=Map({0: said.torchft})))
    turn.set(lighthouse_url=said.url)
    if not is_known:
        reports.step_ready(turn, unit, url=said.url)


def _progressed(turn: Turn, said: messages.Progress, unit: Unit) -> None:
    # An adopted attempt may have joined before: takeover.guard_reported writes its line.
    joins = unit.current.step is None and said.committed > 0 and not unit.adopting
    if joins and not turn.independent and continuity.is_new_history(turn, said, unit):
        _began_new_history(turn, said, unit)
        return
    if joins:
        unit = turn.mark(unit, joined=turn.now)
        turn.do(takeover.joined(unit, turn.now, said.step, said.quorum_id, said.participants))
        reports.warn(turn, unit.group, finishing.not_alike(turn, unit, said.step))
    progress = records.Progress(
        **unit.of_group,
        step=said.step,
        quorum_id=said.quorum_id,
        participants=said.participants,
        committed=said.committed,
        aborted=said.aborted,
        gap_s=said.gap_s,
    )
    unit = turn.attempt(unit, aborted=said.aborted)
    unit = reports.reported(turn, unit, progress)
    if said.committed > 0:
        unit = turn.attempt(unit, step=said.step)
        reached = said.step if turn.lineage.resuming else max(turn.lineage.step, said.step)
        turn.set_lineage(step=reached, resuming=False, advanced=True)
    slow.reported(turn, said, unit)
    hangs.learn(turn, said.gap_s)
    fault_drills.inject_planned(turn, unit)
    reports.warn(turn, unit.group, continuity.unsaved(turn, said))


def _exited(turn: Turn, said: messages.Exited, unit: Unit) -> None:
    """Note that a rank has ended with exit code 0, or would have."""
    current = unit.current
    left = said.step if current.left is None else max(current.left, said.step or 0)
    done, termed = current.done | {said.task}, current.termed or said.term
    _release_rank_0(turn, turn.attempt(unit, done=done, termed=termed, left=left))


def _release_rank_0(turn: Turn, unit: Unit) -> None:
    """Let rank 0 end, which hosts the group's store, once no script of its group runs any more."""
    tasks = tasks_of(unit, turn.config)
    if tasks > 1 and len(unit.current.over | unit.current.done) == tasks:
        turn.send(unit, messages.MayLeave())


def _began_new_history(turn: Turn, said: messages.Progress, unit: Unit) -> None:
    """Bring down a group that trains from the start although the run is further."""
    reached = max(unit.current.floor, turn.lineage.step)
    error = f"ended by ftslurm: it had begun a new history (step {said.step}, the run had reached {reached})"
    unit = turn.attempt(unit, intent=Cause.UNKNOWN)
    _task_failed(turn, Evidence(error=error), unit)


def _checkpointed(turn: Turn, said: messages.Checkpointed, unit: Unit) -> None:
    if said == unit.current.checkpointed:
        return  # a repetition: a guard does not know what an earlier controller has heard
    unit = turn.attempt(unit, checkpointed=said)
    turn.set_lineage(saved=True)
    rollover.checkpointed(turn, said)
    about: dict[str, Any] = {**unit.of_group, "step": said.step, "path": said.path, "seconds": said.seconds}
    if said.error is not None:
        turn.do(records.CheckpointFailed(**about, error=said.error))
        return
    if not turn.lineage.resuming:  # progress is reported once a second, and may be behind
        turn.set_lineage(step=max(turn.lineage.step, said.step))
    equal = min(divergence.agreed(turn, rank) for rank in range(tasks_of(unit, turn.config)))
    turn.do(records.CheckpointSaved(**about, equal=equal))


def _dumped(turn: Turn, said: messages.Dumped, unit: Unit) -> None:
    unit = turn.attempt(unit, dumped=unit.current.dumped | {said.task})
    if unit.phase is Phase.STOPPING and len(unit.current.dumped) == tasks_of(unit, turn.config):
        turn.change(unit, due=min(unit.due, turn.now))  # all stacks are written


def _injected(turn: Turn, said: messages.Injected, unit: Unit) -> None:
    errands.answered(turn, unit, messages.Inject(said.fault, said.task or 0))
    if said.error is not None:
        turn.do(records.FaultRefused(kind=said.fault, group=unit.group, rank=said.task, reason=said.error))
        turn.attempt(unit, drilled=None)


def _task_failed(turn: Turn, evidence: Evidence, unit: Unit, exited: messages.Exited | None = None) -> None:
    if evidence.task in unit.current.over and evidence.signal in CRASHES:
        # Its script had ended without an error. Threads of libraries may crash the process while the interpreter shuts
        # down (seen with torch: "terminate called without an active exception").
        _exited(turn, exited or messages.Exited(None, evidence.signal, oom=False, task=evidence.task), unit)
        return
    if evidence.node is None and evidence.task is not None:
        evidence = replace(evidence, node=unit.node_of(evidence.task))
    if Says.ABORT in evidence.says and len(unit.place.nodes) == 1:
        return  # node_health.py decides whether its only node is lost
    if Says.TIMEOUT in evidence.says and (awaited := hangs.awaited(turn)):
        evidence = replace(evidence, error=awaited)
    evidence = after_abort(unit, evidence)
    unit = turn.attempt(unit, evidence=(*unit.current.evidence, evidence))
    if evidence.node_lost and evidence.node is not None:
        node_health.exclude(turn, evidence.node, evidence.error or "lost")
    ordered, own = evidence.cause in queue.ORDERED, unit.place.allocation is None
    if ordered and own:
        turn.set(doubted=turn.now + DOUBTS_S)
    if unit.phase is Phase.STOPPING:
        return  # rules._bring_down kills it when it is due
    if ordered and not own:
        queue.doubt(turn, unit)
        stop_politely(turn, unit, None)
        return
    unit = stop(turn, unit, None, died=fault_drills.struck(unit, turn.now))
    lost_connections.failed(turn, unit)
