"""Adopt the running steps of an earlier controller, so that no group restarts when the controller changes.

A step survives if its Slurm job does: a job of its own (Place.allocation), or the controller's, if that has not been
requeued since (Live.home). The guards of all its tasks report; then the unit has its former state and the normal rules
apply. A step that cannot be reached is stopped and counts as failed, so that no group ever has two.
"""

from __future__ import annotations

from immutables import Map

from ftslurm.config.schema import most_groups, standby_each
from ftslurm.core.groups import launching, restart
from ftslurm.core.groups.exits import distrust, ended, exited
from ftslurm.core.groups.reports import recovery
from ftslurm.core.jobs import queue
from ftslurm.core.state.actions import Attach
from ftslurm.core.state.events import Ended
from ftslurm.core.state.model import (
    LIVE,
    Adoption,
    Comparisons,
    Evidence,
    Exit,
    Job,
    Marks,
    Phase,
    Place,
    Pulse,
    StepId,
    Trait,
    Unit,
    replace,
)
from ftslurm.core.state.past import Live, Past
from ftslurm.core.state.transitions import adopt, give_up, run, succeed
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.unit_names import LIGHTHOUSE, STANDBY, group_unit
from ftslurm.core.state.units import tasks_of
from ftslurm.protocol import messages, records
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.job_states import state as job_state

ADOPTED_WITHIN_S = 5.0  # the next Lighthouse waits at most so long for the adoption of all steps
AGAIN_S = 2.0  # delay after an srun that could not start


def opened(turn: Turn, past: Past, homes: frozenset[str]) -> None:
    """Restore the units as the earlier controller left them.

    Finished units stay finished, steps that may still run wait for adoption, and steps lost with the Slurm job of that
    controller have ended.

    Args:
        turn: the decision.
        past: what the journal of the earlier controller shows.
        homes: where this controller runs, see Live.home.
    """
    here = turn.config.array or past.home in homes  # else everything ended with the job
    over = past.over if here else {}
    for unit in turn.state.units:
        step = past.live.get(unit.name)
        if unit.name in over:
            if (why := over[unit.name]) is None:
                well = Exit(unit.attempt, turn.now, Cause.OK, ())
                succeed(turn, turn.change(unit, exits=unit.exits or (well,)))
            else:
                give_up(turn, unit, why)
        elif step is not None and (step.home is None or step.home in homes):
            turn.put(_left_behind(unit, step, turn.now, past.equal))
        elif step is not None:
            _gone(turn, unit, step, past)
    if any(unit.adopting for unit in turn.state.groups):
        _went_on(turn, past)
        if (step := past.live.get(LIGHTHOUSE)) is not None and step.home == "":  # it serves until the next one is up
            turn.change(turn.lighthouse, due=turn.now + ADOPTED_WITHIN_S)


def _went_on(turn: Turn, past: Past) -> None:
    """Restore the progress of a training that goes on with the groups to adopt."""
    resuming = past.resuming is not None
    turn.set(
        released=past.step > 0 and not resuming,
        standstill=replace(turn.state.standstill, longest_s=past.longest_s, seen=past.seen),
        comparisons=Comparisons(base=past.equal),
        injected=frozenset(range(past.drilled)),
    )
    turn.set_lineage(
        step=past.step,
        advanced=past.step > 0,
        saved=past.saved,
        resuming=resuming,
        resume_step=past.resuming or 0,
    )


def _gone(turn: Turn, unit: Unit, step: Live, past: Past) -> None:
    """Record the end of a step that was lost with its controller's machine, or with its job, which Slurm has restarted.

    A controller that is warned of its job's end journals how its steps end. One that has not was lost with its node,
    and Slurm has ended the steps on the other nodes.
    """
    beside = past.node or past.host
    cause, node, error = Cause.PREEMPTED, None, "Slurm has ended it with its job"
    if unit.is_lighthouse:
        cause, error = Cause.CANCELLED, "its controller has left"
    elif beside in step.place.nodes:
        cause, node, error = Cause.NODE_LOST, beside, f"{beside} was lost, with the controller"
    now, place = turn.now, step.place
    away = round(past.time or now, 3) if step.joined is not None or step.away is None else step.away
    exit_ = Exit(step.attempt, now, cause, place.nodes, node=node, error=error, step=step.step)
    turn.do(exited(unit, exit_, now, away_since=away, evidence=()))
    turn.change(unit, exits=unit.exits if unit.is_lighthouse else (*unit.exits, exit_))
    if step.diverged:
        distrust(turn, unit.group_id, step.attempt, past.equal)


