"""The state machine: computes the next state and the actions from the state and the events. Pure.

    state, actions = decide(state, events, now, config)

First every event is folded into the state (reduce.py), then the rules reconcile the state with what is wanted: the
Lighthouse and every group up, until the run ends. Level-triggered: a second decision without events at the same time
changes nothing and has no actions. `RunState.wakes` is the time of the next decision even without an event: a rule that
compares with the clock says so where it does (Turn.due).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, cast

from ftslurm.config.schema import Config, fixed_standbys
from ftslurm.core import assignments, leaving, orders, slow, user_requests
from ftslurm.core.groups import fault_drills, finishing, launching, reports, standby
from ftslurm.core.groups.exits import given_up, last_failure, missed, part, revoke, too_late
from ftslurm.core.groups.launching import over_from
from ftslurm.core.health import (
    hangs,
    lost_connections,
    node_health,
    partition,
)
from ftslurm.core.jobs import supply
from ftslurm.core.lineage import continuity, rollover, takeover
from ftslurm.core.reduce import observe
from ftslurm.core.state import errands
from ftslurm.core.state.actions import Action, Finish, Kill
from ftslurm.core.state.events import Alive, Ended, Event
from ftslurm.core.state.model import LIVE, OVER, RUNS, Ending, Evidence, Out, Phase, RunOutcome, Trait, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.transitions import give_up, stop, stop_politely
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.unit_names import LIGHTHOUSE, group_unit, standby_unit
from ftslurm.core.state.unit_table import UnitTable
from ftslurm.core.state.units import pool_of, serves
from ftslurm.protocol import records
from ftslurm.protocol.causes import Cause
from ftslurm.words import by_count

KILL_AGAIN_S = 5.0  # a step that a Kill has not ended after this long gets another, stronger one
WIDE_S = 1.0  # the same for several nodes: srun ends within 0.1 s, unless the death of a node is not noticed yet
STUCK_S = 0.3  # the same if srun cannot end by itself, because a node it waits for is gone


def begin(config: Config) -> RunState:
    """Return the initial state of a run."""
    groups = (Unit(group_unit(g), g) for g in range(config.groups.count))
    standbys = (Unit(standby_unit(i), None) for i in range(fixed_standbys(config)))
    over = config.independent  # as if a Lighthouse had already ended
    lighthouse = Unit(LIGHTHOUSE, None, Phase.SUCCEEDED if over else Phase.PENDING)
    return RunState(UnitTable.of((lighthouse, *groups, *standbys)), lighthouse_url="" if over else None)


def decide(state: RunState, events: Sequence[Event], now: float, config: Config) -> tuple[RunState, list[Action]]:
    """Fold the events into the state, then apply the rules.

    Returns:
        The new state, and the actions in the order in which they must be carried out. Records come first.
    """
    turn = Turn(state, now, config)
    _fold(turn, events)
    for _ in range(2):  # the second time, the first rules see what the last ones have changed
        before = turn.state
        if before.finished or before.left:
            break
        turn.begin()
        for rule in RULES:
            rule(turn)
        if turn.state is before:
            break
    turn.end()
    records_first = sorted(turn.actions, key=lambda action: not isinstance(action, records.JournalRecord))
    return turn.state, records_first


def _fold(turn: Turn, events: Sequence[Event]) -> None:
    """Fold the events into the state; signs of life that come in a row are folded in together."""
    for alive, run in groupby(events, key=lambda event: isinstance(event, Alive)):
        if alive:
            node_health.heard(turn, cast("Iterable[Alive]", run))
            continue
        for event in run:
            if isinstance(event, Ended) and _holds(turn, event):
                turn.set(held=(*turn.state.held, event))
            else:
                observe(turn, event)


def _holds(turn: Turn, event: Ended) -> bool:
    """Return whether the end of a step waits: for a probe, or until it is known whether the controller's job ends."""
    ends = turn.goes_on and not turn.due(turn.state.doubted)  # the next attempt would be in that job
    return ends or lost_connections.holds(turn, event.id)


