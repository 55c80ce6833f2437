"""Go on with the state of an earlier controller, so that no group restarts when the controller changes.

The state is kept as a whole (state/kept.py), promises and all. `resume` changes in it only what is another matter for
another controller: what it must hear anew, what ran beside the earlier one, and what that one may not have done any
more. A step survives if its Slurm job does: a job of its own (Place.allocation), or the controller's, if that has not
been requeued since (RunState.home). The guards of all its tasks report; then the normal rules apply to it. A step that
cannot be reached is stopped and counts as failed, so that no group ever has two.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from immutables import Map

from ftslurm.core.groups import launching, restart
from ftslurm.core.groups.exits import ended
from ftslurm.core.groups.reports import recovery, step_up
from ftslurm.core.jobs import queue, supply
from ftslurm.core.state import errands
from ftslurm.core.state.actions import Attach, CancelJobs, Launch
from ftslurm.core.state.events import Ended, Granted
from ftslurm.core.state.model import (
    LIVE,
    Adoption,
    Allocation,
    Attempt,
    Evidence,
    Job,
    JobPool,
    Lineage,
    Marks,
    Node,
    Nodes,
    Out,
    Phase,
    Place,
    Pulse,
    RunOutcome,
    Standstill,
    Trait,
    Unit,
    replace,
)
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.transitions import adopt, begin_anew, run, stop
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.units import tasks_of
from ftslurm.protocol import job_states, messages, records
from ftslurm.protocol.causes import Cause

# The fields that another controller in the same job begins anew, beside those in kept.ANEW -> why nobody is harmed. All
# others are what they were, once the guards of all steps have reported (tests/unit/core/test_takeover_histories.py).
RENEWED: Mapping[type, Mapping[str, str]] = {
    Unit: {"due": "of a step that starts: its limits begin again"},
    Attempt: {
        "adoption": "it has just ended",
        "aside": "the Lighthouse says it again",
        "spared": "a step that waits for a probe before it is killed is killed",
        "servers": "they are sent again",
        "wanted": "it is asked to save again, which it does once",
        "waits": "what it waits for is looked at earlier",
    },
    Marks: {"hello": "of a step whose workers were not heard of", "ready": "the same", "joined": "the same"},
    Node: {"look": "it is probed again", "dialled": "the same", "no_answer": "the same", "next_look": "it is at once"},
    Nodes: {"asked": "Slurm is asked again", "dialled": "the same", "unanswered": "the same"},
    JobPool: {
        "polled": "squeue is asked before anything is decided about jobs",
        "asked": "the same",
        "next_poll": "the same",
    },
    Lineage: {"allowed_by": "the Lighthouse gets it again"},
    Standstill: {"overtaken": "groups are compared again", "looked": "the same"},
    RunState: {
        "held": "a verdict that waited for an answer is given",
        "errands": "they are carried out again",
        "began": "it is another controller",
        "former": "the same",
        "left": "the same",
        "follows": "the same",
        "hands_over": "whether it should is decided anew",
    },
}
ADOPTED_WITHIN_S = 5.0  # the next Lighthouse waits at most so long for the adoption of all steps
AGAIN_S = 2.0  # delay after an srun that could not start


def resume(turn: Turn, event: Granted) -> None:
    """Go on with the state of an earlier controller.

    Finished units stay finished, steps that may still run wait for adoption, and steps lost with the Slurm job of that
    controller have ended.
    """
    before = turn.state
    stays = before.home == event.home  # what ran beside the controller before runs beside this one
    lasts = (stays or turn.config.job_per_group) and not before.finished  # else everything ended with the job
    if not stays and event.allocation.nodes:
        turn.do(granted(event.allocation))
    turn.set(
        allocation=before.allocation if stays and before.allocation.name == event.allocation.name else event.allocation,
        home=event.home,
        former=before.allocation.name,
        began=turn.now,
        left=False,
        follows=before.left,
        finished=False,
        hands_over=None,
        ending=before.ending if _still_ends(turn, lasts) else None,
        told=Map(),  # a Lighthouse gets all orders again
        standstill=replace(before.standstill, overtaken={}, looked=0.0),
    )
    _ask_again(turn, event, lasts)
    _resume_lineage(turn, event, lasts, lost=lasts and _loses_all(before, stays))
    for late in before.held:  # what their verdicts wait for is known to nobody any more
        if (unit := turn.table.living(late.id)) is not None:
            ended(turn, late, unit)
    turn.set(held=())
    node = next(iter(before.allocation.nodes), "")
    for unit in turn.state.units:
        if unit.phase in LIVE and (not _survives(unit, stays) or (unit.is_lighthouse and before.left)):
            _gone(turn, unit, node, event)
        elif unit.phase in LIVE and unit.id in event.unmade:
            _launch_again(turn, unit)
        elif unit.phase in LIVE:
            _left_behind(turn, unit)
        elif unit.phase is Phase.PENDING:  # the clock of another node may be wrong
            turn.change(unit, due=min(unit.due, turn.now + restart.BACKOFF_MAX_S))
        elif not lasts and not (unit.is_lighthouse and turn.independent):
            begin_anew(turn, unit)
    if before.left and any(unit.adopting for unit in turn.state.groups):  # that Lighthouse serves until the next is up
        turn.change(turn.lighthouse, due=turn.now + ADOPTED_WITHIN_S)
    errands.repeat(turn)


def granted(allocation: Allocation) -> records.AllocationGranted:
    """Return the journal record of the controller's own nodes."""
    return records.AllocationGranted(allocation=allocation.name, nodes=allocation.nodes, ends=None)