def scaled(turn: Turn, past: Past) -> None:
    """Restore the number of groups that `ftslurm scale` had set; those that it had told to leave may still run."""
    if past.groups is None:
        return
    last, most = past.attempts, most_groups(turn.config)
    leave = (group for group in range(most - 1, past.groups - 1, -1) if group_unit(group) in past.live)
    count = min(next(leave, past.groups - 1) + 1, most)
    turn.set(parked=Map({unit.name: last.get(unit.name, -1) for unit in turn.state.groups[count:]}))
    while turn.table.groups > count:
        turn.set(table=turn.table.without_last_group())
    for group in range(count):
        name = group_unit(group)
        turn.put(Unit(name, group, attempt=last.get(name, -1), retired=group >= past.groups))


def with_standbys(turn: Turn, past: Past) -> None:
    """Restore the standbys beside groups (standby.count=each): a run begins without them."""
    for name in past.attempts if standby_each(turn.config) else ():
        if name.startswith(STANDBY):
            turn.put(Unit(name, None))


def scheduled(turn: Turn, past: Past) -> None:
    """Restore scheduled restarts, so that a change of the controller does not shorten their backoff."""
    latest = turn.now + restart.BACKOFF_MAX_S  # the clock of another node may be wrong
    for one in past.scheduled.values():
        unit = turn.table.by_name.get(one.unit)
        if unit is not None and unit.group is not None:
            due = min(max(turn.now, one.due), latest)
            turn.change(unit, due=due, reason=one.reason, marks=Marks(one.noticed, one.noticed, one.away))


def _left_behind(unit: Unit, live: Live, now: float, equal: int) -> Unit:
    """Return a unit whose step is to be adopted, as the journal of the earlier controller describes it."""
    hosts: tuple[str | None, ...] = live.hosts or (None,) * unit.is_lighthouse
    current = replace(
        unit.current,
        reached=live.step,
        pace=live.pace,
        recalled=live.recalled,
        agreed=equal if live.diverged else None,
        evidence=(live.diverged,) if live.diverged else (),
        ran_as=None if live.id == StepId(unit.name, live.attempt) else live.id,
        hosts=hosts,
        ready=Map({0: ""} if unit.is_lighthouse else {}),
        adoption=Adoption(now, slurm_step=live.slurm_step, joined=live.joined),
    )
    marks = Marks(live.noticed, live.noticed, live.away, launched=live.launched, joined=live.joined)
    return adopt(unit, live.attempt, live.place, marks, (Pulse(now, moved=now),) * len(hosts), current)


def attach(turn: Turn) -> None:
    """Attach to the steps to adopt once Slurm has confirmed that their jobs run."""
    for unit in turn.attended():
        adoption, place = unit.current.adoption, unit.place
        if adoption is None or adoption.asked or not turn.due(adoption.again, unit.name):
            continue
        if place.allocation is None:  # in the controller's own job or on its machine
            _attach(turn, unit, adoption, place)
            continue
        job = queue.job(turn, place.allocation)
        moved = job is not None and job.state == "RUNNING" and not set(place.nodes) <= set(job.nodes)
        if job is not None and job.id and job.state == "RUNNING" and not moved:
            _attach(turn, unit, adoption, place)
        elif moved or (turn.state.job_pool.polled and (job is None or not (job.row.runs or job.row.between))):
            _job_gone(turn, unit, place.allocation, job, moved)


def _attach(turn: Turn, unit: Unit, adoption: Adoption, place: Place) -> None:
    turn.do(Attach(unit.id, place, adoption.slurm_step))
    turn.attempt(unit, adoption=replace(adoption, asked=True))


