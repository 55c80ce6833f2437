"""What has happened, folded into the state. One function per kind of event; what to do about it is decide.py's."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

from ftslurm.config import Config
from ftslurm.core import ranks, restart
from ftslurm.core.causes import classify, describe
from ftslurm.core.model import (
    LIVE,
    Action,
    Assign,
    Begin,
    Cause,
    Ended,
    Ending,
    Event,
    Evidence,
    Exit,
    Granted,
    Hello,
    Inject,
    LighthouseUp,
    NodesLeft,
    Phase,
    Progressed,
    QuorumRefused,
    Rank,
    Ready,
    Record,
    RunState,
    StepEvent,
    StopAsked,
    StoreUp,
    TaskDone,
    TaskFailed,
    Unit,
)

Outcome = tuple[RunState, list[Action]]
_AT_THE_START = frozenset({Cause.USER_ERROR, Cause.START_FAILED})
PATIENT_STARTS = 3  # launches that reached no node, before the same words from all groups mean that none ever will
DUD_STARTS = 3  # so many starts in a row without an address, and the Lighthouse is given up


def tasks_of(unit: Unit, config: Config) -> int:
    """How many tasks a step of this unit has."""
    return 1 if unit.group is None else config.groups.nodes * config.groups.workers


def swap(state: RunState, unit: Unit) -> RunState:
    """The state with one unit replaced by its new self."""
    if unit.group is None:
        return replace(state, lighthouse=unit)
    return replace(state, groups=(*state.groups[: unit.group], unit, *state.groups[unit.group + 1 :]))


def observe(state: RunState, event: Event, now: float, config: Config) -> Outcome:
    """Fold one event into the state; the actions are the records it leaves and the answers it calls for at once."""
    if isinstance(event, Granted):
        fields: dict[str, object] = {"allocation": event.allocation.name, "nodes": list(event.allocation.nodes)}
        return replace(state, allocation=event.allocation), [Record("allocation_granted", fields)]
    if isinstance(event, NodesLeft):
        had = state.allocation.nodes if state.allocation is not None else ()
        gone = [node for node in had if node not in event.nodes and node not in state.avoid]
        why = "Slurm has taken it out of the job"
        records: list[Action] = [Record("node_excluded", {"node": node, "reason": why}) for node in gone]
        return replace(state, avoid=state.avoid | set(gone)), records
    if isinstance(event, StopAsked):
        record = Record("command", {"what": "stop", "by": event.by, "reason": event.reason})
        if state.ending is not None:
            return state, [record]
        return replace(state, ending=Ending("stopped", event.reason, event.cause)), [record]
    unit = next((u for u in state.units if u.id == event.id), None)
    if unit is None or unit.phase not in LIVE:
        return state, []  # a late word of an attempt that is over
    return _step_event(event, state, unit, now, config)


@singledispatch
def _step_event(event: StepEvent, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    raise TypeError(event)


@_step_event.register
def _(event: Hello, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    hosts = list(unit.hosts)
    if event.task < len(hosts):
        hosts[event.task] = event.node
    return swap(state, replace(unit, hosts=tuple(hosts))), []


@_step_event.register
def _(event: Ready, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    unit = replace(unit, ready=unit.ready | {event.task})
    actions: list[Action] = []
    if len(unit.ready) == tasks_of(unit, config):
        fields: dict[str, object] = {"unit": unit.name, "group": unit.group, "attempt": unit.attempt}
        fields["seconds"] = round(now - unit.launched, 3)
        table = ranks.table([str(h) for h in unit.hosts])
        if unit.place is not None and table != ranks.expected(unit.place, config.groups.workers):
            fields["ranks"] = [rank_fields(r) for r in table]  # Slurm dealt the tasks out in another order
        actions.append(Record("step_ready", fields))
    return swap(state, unit), actions


@_step_event.register
def _(event: StoreUp, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    return swap(state, replace(unit, store=(event.addr, event.port))), []


@_step_event.register
def _(event: LighthouseUp, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    if unit.phase is not Phase.STARTING:
        return state, []  # it is being brought down already
    fields: dict[str, object] = {"unit": unit.name, "group": None, "attempt": unit.attempt}
    fields |= {"seconds": round(now - unit.launched, 3), "url": event.url}
    up = replace(unit, phase=Phase.RUNNING, ready=frozenset({0}))
    state = replace(swap(state, up), lighthouse_url=event.url)
    return state, [Record("step_ready", fields)]


@_step_event.register
def _(event: QuorumRefused, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    return state, [Record("quorum_refused", {"reason": event.reason})]


@_step_event.register
def _(event: Progressed, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    fields: dict[str, object] = {"group": unit.group, "attempt": unit.attempt, "step": event.step}
    fields |= {"quorum_id": event.quorum_id, "participants": event.participants}
    actions: list[Action] = []
    joins = unit.step is None and event.committed > 0
    if joins and _is_new_history(event, unit, state):
        error = (
            f"ended by ftslurm: it came too late to heal and had begun a new history (step {event.step}, "
            f"the run had reached {state.step})"
        )
        state = swap(state, replace(unit, intent=Cause.UNKNOWN))
        return observe(state, TaskFailed(unit.id, Evidence(None, None, error=error)), now, config)
    if joins:
        seconds = round(now - unit.launched, 3)
        back = None if unit.down_since is None else round(now - unit.down_since, 3)
        actions.append(Record("group_joined", {**fields, "seconds": seconds, "recovery_s": back}))
    counts: dict[str, object] = {"committed": event.committed, "aborted": event.aborted, "gap_s": event.gap_s}
    actions.append(Record("progress", fields | counts))
    if event.committed > 0:
        unit = replace(unit, step=event.step)
        state = replace(state, step=event.step if state.resuming else max(state.step, event.step), resuming=False)
    state = swap(state, unit)
    return _drills(state, unit, config, actions)


def _is_new_history(event: Progressed, unit: Unit, state: RunState) -> bool:
    """Whether a group that comes late trains from step 0, because it found nobody to heal from.

    It has committed every step itself, and they are fewer than the run's. (At the first start this may be a group
    whose first report was overtaken by another's second.)
    """
    comes_late = unit.attempt > 0 or any(u.phase is Phase.SUCCEEDED for u in state.groups)
    return comes_late and event.step <= event.committed and event.step < state.step


def _drills(state: RunState, unit: Unit, config: Config, actions: list[Action]) -> Outcome:
    """The faults of the schedule whose step has come."""
    for i, fault in enumerate(config.faults.kill if unit.phase is Phase.RUNNING else ()):
        at = fault.at if fault.at >= 1 else fault.at * (config.job.total_steps or 0)
        if i in state.injected or fault.group != unit.group or unit.step is None or unit.step < at:
            continue
        fields: dict[str, object] = {"group": unit.group, "attempt": unit.attempt, "kind": "kill", "rank": fault.rank}
        actions += [Record("fault_injected", {**fields, "step": unit.step}), Inject(unit.id, fault.rank)]
        state = replace(state, injected=state.injected | {i})
    return state, actions


@_step_event.register
def _(event: TaskDone, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    return swap(state, replace(unit, done=unit.done | {event.task})), []


@_step_event.register
def _(event: TaskFailed, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    evidence = event.evidence
    if evidence.node is None and evidence.task is not None and evidence.task < len(unit.hosts):
        evidence = replace(evidence, node=unit.hosts[evidence.task])
    unit = replace(unit, evidence=(*unit.evidence, evidence))
    actions: list[Action] = []
    if evidence.node_lost and evidence.node is not None and evidence.node not in state.avoid:
        state = replace(state, avoid=state.avoid | {evidence.node})
        actions.append(Record("node_excluded", {"node": evidence.node, "reason": evidence.error or "lost"}))
    if unit.phase is not Phase.STOPPING:  # decide.py kills what is STOPPING and due
        unit = replace(unit, phase=Phase.STOPPING, due=now, down_since=now)
    return swap(state, unit), actions


@_step_event.register
def _(event: Ended, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    if unit.group is None and state.ending is not None:
        unit = replace(unit, intent=Cause.CANCELLED)  # scancel ends it with the rest
    verdict = classify(unit, event, tasks_of(unit, config), now)
    fields: dict[str, object] = {"unit": unit.name, "group": unit.group, "attempt": unit.attempt}
    fields |= {"code": verdict.code, "signal": verdict.signal, "cause": verdict.cause.value, "node": verdict.node}
    fields |= {"rank": verdict.rank, "error": verdict.error, "step": verdict.step}
    noticed = now if unit.down_since is None or unit.phase is not Phase.STOPPING else unit.down_since
    fields["noticed"] = round(noticed, 3)
    actions: list[Action] = [Record("step_exited", fields)]
    unit = replace(unit, exits=(*unit.exits, verdict), down_since=noticed, step=None)
    if unit.group is None:
        return _lighthouse_ended(state, unit, verdict, now, actions)
    if verdict.cause is Cause.OK:
        return swap(state, replace(unit, phase=Phase.SUCCEEDED)), actions
    return _group_failed(replace(state, checkpoint=event.checkpoint), unit, verdict, config, actions)


def _lighthouse_ended(state: RunState, unit: Unit, verdict: Exit, now: float, actions: list[Action]) -> Outcome:
    """Relaunched at once and on the same address; groups keep running and rejoin. Only a dud start is waited upon."""
    if state.ending is not None:
        return swap(state, replace(unit, phase=Phase.FAILED)), actions
    if unit.ready:
        unit = replace(unit, exits=())  # it has been up: only dud starts in a row count
    if len(unit.exits) >= DUD_STARTS:
        reason = f"the Lighthouse cannot start ({describe(verdict)}): see logs/lighthouse.log"
        state = replace(state, ending=Ending("failed", reason))
        return swap(state, replace(unit, phase=Phase.FAILED)), actions
    due = now + 1.0 if unit.exits else now
    unit = replace(unit, phase=Phase.PENDING, due=due, reason=f"restart: {describe(verdict)}", intent=None)
    return swap(state, unit), actions


def _group_failed(state: RunState, unit: Unit, verdict: Exit, config: Config, actions: list[Action]) -> Outcome:
    """A group's attempt is over and it did not end well: the next attempt, or given up; and what that means for all."""
    state = swap(state, replace(unit, phase=Phase.FAILED))  # unless something below says otherwise
    if state.ending is not None:
        return state, actions
    finished = [u.group for u in state.groups if u.phase is Phase.SUCCEEDED]
    if finished:
        reason = f"not restarted: group {finished[0]} had already finished, a fresh group would start a new history"
        return state, [*actions, given_up(unit, f"{describe(verdict)}; {reason}")]
    hopeless = _same_start_error(state)
    if hopeless:
        return replace(state, ending=Ending("failed", hopeless)), actions
    answer = restart.judge(unit.exits, config.restart, config.health.start_timeout_s)
    if isinstance(answer, restart.GiveUp):
        state, more = (
            swap(state, replace(unit, phase=Phase.FAILED)),
            given_up(unit, f"{describe(verdict)}; {answer.reason}"),
        )
        return state, [*actions, more]
    reason = f"restart: {describe(verdict)}"
    fields: dict[str, object] = {"group": unit.group, "attempt": unit.attempt + 1, "due": answer.time, "reason": reason}
    unit = replace(unit, phase=Phase.PENDING, due=answer.time, reason=reason, intent=None)
    return swap(state, unit), [*actions, Record("restart_scheduled", fields)]