def _release(turn: Turn) -> None:
    """Give the verdicts that need not wait any longer."""
    for late in turn.state.held:
        if not _holds(turn, late):
            turn.set(held=tuple(other for other in turn.state.held if other is not late))
            observe(turn, late)


def _end_if_over(turn: Turn) -> None:
    """End the run if it has succeeded or cannot go on."""
    table, config, least = turn.table, turn.config, turn.config.groups.min
    if not turn.goes_on:
        return
    serving = [u for u in turn.state.groups if serves(u.group, config)] if config.groups.serve else []
    ended = [u for u in table.in_phase(*OVER) if not u.retired and not serves(u.group, config)]
    failed = [u for u in ended if u.phase is Phase.FAILED]
    groups = table.groups - len(serving) - sum(not serves(u.group, config) for u in turn.having(Trait.RETIRED))
    if len(ended) == groups and len(ended) - len(failed) >= least:
        _all_ended(turn, ended, failed, serving)
        return
    for unit in serving:
        if unit.phase is Phase.FAILED:
            turn.fail(f"group {unit.group} was given up, and the others need it (groups.serve): {unit.reason}")
            return
    if groups - len(failed) < least:
        why = "; ".join(f"group {u.group}: {u.reason}" for u in failed[:3])
        turn.fail(f"{len(failed)} of {groups} groups were given up, fewer than groups.min={least} are left ({why})")
        return
    if groups - len(failed) - table.count(Phase.PENDING) >= least and not serving:
        return  # enough groups have a place
    waiting = _without_place(turn)
    left = groups - len(failed) - sum(not serves(u.group, config) for u in waiting)
    needed = any(serves(u.group, config) for u in waiting)
    if waiting and (needed or left < least):
        turn.fail(_no_place(turn, waiting, needed))


def _all_ended(turn: Turn, ended: list[Unit], failed: list[Unit], serving: list[Unit]) -> None:
    """End the run after its last group has ended, enough of them well."""
    lineage = turn.lineage
    reason = "all groups finished" + (", those that only serve are stopped (groups.serve)" if serving else "")
    if failed:
        well = len(ended) - len(failed)
        reason = f"{well} of {len(ended)} groups finished; group {failed[0].group} did not"
        if missing := missed(turn):
            reason += f", and the training went on without {by_count(len(missing), 'it', '{} groups')}"
    if lineage.resuming and lineage.resume_step > 0:
        reason += f"; nothing was left to do after the checkpoint of step {lineage.resume_step}"
    elif turn.state.comparisons.told:
        reason += "; groups differ, see the warning"
    elif turn.state.comparisons.buffers:
        reason += "; buffers differ, see the warning"
    elif lineage.step == 0 and not turn.independent:
        reason += "; no step was reported: does the script use torchft's Manager, and in the process of its rank?"
    # Without a committed step nothing shows that others did the failed share; a server keeps what the group did.
    doubtful = failed and lineage.step == 0 and not serving
    turn.set(ending=Ending(RunOutcome.FAILED if doubtful else RunOutcome.SUCCEEDED, reason))


def _no_place(turn: Turn, waiting: list[Unit], needed: bool) -> str:
    """Return why the run ends because these groups have no node, and what to set."""
    who = by_count(len(waiting), f"group {waiting[0].group} has", f"{len(waiting)} groups have")
    few = "others need it (groups.serve)" if needed else f"fewer than groups.min={turn.config.groups.min} can step"
    awaited, _ = next(supply.coming(turn, pool_of(waiting[0].group, turn.config)))
    needs = f"{awaited or 'spare nodes (cluster.spare_nodes)'}, or {launching.a_free_node(turn.nodes)}"
    return f"{who} no node to run on, and {few}: what it needs is {needs}"


