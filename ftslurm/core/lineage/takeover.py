"""Adopt the running steps of an earlier controller, so that no group restarts when the controller changes. Pure.

A step survives if its Slurm job does: a job of its own (Place.allocation), or the controller's, if that has not been
requeued since (Live.home). The guards of all its tasks report; then the unit has its former state and the normal rules
apply. A step that cannot be reached is stopped and counts as failed, so that no group ever has two.
"""

from __future__ import annotations

from collections.abc import Iterator

from ftslurm.config.schema import Config, most_groups, standby_each
from ftslurm.core.groups import launching, restart
from ftslurm.core.groups.exits import Outcome, ended
from ftslurm.core.groups.timings import phases, recovery_s, since
from ftslurm.core.health import node_fate
from ftslurm.core.jobs import queue
from ftslurm.core.state.actions import Action, Attach
from ftslurm.core.state.events import Ended
from ftslurm.core.state.model import (
    LIVE,
    Adoption,
    Evidence,
    Exit,
    Job,
    Marks,
    NodeChecks,
    Phase,
    Pulse,
    Returning,
    Unit,
)
from ftslurm.core.state.past import Live, Past
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.transitions import adopt, give_up, run, succeed
from ftslurm.core.state.unit_names import STANDBY, group_unit
from ftslurm.core.state.units import swap, tasks_of
from ftslurm.core.state.values import replace
from ftslurm.protocol import messages, records
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.job_states import state as job_state

AGAIN_S = 2.0  # delay after an srun that could not start
_NO_JOB = (
    "Invalid job id",
    "expired",
    "already complet",
    "node configuration is not available",
)  # srun's permanent errors


def opened(state: RunState, past: Past, homes: frozenset[str], now: float, config: Config) -> Outcome:
    """Restore the units as the earlier controller left them.

    Finished units stay finished, steps that may still run wait for adoption, and steps lost with the Slurm job of that
    controller have ended.

    Args:
        homes: where this controller runs, see Live.home.
    """
    actions: list[Action] = []
    here = config.cluster.kind == "array" or past.home in homes  # else everything ended with the job
    over, live = dict(past.over) if here else {}, {step.unit: step for step in past.live}
    for unit in state.units:
        step = live.get(unit.name)
        if unit.name in over:
            if (why := over[unit.name]) is None:
                unit = succeed(replace(unit, exits=(*unit.exits, Exit(unit.attempt, now, Cause.OK, ()))))
            else:
                unit = give_up(unit, why)
            state = swap(state, unit)
        elif step is not None and (step.home is None or step.home in homes):
            state = swap(state, _left_behind(unit, step, now))
        elif step is not None:
            unit, record = _gone(unit, step, past, now)
            state, actions = swap(state, unit), [*actions, record]
    if not any(unit.current.adoption for unit in state.groups):
        return state, actions
    resuming = past.resuming is not None
    went_on = replace(
        state,
        released=past.step > 0 and not resuming,
        lineage=replace(
            state.lineage, step=past.step, saved=past.saved, resuming=resuming, resume_step=past.resuming or 0
        ),
        standstill=replace(state.standstill, longest_s=past.longest_s, seen=past.seen),
        drills=replace(
            state.drills, injected=frozenset(range(past.drilled)), stepping_since=now if past.step > 0 else None
        ),
    )
    return went_on, actions


def _gone(unit: Unit, step: Live, past: Past, now: float) -> tuple[Unit, records.StepExited]:
    """Record the end of a step that was lost with its controller's machine, or with its job, which Slurm has restarted.

    A controller that is warned of its job's end journals how its steps end. One that has not was lost with its node,
    and Slurm has ended the steps on the other nodes.
    """
    beside = past.node or past.host
    cause, node, error = Cause.PREEMPTED, None, "Slurm has ended it with its job"
    if unit.is_lighthouse:
        cause, error = Cause.CANCELLED, "it has ended with the controller before"
    elif beside in step.place.nodes:
        cause, node, error = Cause.NODE_LOST, beside, f"{beside} was lost, with the controller"
    exit_ = Exit(step.attempt, now, cause, step.place.nodes, node=node, error=error, launched=True)
    record = records.StepExited(
        unit=unit.name,
        group=unit.group,
        attempt=step.attempt,
        code=None,
        signal=None,
        cause=cause.value,
        node=node,
        rank=None,
        error=error,
        step=None,
        launched=True,
        healthy_s=0.0,
        noticed=round(now, 3),
        with_job=True,
        away_since=round(now, 3) if step.joined is not None or step.away is None else step.away,
        evidence=(),
        traceback=None,
        phases=None,
    )
    return replace(unit, exits=unit.exits if unit.is_lighthouse else (*unit.exits, exit_)), record