def _same_start_error(state: RunState) -> str | None:
    """If every group has failed in the same words before anybody's first step, it is the script; say so at once."""
    if state.step > 0 or not all(u.exits for u in state.groups):
        return None
    ends = [u.exits[-1] for u in state.groups]
    if len(ends) == 1:
        ends = list(state.groups[0].exits[-2:])  # one failure of one group may be chance
    if not all(e.launched for e in ends) and min(len(u.exits) for u in state.groups) < PATIENT_STARTS:
        return None  # slurmctld may be away for a moment
    words = {e.error for e in ends}
    if len(ends) < 2 or len(words) > 1 or None in words or {e.cause for e in ends} - _AT_THE_START:
        return None
    return f"every group failed before its first step, all in the same way: {words.pop()}"


def given_up(unit: Unit, reason: str) -> Record:
    """The journal line of a group that gets no further attempt."""
    return Record("group_given_up", {"group": unit.group, "reason": reason})


def rank_fields(rank: Rank) -> dict[str, object]:
    """One row of a rank table as the journal writes it."""
    return {"rank": rank.rank, "node": rank.node, "local_rank": rank.local_rank, "node_rank": rank.node_rank}


def assignments(state: RunState, now: float, config: Config) -> Outcome:
    """Tell steps who they are once all their tasks are ready, and let them begin once their store is up.

    At the first start the groups begin together: whoever begins alone commits steps alone, and the others have to
    heal from it. Every group waits for every other's store, or for its first failure.
    """
    actions: list[Action] = []
    for unit in state.groups:
        if unit.phase is not Phase.STARTING or state.lighthouse_url is None or unit.group is None:
            continue
        if not unit.assigned and len(unit.ready) == tasks_of(unit, config) and None not in unit.hosts:
            table = ranks.table([str(h) for h in unit.hosts])
            actions.append(Assign(unit.id, unit.group, table, state.lighthouse_url))
            state = swap(state, replace(unit, assigned=True))
    released = state.released or all(u.store is not None or u.exits for u in state.groups)
    state = replace(state, released=released)
    for unit in state.groups:
        if released and unit.phase is Phase.STARTING and unit.store is not None and now >= unit.begin_after:
            actions.append(Begin(unit.id, *unit.store))
            state = swap(state, replace(unit, phase=Phase.RUNNING))
    return state, actions