def _still_ends(turn: Turn, lasts: bool) -> bool:
    """Return whether a run goes on ending that the earlier controller was bringing to its end.

    In another job it does not, if the end was one of its job only.
    """
    ending = turn.state.ending
    if ending is None or turn.state.finished:
        return False
    return lasts or isinstance(ending.by, int) or ending.outcome in (RunOutcome.SUCCEEDED, RunOutcome.FAILED)


def _loses_all(before: RunState, stays: bool) -> bool:
    """Return whether all steps of groups were lost with the earlier controller."""
    steps = [unit for unit in before.groups if unit.phase in LIVE]
    return bool(steps) and not any(_survives(unit, stays) for unit in steps)


def _survives(unit: Unit, stays: bool) -> bool:
    """Return whether the step of a unit may run on without the controller that has launched it."""
    return stays or unit.place.allocation is not None


def _ask_again(turn: Turn, event: Granted, lasts: bool) -> None:
    """Forget what the earlier controller has asked Slurm and has not been told, so that it is asked again."""
    nodes, pool = turn.nodes, turn.state.job_pool
    again = {name: _node_again(node, lasts) for name, node in nodes.by_name.items()}
    turn.set_nodes(
        by_name=nodes.put(again).by_name,
        passed=nodes.passed if lasts else frozenset(),
        leaf_of=event.leaf_of,
        asked=0.0,
        dialled=0.0,
        unanswered=False,
    )
    turn.set_job_pool(
        had=pool.had if lasts else len(event.allocation.nodes),
        polled=False,
        asked=-inf,
        next_poll=0.0,
    )
    dismissed = tuple(one.name for one in turn.jobs if one.dismissed and one.row.provides)
    if dismissed:
        turn.do(CancelJobs(dismissed))
    if queue.bad(turn.state):
        supply.told_to_avoid(turn)


def _node_again(node: Node, lasts: bool) -> Node:
    """Return a node as another controller begins with it. One that Slurm has taken away may be in the next job."""
    known = node if lasts or node.out is not Out.GONE else node.back()
    return replace(known, look=None, dialled=0.0, no_answer=False, next_look=0.0)


def _resume_lineage(turn: Turn, event: Granted, lasts: bool, lost: bool) -> None:
    """Restore the progress of the training, which starts over from a checkpoint if its state is lost."""
    saved = event.checkpoint or turn.lineage.checkpoint
    turn.set_lineage(checkpoint=saved, allowed_by=None)
    if not lasts:
        step = saved.step or 0 if saved is not None else 0
        turn.set_lineage(newest=0, origin=step, saving=None, rolling=None, advanced=False)
        turn.set(stepless=None)
    if lost or not lasts:
        turn.set(released=False)
        if turn.lineage.step > 0 and not turn.independent:
            turn.set_lineage(lost="the job was requeued, and with all groups the state")


def _launch_again(turn: Turn, unit: Unit) -> None:
    """Make a launch that the earlier controller had decided on and not begun: it is the same attempt."""
    turn.mark(unit, launched=turn.now)
    turn.change(unit, due=turn.now + turn.config.health.start_timeout_s)
    check = tuple(sorted(unit.current.checking))
    turn.do(Launch(unit.id, unit.group, unit.place, launching.fence(unit), check))


def _left_behind(turn: Turn, unit: Unit) -> None:
    """Begin the adoption of a step; what it was told may not have arrived, and is said again."""
    known, now = unit.current, turn.now
    current = replace(known, adoption=Adoption(now), wanted=0, aside=None, spared=False)
    turn.put(adopt(unit, (Pulse(now, moved=now),) * len(known.hosts), current))