def _job_gone(turn: Turn, unit: Unit, allocation: str, job: Job | None, moved: bool) -> None:
    """Note that the step to adopt has ended with its job, which may run again on other nodes (moved)."""
    words = f"job {allocation} has ended while no controller was there"
    now_is = None if job is None or moved else job.state
    cause = job_state(now_is or "").cause or Cause.PREEMPTED  # requeued, or unknown to Slurm
    sign = Evidence(error=words, cause=cause)
    unit = turn.attempt(unit, adoption=None, evidence=(*unit.current.evidence, sign))
    ended(turn, Ended(unit.id, None, checkpoint=turn.lineage.checkpoint), unit)
    if not moved:
        turn.do(queue.lost(job or Job(allocation), words, now_is or "GONE"))


def not_reached(turn: Turn, event: Ended, unit: Unit) -> bool:
    """Attach again if the srun that attached has ended because it failed itself; return whether that is so."""
    adoption = unit.current.adoption
    if adoption is None or not event.launcher_failed or unit.phase is Phase.STOPPING:
        return False
    late = turn.now >= adoption.since + turn.config.orphan_after_s  # by now the step has ended itself
    if late or event.no_job:
        return False
    queue.doubt(turn, unit)
    turn.attempt(unit, adoption=replace(adoption, asked=False, again=turn.now + AGAIN_S))
    return True


def guard_reported(turn: Turn, said: messages.Adopted, unit: Unit) -> None:
    """Record the report of one task's guard; the last report completes the adoption."""
    adoption = unit.current.adoption
    if adoption is None:
        return
    adoption = replace(adoption, reports=(*(r for r in adoption.reports if r.task != said.task), said))
    known = unit.current.assigned or said.group is not None  # its script has begun, even if no other guard reports
    unit = turn.attempt(unit, adoption=adoption, assigned=known)
    if len(adoption.reports) < tasks_of(unit, turn.config) or unit.phase not in LIVE:
        return
    unit = _as_it_was(turn, unit, adoption)
    if turn.lighthouse.phase is Phase.PENDING and not turn.table.names(Trait.ADOPTING):
        turn.change(turn.lighthouse, due=turn.now)  # now the groups can be told where it is
    turn.do(records.StepAdopted(**unit.names, step=unit.current.step, slurm_step=unit.current.slurm_step))
    if unit.current.step is not None and adoption.joined is None:  # it joined while no controller led
        unseen = replace(unit, marks=replace(unit.marks, hello=None, ready=None, begun=None, joined=None))
        turn.do(joined(unseen, turn.now, unit.current.step))
    if unit.group is not None and unit.phase is Phase.RUNNING:
        turn.set(released=True)


def joined(
    unit: Unit, now: float, step: int, quorum_id: int | None = None, participants: int | None = None
) -> records.GroupJoined:
    """Return the journal record of a group that has committed the first step of its attempt."""
    return records.GroupJoined(
        **unit.of_group,
        step=step,
        quorum_id=quorum_id,
        participants=participants,
        **recovery(unit.marks, now),
    )


def _as_it_was(turn: Turn, unit: Unit, adoption: Adoption) -> Unit:
    """Give an adopted unit the state that the reports of its guards describe, and return it."""
    now, reports, first = turn.now, adoption.reports, adoption.joined
    ready = Map({report.task: report.torchft for report in reports if report.ready})
    assigned, begun = all(report.group is not None for report in reports), all(report.begun for report in reports)
    steps = [report.step for report in reports if report.step is not None]
    all_ready = len(ready) == len(reports)
    if unit.phase is not Phase.STOPPING:
        turn.change(unit, due=now + launching.store_within_s(unit, turn.config))
    turn.mark(
        unit,
        hello=now,
        ready=now if all_ready else None,
        begun=now if begun else None,
        joined=(now if first is None else first) if steps else None,
    )
    unit = turn.attempt(
        unit,
        adoption=None,
        ready=ready,
        assigned=assigned,
        store=next((report.store for report in reports if report.store is not None), None),
        lighthouse=reports[0].lighthouse if assigned else None,
        floor=max(report.floor or 0 for report in reports),
        step=max(steps, default=None),
    )
    if unit.phase is Phase.STOPPING or unit.is_lighthouse:
        return unit  # a Lighthouse reports its address next
    runs = all_ready if unit.is_standby else begun
    return run(turn, unit) if runs else unit