def _without_place(turn: Turn) -> list[Unit]:
    """Return the groups that wait in vain for a node; in one allocation only a lost one that is still ours may come."""
    found, state = list[Unit](), turn.state
    finder = launching.PlaceFinder(turn)
    for unit in state.table.in_phase(Phase.PENDING) if state.allocation.name else ():
        if unit.retired or not turn.due(unit.due):
            continue
        place = finder.find(unit)
        if place is not None:
            finder.remove(place, unit)  # the next unit cannot have this place
        elif state.nodes.drained or supply.may_come(turn, unit):
            continue  # a person may take the drain back
        elif not state.nodes.out(Out.LOST, Out.CUT) or turn.due(unit.due + turn.config.health.start_timeout_s):
            found.append(unit)  # Slurm will not return a node
    return found


def _expire(turn: Turn) -> None:
    """Bring down steps that have taken too long to start, and groups that can only start a new history."""
    since = over_from(turn)
    over = since is not None and turn.due(since)
    for unit in turn.state.units if over else turn.attended():
        if (why := _late(turn, unit)) is not None:
            sign = Evidence(error=why, cause=Cause.START_TIMEOUT)
            stop(turn, unit, Cause.START_TIMEOUT, sign)
        elif not over or unit.group is None or unit.adopting:
            continue
        elif unit.joined:
            if finishing.is_stranded(turn, unit):
                error = f"at step {unit.current.step} it can heal from nobody: the others have finished"
                stop(turn, unit, Cause.CANCELLED, Evidence(error=error))
        elif unit.phase is Phase.PENDING:
            given_up(turn, unit, too_late(turn))
        elif unit.phase in RUNS:
            stop(turn, unit, Cause.CANCELLED)


def _late(turn: Turn, unit: Unit) -> str | None:
    """Return what a step has not done in time, and which setting says so; None: it is in time.

    It must be ready and, once assigned, have its store; and a group whose script runs must commit a step.
    """
    config, current = turn.config, unit.current
    starts = unit.phase is Phase.STARTING and current.store is None and current.adoption is None
    if starts and (unit.marks.ready is None or current.assigned) and turn.due(unit.due, unit.name):
        setting = "a standby that was taken" if current.ran_as is not None else "health.start_timeout_s"
        silent = "" if any(current.hosts) else f": {reports.SILENT}"
        return f"not ready after {launching.store_within_s(unit, config):g} s ({setting}){silent}"
    trains = unit.phase is Phase.RUNNING and unit.group is not None and not turn.independent
    if not trains or current.step is not None or unit.marks.begun is None:
        return None
    if not turn.due(unit.marks.begun + config.join_timeout_s, unit.name) or not turn.table.names(Trait.JOINED):
        return None
    return f"no step {config.join_timeout_s:g} s after its script began (see job.longest_step_s)"


def _bring_down(turn: Turn) -> None:
    """Kill the steps that are STOPPING and due; when the run ends, stop the groups first and the Lighthouse last."""
    ending = turn.state.ending
    if ending is not None:
        going = turn.table.in_phase(Phase.PENDING, *RUNS)
        for unit in (*going, *turn.state.standbys):
            if unit.phase is Phase.PENDING:
                give_up(turn, unit)
            elif unit.phase in RUNS:
                stop_politely(turn, unit, Cause.CANCELLED if unit.is_standby else ending.cause, adopting=True)
        _bring_down_lighthouse(turn)
    for unit in turn.attended():
        if unit.phase is Phase.STOPPING and turn.due(unit.due, unit.name):
            stuck = any(sign.stuck for sign in unit.current.evidence)
            turn.do(Kill(unit.id, stuck))
            wide = turn.config.groups.nodes > 1 and not turn.local and not unit.is_lighthouse
            turn.change(unit, due=turn.now + (STUCK_S if stuck else WIDE_S if wide else KILL_AGAIN_S))
            turn.attempt(unit, spared=False)


def _bring_down_lighthouse(turn: Turn) -> None:
    """Stop the Lighthouse after all groups: those that are still finishing need it."""
    lighthouse = turn.lighthouse
    if lighthouse.phase is Phase.PENDING:
        give_up(turn, lighthouse)
    elif lighthouse.phase in RUNS and not turn.table.count(*LIVE):
        stop(turn, lighthouse, Cause.CANCELLED)