def _gone(turn: Turn, unit: Unit, node: str, event: Granted) -> None:
    """Record the end of a step that was lost with its controller's machine, or with its job, which Slurm has restarted.

    A controller that is warned of its job's end journals how its steps end. One that has not was lost with its node,
    and Slurm has ended the steps on the other nodes.

    Args:
        node: where that controller ran.
    """
    sign = Evidence(error="Slurm has ended it with its job", cause=Cause.PREEMPTED)
    if unit.is_lighthouse:
        turn.set(lighthouse_url=None)
        sign = Evidence(error="its controller has left", cause=Cause.CANCELLED)
    elif node in unit.place.nodes:
        sign = Evidence(node=node, error=f"{node} was lost, with the controller", cause=Cause.NODE_LOST)
    unit = stop(turn, unit, None, sign, died=event.resumed)
    ended(turn, Ended(unit.id, None, checkpoint=turn.lineage.checkpoint), unit)


def attach(turn: Turn) -> None:
    """Attach to the steps to adopt once Slurm has confirmed that their jobs run."""
    for unit in turn.attended():
        adoption, place = unit.current.adoption, unit.place
        if adoption is None or adoption.asked or not turn.due(adoption.again, unit.name):
            continue
        if place.allocation is None:  # in the controller's own job or on its machine
            _attach(turn, unit, adoption, place)
            continue
        if not turn.state.job_pool.polled:
            continue  # the job may have ended since
        job = queue.job(turn, place.allocation)
        moved = job is not None and job.row.runs and not set(place.nodes) <= set(job.nodes)
        if job is not None and job.id and job.row.runs and not moved:
            _attach(turn, unit, adoption, place)
        elif moved or job is None or not (job.row.lives or job.row.between):
            _job_gone(turn, unit, place.allocation, job, moved)


def _attach(turn: Turn, unit: Unit, adoption: Adoption, place: Place) -> None:
    turn.do(Attach(unit.id, place, unit.current.slurm_step))
    turn.attempt(unit, adoption=replace(adoption, asked=True))


def _job_gone(turn: Turn, unit: Unit, allocation: str, job: Job | None, moved: bool) -> None:
    """Note that the step to adopt has ended with its job, which may run again on other nodes (moved)."""
    words = f"job {allocation} has ended while no controller was there"
    now_is = None if job is None or moved else job.state
    cause = job_states.state(now_is or "").cause or Cause.PREEMPTED  # requeued, or unknown to Slurm
    sign = Evidence(error=words, cause=cause)
    unit = turn.attempt(unit, adoption=None, evidence=(*unit.current.evidence, sign))
    ended(turn, Ended(unit.id, None, checkpoint=turn.lineage.checkpoint), unit)


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
    has_joined = unit.marks.joined is not None
    unit = _as_it_was(turn, unit, adoption)
    if turn.state.follows and turn.lighthouse.phase is Phase.PENDING and not turn.table.names(Trait.ADOPTING):
        turn.change(turn.lighthouse, due=turn.now)  # now the groups can be told where it is
    turn.do(records.StepAdopted(**unit.names, step=unit.current.step, slurm_step=unit.current.slurm_step))
    step_up(turn, unit)
    if unit.current.step is not None and not has_joined:  # it joined while no controller led
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
    now, reports, marks, known = turn.now, adoption.reports, unit.marks, unit.current
    ready = Map({report.task: report.torchft for report in reports if report.ready})
    ready = known.ready if unit.is_lighthouse else ready  # it has told its guard no address
    assigned, begun = all(report.group is not None for report in reports), all(report.begun for report in reports)
    steps = [report.step for report in reports if report.step is not None]
    all_ready = len(ready) == len(reports)
    errands.request_again(turn, unit)
    if unit.phase is not Phase.STOPPING:
        turn.change(unit, due=now + launching.store_within_s(unit, turn.config))
    turn.mark(
        unit,
        hello=marks.hello or now,
        ready=marks.ready if all_ready else None,
        begun=marks.begun if unit.is_lighthouse else marks.begun or now if begun else None,
        joined=marks.joined or now if steps else None,
    )
    unit = turn.attempt(
        unit,
        adoption=None,
        servers=(),
        ready=ready,
        assigned=assigned,
        stores=Map({report.task: report.store for report in reports if report.store is not None}),
        lighthouse=reports[0].lighthouse if assigned else None,
        floor=max(known.floor, *(report.floor or 0 for report in reports)),
        step=max(steps, default=None),
    )
    if unit.phase is Phase.STOPPING and begun and unit.due > now:
        turn.send(unit, messages.Stop())  # nobody knows whether the earlier controller has
    if unit.phase is Phase.STOPPING or unit.is_lighthouse:
        return unit  # a Lighthouse reports its address next
    runs = all_ready if unit.is_standby else begun
    return run(turn, unit) if runs else unit