def scaled(state: RunState, past: Past, config: Config) -> RunState:
    """Restore the number of groups that `ftslurm scale` had set."""
    if past.groups is None:
        return state
    last, count = dict(past.attempts), min(past.groups, most_groups(config))
    more = [group_unit(group) for group in range(len(state.groups), count)]
    new = [Unit(name, len(state.groups) + i, attempt=last.get(name, -1)) for i, name in enumerate(more)]
    parked = tuple((unit.name, last.get(unit.name, -1)) for unit in state.groups[count:])
    table = state.table
    while table.groups > count:
        table = table.without_last_group()
    for unit in new:
        table = table.put(unit)
    return replace(state, table=table, parked=parked)


def with_standbys(state: RunState, past: Past, config: Config) -> RunState:
    """Restore the standbys beside groups (standby.count=each): a run begins without them."""
    names = (name for name, _ in past.attempts if name.startswith(STANDBY)) if standby_each(config) else ()
    return swap(state, *(Unit(name, None) for name in names))


def scheduled(state: RunState, past: Past, now: float, config: Config) -> RunState:
    """Restore scheduled restarts, so that a change of the controller does not shorten their backoff."""
    latest = now + restart.BACKOFF_MAX_S  # the clock of another node may be wrong
    for one in past.scheduled:
        unit = state.table.by_name.get(one.unit)
        if unit is not None and unit.group is not None:
            due = min(max(now, one.due), latest)
            state = swap(
                state, replace(unit, due=due, reason=one.reason, marks=Marks(noticed=one.noticed, away=one.away))
            )
    return state


def left_out(state: RunState, past: Past, now: float, config: Config) -> RunState:
    """Restore what the earlier controller knew of the nodes; lost ones are probed at once."""
    if config.cluster.kind == "local":
        return state
    unfit = tuple((out.node, out.unfit) for out in past.left_out if out.unfit is not None)
    checks = NodeChecks(frozenset(past.passed), unfit, ever_passed=bool(past.passed))
    lost = (Returning(out.node, out.since, now) for out in past.left_out if out.group is None and out.unfit is None)
    suspected = ((out.node, out.group) for out in past.left_out if out.group is not None)
    nodes = replace(
        state.nodes,
        avoid=state.nodes.avoid | {out.node for out in past.left_out},
        returning=(*state.nodes.returning, *lost),
        suspected=(*state.nodes.suspected, *suspected),
        shunned=frozenset(past.shunned),
        drained=frozenset(past.drained),
        checks=checks,
    )
    return replace(state, nodes=nodes)


def _left_behind(unit: Unit, live: Live, now: float) -> Unit:
    """Return a unit whose step is to be adopted, as the journal of the earlier controller describes it."""
    hosts: tuple[str | None, ...] = live.hosts or (None,) * unit.is_lighthouse
    current = replace(
        unit.current,
        recalled=live.recalled,
        ran_as=None if (live.id.unit, live.id.attempt) == (unit.name, live.attempt) else live.id,
        hosts=hosts,
        ready=frozenset({0} if unit.is_lighthouse else ()),
        adoption=Adoption(now, slurm_step=live.slurm_step, joined=live.joined),
    )
    marks = Marks(launched=live.launched, noticed=live.noticed, away=live.away, joined=live.joined)
    return adopt(unit, live.attempt, live.place, marks, (Pulse(now, moved=now),) * len(hosts), current)


def attach(state: RunState, now: float, config: Config) -> Outcome:
    """Attach to the steps to adopt once Slurm has confirmed that their jobs run."""
    actions: list[Action] = []
    for unit in state.attended():
        adoption, place = unit.current.adoption, unit.place
        if adoption is None or adoption.asked or now < adoption.again or place is None:
            continue
        if place.allocation is None:  # in the controller's own job or on its machine
            actions.append(Attach(unit.id, unit.group, place, adoption.slurm_step))
            state = swap(state, replace(unit, current=replace(unit.current, adoption=replace(adoption, asked=True))))
            continue
        job = queue.job(state, place.allocation)
        moved = job is not None and job.state == "RUNNING" and not set(place.nodes) <= set(job.nodes)
        if job is not None and job.id and job.state == "RUNNING" and not moved:
            actions.append(Attach(unit.id, unit.group, place, adoption.slurm_step))
            state = swap(state, replace(unit, current=replace(unit.current, adoption=replace(adoption, asked=True))))
        elif moved or (
            state.job_pool.polled and (job is None or not (job_state(job.state).runs or job_state(job.state).between))
        ):
            words = f"job {place.allocation} has ended while no controller was there"
            now_is = None if job is None or moved else job.state
            over, cause = Ended(unit.id, None, checkpoint=state.lineage.checkpoint), job_state(now_is or "").cause
            more: list[Action] = []
            if cause is None:  # requeued or unknown to Slurm: perhaps because its node was lost
                state = node_fate.gone(state, unit, Cause.PREEMPTED, words, over, now)
            else:
                sign = Evidence(None, None, error=words, cause=cause)
                unit = replace(
                    unit, current=replace(unit.current, adoption=None, evidence=(*unit.current.evidence, sign))
                )
                state, more = ended(over, swap(state, unit), unit, now, config)
            gone = [] if moved else [queue.lost(job or Job(str(place.allocation)), words, now_is or "GONE")]
            actions += [*more, *gone]
    return state, actions