def _finish(turn: Turn) -> None:
    """Finish the run in this job once it is brought to an end and no step is left."""
    state = turn.state
    living = state.table.count(*LIVE) or any(u.phase in LIVE for u in (state.lighthouse, *state.standbys))
    if state.ending is None or living or not turn.due(state.ending.until) or errands.are_open(turn):
        return
    errands.tell_undone(turn)
    ending = rollover.verdict(turn)
    # Steps of an earlier run.
    done = state.lineage.resume_step if state.lineage.resuming and ending.outcome is RunOutcome.SUCCEEDED else 0
    steps = max(state.lineage.step, done)
    about: dict[str, Any] = {"outcome": ending.outcome.value, "reason": ending.reason, "steps": steps}
    about["restarts"] = state.restarts
    missing = missed(turn) if ending.outcome is RunOutcome.SUCCEEDED else ()
    if ending.outcome in (RunOutcome.SUCCEEDED, RunOutcome.FAILED):
        fault_drills.never_done(turn)
    if ending.outcome is RunOutcome.REQUEUED:
        turn.do(records.RunRequeued(**about))
    else:
        failure = last_failure(state) if ending.outcome is RunOutcome.FAILED else None
        turn.do(records.RunFinished(**about, failure=failure, by=ending.by, missing=missing))
    turn.do(Finish(ending.outcome, ending.reason))
    turn.set(finished=True, ending=ending)


def _stop(turn: Turn) -> None:
    """Bring down what hangs, must leave or is late; a lost node explains it better, and is known by now."""
    node_health.mind_lighthouse(turn)
    partition.watch(turn)  # before the hangs, which it explains
    hangs.find_hangs(turn)
    slow.find(turn)
    leaving.vacate(turn)
    leaving.move(turn)  # after `vacate`: a group leaves a job that ends before a drained node
    user_requests.end_recalled(turn)
    part(turn)
    _expire(turn)


def _run(turn: Turn) -> None:
    """Start all groups over if none holds the state; end the run, or its part in this job."""
    revoke(turn)  # before the run counts as over
    continuity.guard(turn)
    _end_if_over(turn)
    rollover.roll(turn)  # a run that has just finished has succeeded


def _place(turn: Turn) -> None:
    """Launch what is due, and ask for the jobs that are missing."""
    standby.follow(turn)  # before the launch, which places the standbys that it notices
    node_health.ask(turn)  # the launch waits for the answer
    launching.launch(turn)
    supply.supply(turn)  # a unit that has found no place needs a job
    launching.explain(turn)  # it names the job that was just asked for


def _tell(turn: Turn) -> None:
    """Send what has changed since the assignments, and answer who waits for a checkpoint."""
    rollover.tell(turn)  # an answered request is not sent again
    rollover.save(turn)
    orders.servers(turn)


RULES = (  # in this order, with the reason for each place; docs/architecture.md describes each rule
    reports.tell,  # a group's progress is journaled before the verdicts of the rules below
    takeover.attach,  # a step whose job is gone gets its verdict before a rule waits for its heartbeat
    lost_connections.judge,  # what a probe has shown is known before the verdict that waits for it
    node_health.watch,  # the rules below place, stop or count groups by its result
    _release,  # after the two that find evidence
    _stop,  # after all losses: some need the groups that still hold the state
    supply.settle,  # before the launch; a job that groups have just left is requeued
    _run,  # after everything that takes groups down, before anything new is started
    orders.to_groups,  # before the launch: the dead are evicted first
    _place,  # after nodes, evictions and the end of the run are settled
    user_requests.trim,  # after the orders: the eviction of the groups has been sent
    assignments.assign,  # after the launch: a standby that was taken is assigned at once
    _tell,  # after `assign`: includes the groups that have just begun
    _bring_down,  # after every rule that stops something: the kill is part of the same decision
    reports.tell_waiting,  # it looks at who starts and who runs at the end of the decision
    _finish,  # no step may be left
    errands.carry_out,  # after the end: it waits for what was tried once more
)