def due_times(unit: Unit) -> Iterator[float]:
    """Yield when to attach again to a step whose srun could not start."""
    if unit.current.adoption is not None and not unit.current.adoption.asked:
        yield unit.current.adoption.again


def not_reached(event: Ended, state: RunState, unit: Unit, now: float, config: Config) -> RunState | None:
    """Handle the end of an attaching srun: return the state if it is to be repeated, because srun itself failed."""
    adoption = unit.current.adoption
    if adoption is None or not event.launcher_failed or unit.phase is Phase.STOPPING:
        return None
    late = now >= adoption.since + config.orphan_after_s  # by now the step has ended itself
    if late or any(words in (event.error or "") for words in _NO_JOB):
        return None
    state = queue.doubt(state, unit.place.allocation if unit.place else None, now)
    return swap(
        state,
        replace(unit, current=replace(unit.current, adoption=replace(adoption, asked=False, again=now + AGAIN_S))),
    )


def never_reached(unit: Unit) -> Unit:
    """Note that an earlier controller's Lighthouse ended while no controller led, so that it is no failed start."""
    if not unit.is_lighthouse or unit.current.adoption is None:
        return unit
    words = "it had ended before this controller came"
    return replace(
        unit,
        current=replace(
            unit.current, evidence=(*unit.current.evidence, Evidence(None, None, error=words, cause=Cause.UNKNOWN))
        ),
    )


def guard_reported(said: messages.Adopted, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    """Record the report of one task's guard; the last report completes the adoption."""
    adoption = unit.current.adoption
    if adoption is None:
        return state, []
    reports = (*(report for report in adoption.reports if report.task != said.task), said)
    known = unit.current.assigned or said.group is not None  # its script has begun, even if no other guard reports
    unit = replace(unit, current=replace(unit.current, adoption=replace(adoption, reports=reports), assigned=known))
    if len(reports) < tasks_of(unit, config) or unit.phase not in LIVE:
        return swap(state, unit), []
    unit = _as_it_was(unit, now, config)
    adopted = records.StepAdopted(
        unit=unit.name,
        group=unit.group,
        attempt=unit.attempt,
        nodes=unit.place.nodes if unit.place else (),
        step=unit.current.step,
        slurm_step=unit.current.slurm_step,
        allocation=unit.place.allocation if unit.place else None,
        seconds=round(now - adoption.since, 3),
        standby=None if unit.current.ran_as is None else str(unit.current.ran_as),
    )
    state = swap(state, unit)
    runs = unit.group is not None and unit.phase is Phase.RUNNING
    lines: list[Action] = [adopted]
    if unit.current.step is not None and adoption.joined is None:  # it joined while no controller led
        unseen = replace(unit, marks=replace(unit.marks, hello=None, ready=None, begun=None, joined=None))
        lines.append(joined(unseen, now, unit.current.step))
    return replace(state, released=state.released or runs), lines


def joined(
    unit: Unit, now: float, step: int, quorum_id: int | None = None, participants: int | None = None
) -> records.GroupJoined:
    """Return the journal record of a group that has committed the first step of its attempt."""
    return records.GroupJoined(
        group=unit.group_id,
        attempt=unit.attempt,
        step=step,
        quorum_id=quorum_id,
        participants=participants,
        seconds=since(unit.marks.launched, now),
        recovery_s=recovery_s(unit.marks, now),
        phases=phases(unit.marks),
    )


def _as_it_was(unit: Unit, now: float, config: Config) -> Unit:
    """Return an adopted unit with the state that the reports of its guards describe."""
    assert unit.current.adoption is not None
    reports, first = unit.current.adoption.reports, unit.current.adoption.joined
    ready = frozenset(report.task for report in reports if report.ready)
    assigned, begun = all(report.group is not None for report in reports), all(report.begun for report in reports)
    steps = [report.step for report in reports if report.step is not None]
    marks = replace(unit.marks, hello=now, ready=now if len(ready) == len(reports) else None)
    unit = replace(
        unit,
        marks=replace(marks, begun=now if begun else None, joined=(now if first is None else first) if steps else None),
        due=unit.due if unit.phase is Phase.STOPPING else now + launching.store_within_s(unit, config),
        current=replace(
            unit.current,
            adoption=None,
            ready=ready,
            assigned=assigned,
            store=next((report.store for report in reports if report.store is not None), None),
            lighthouse=reports[0].lighthouse if assigned else None,
            floor=max(report.floor or 0 for report in reports),
            step=max(steps, default=None),
        ),
    )
    if unit.phase is Phase.STOPPING or unit.is_lighthouse:
        return unit  # a Lighthouse reports its address next
    runs = len(ready) == len(reports) if unit.is_standby else begun
    return run(unit) if runs else unit
