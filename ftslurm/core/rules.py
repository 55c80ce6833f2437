"""The state machine: given the state and what has happened, what is done now? Pure; the controller carries it out.

    state, actions = decide(state, events, now, config)

First every event is folded into the state (observe.py), then the state is reconciled with what is wanted: every
Lighthouse and group up, until the run ends. Level, not edge: asking again with no events and the same clock changes
nothing and asks for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from ftslurm.config.schema import Config
from ftslurm.core import handover, parameter_servers
from ftslurm.core.groups import fault_drills, launching, progress_lines
from ftslurm.core.groups.exits import Outcome, given_up
from ftslurm.core.groups.launching import over_from
from ftslurm.core.health import first_step, hangs, lost_connections, node_fate, silence
from ftslurm.core.jobs import queue, scale, supply
from ftslurm.core.lighthouse_orders import orders, redirect
from ftslurm.core.lineage import continuity, rollover, takeover
from ftslurm.core.reduce import assignments, observe
from ftslurm.core.state.actions import Action, Finish, Kill
from ftslurm.core.state.events import Ended, Event
from ftslurm.core.state.model import LIVE, Cause, Ending, Evidence, Phase, RunOutcome, RunState, Unit
from ftslurm.core.state.transitions import stop, stop_politely
from ftslurm.core.state.unit_names import LIGHTHOUSE, group_unit, standby_unit
from ftslurm.core.state.units import independent, serves, swap
from ftslurm.protocol import records

KILL_AGAIN_S = 5.0  # a step that a Kill has not ended after this long gets another, harder one
WIDE_S = 1.0  # the same for several nodes: srun ends within 0.1 s, unless one of them has died and nobody knows it yet
STUCK_S = 0.3  # the same where srun cannot end by itself, because a node it waits for is gone


def begin(config: Config) -> RunState:
    """The state of a run before anything has happened."""
    groups = tuple(Unit(group_unit(g), g) for g in range(config.groups.count))
    standbys = tuple(Unit(standby_unit(i), None) for i in range(config.standby.count))
    if independent(config):  # as if a Lighthouse had come to its end already
        over = Unit(LIGHTHOUSE, None, Phase.SUCCEEDED)
        return RunState(lighthouse=over, groups=groups, standbys=standbys, lighthouse_url="")
    return RunState(lighthouse=Unit(LIGHTHOUSE, None), groups=groups, standbys=standbys)


def decide(state: RunState, events: Sequence[Event], now: float, config: Config) -> Outcome:
    """Fold the events in, then say what is to be done.

    Returns:
        The new state, and the actions in the order in which they must be carried out. Records come first.
    """
    actions: list[Action] = []
    for event in events:
        if isinstance(event, Ended) and _holds(state, event, now, config):
            state = replace(state, held=(*state.held, event))
        else:
            state, more = observe(state, event, now, config)
            actions += more
    state, looks = lost_connections.judge(state, now, config)
    actions += looks
    state, looks = node_fate.judge(state, now, config)
    actions += looks
    for late in state.held:
        if isinstance(late, Ended) and not _holds(state, late, now, config):
            state = replace(state, held=tuple(other for other in state.held if other is not late))
            state, more = observe(state, late, now, config)
            actions += more
    if state.finished:
        return state, actions
    for rule in RULES:
        state, more = rule(state, now, config)
        actions += more
    actions.sort(
        key=lambda action: not isinstance(action, records.JournalRecord)
    )  # stable: records first, each in its order
    return state, actions


def _holds(state: RunState, event: Ended, now: float, config: Config) -> bool:
    """Whether the verdict on a step that has ended waits: for Slurm's word on its job or nodes, or for a probe."""
    return (
        queue.holds(state, event.id, now)
        or lost_connections.holds(state, event.id, now, config)
        or node_fate.holds(state, event.id, now)
    )


def deadline(state: RunState, now: float, config: Config) -> float | None:
    """When decide has to be asked again even if nothing happens; None: not before something does."""
    due = [u.due for u in state.units if u.phase in (Phase.PENDING, Phase.STOPPING)]
    due += [limit for u in state.units if (limit := _start_limit(u)) is not None]
    due += [u.current.begin_after for u in state.groups if u.phase is Phase.STARTING]
    due += [limit for u in state.groups if (limit := _join_limit(u, config)) is not None]
    due += [u.due + config.health.start_timeout_s for u in state.groups if u.waits_for is not None]
    due += [u.due + config.health.wait_timeout_s for u in state.groups if u.waits_for is not None]
    due += [time for time in (over_from(state, config), fault_drills.next_random(state, config)) if time is not None]
    due += [state.ending.until] if state.ending is not None else []
    due += [state.lineage.saving.until] if state.lineage.saving is not None else []
    due += [*silence.deadlines(state, config), *hangs.deadlines(state, config)]
    due += [*supply.deadlines(state, now, config), *takeover.deadlines(state), *queue.pilot_deadlines(state)]
    due += [
        *lost_connections.deadlines(state, config),
        *node_fate.deadlines(state),
        *first_step.deadlines(state, config),
    ]
    return min((time for time in due if now < time < inf), default=None)


def _end_if_over(state: RunState, now: float, config: Config) -> Outcome:
    """Has the run come to its end, good or bad?"""
    if state.ending is not None:
        return state, []
    serving = [u for u in state.groups if serves(u.group, config)]
    groups = [u for u in state.groups if not serves(u.group, config) and not u.retired]
    succeeded = [u for u in groups if u.phase is Phase.SUCCEEDED]
    failed = [u for u in groups if u.phase is Phase.FAILED]
    if len(succeeded) + len(failed) == len(groups) and len(succeeded) >= config.groups.min:
        reason = "all groups finished" + (", those that only serve are stopped (groups.serve)" if serving else "")
        if failed:
            reason = f"{len(succeeded)} of {len(groups)} groups finished; group {failed[0].group} did not"
        if state.lineage.resuming and state.lineage.resume_step > 0:
            reason += f"; nothing was left to do after the checkpoint of step {state.lineage.resume_step}"
        elif state.lineage.step == 0 and not independent(config):
            reason += "; no step was ever committed: does the script use torchft's Manager?"
        # Does nothing show that the others have done its share? With a server, what it did is there for all.
        doubtful = failed and state.lineage.step == 0 and not serving
        return replace(state, ending=Ending(RunOutcome.FAILED if doubtful else RunOutcome.SUCCEEDED, reason)), []
    for unit in serving:
        if unit.phase is Phase.FAILED:
            reason = (
                f"group {unit.group} was given up, and the others need it (groups.serve): {_last_words(unit)}; see "
                f"restart.max_per_group={config.restart.max_per_group} and restart.policy={config.restart.policy}"
            )
            return replace(state, ending=Ending(RunOutcome.FAILED, reason)), []
    if len(groups) - len(failed) < config.groups.min:
        why = "; ".join(f"group {u.group}: {_last_words(u)}" for u in failed[:3])
        reason = (
            f"{len(failed)} of {len(groups)} groups were given up, fewer than groups.min={config.groups.min} are "
            f"left ({why}; see restart.max_per_group={config.restart.max_per_group} and restart.policy="
            f"{config.restart.policy})"
        )
        return replace(state, ending=Ending(RunOutcome.FAILED, reason)), []
    waiting = _without_place(state, now, config)
    left = len(groups) - len(failed) - sum(not serves(u.group, config) for u in waiting)
    needed = any(serves(u.group, config) for u in waiting)
    if waiting and (needed or left < config.groups.min):
        who = f"{len(waiting)} groups have" if len(waiting) > 1 else f"group {waiting[0].group} has"
        gone = ", ".join(sorted(state.nodes.avoid)) or "nodes"
        gone += " was" if len(state.nodes.avoid) == 1 else " were"
        few = f"fewer than groups.min={config.groups.min} can step"
        why = f"since {gone} lost" if state.nodes.avoid else "and no job will bring one"
        hint = supply.waits_for(state, waiting[0], config) or "ask for spare nodes with cluster.spare_nodes"
        reason = f"{who} no node to run on {why}, {'and others need it (groups.serve)' if needed else few}: {hint}"
        return replace(state, ending=Ending(RunOutcome.FAILED, reason)), []
    return state, []


def _without_place(state: RunState, now: float, config: Config) -> list[Unit]:
    """The groups that wait for a node that will not come: in one allocation only a lost one that is still ours may."""
    found = []
    for unit in state.groups if state.allocation is not None else ():
        if unit.phase is not Phase.PENDING or now < unit.due or unit.retired:
            continue
        place = launching.spot(state, unit, now, config)
        if place is not None:
            state = swap(state, replace(unit, phase=Phase.STARTING, place=place))  # it will be there, not the next one
        elif supply.may_come(state, unit, now, config):
            continue
        elif (
            not state.nodes.returning or now >= unit.due + config.health.start_timeout_s
        ):  # else Slurm may yet give it back
            found.append(unit)
    return found


def _last_words(unit: Unit) -> str:
    last = unit.exits[-1] if unit.exits else None
    if last is None:
        return "never started"
    return f"{last.cause.value}" + (f", {last.error}" if last.error else "")


def _expire(state: RunState, now: float, config: Config) -> Outcome:
    """Bring down steps that have taken too long to start, and groups that can only start a new history."""
    since = over_from(state, config)
    over = since is not None and now >= since
    actions: list[Action] = []
    for unit in state.units:
        start = _start_limit(unit)
        late = start is not None and now >= start
        limit = _join_limit(unit, config)
        slow = limit is not None and now >= limit and any(u.joined for u in state.groups)
        going = unit.phase in (Phase.STARTING, Phase.RUNNING) and unit.current.adoption is None
        stray = over and unit.group is not None and going and not unit.joined
        if late:
            words = f"not ready after {config.health.start_timeout_s:g} s (health.start_timeout_s)"
            state = _timed_out(state, unit, words, now)
        elif slow:
            words = f"no step {config.health.join_timeout_s:g} s after its script began (health.join_timeout_s)"
            state = _timed_out(state, unit, words, now)
        elif stray:
            state = swap(state, stop(unit, Cause.CANCELLED, now, now))
        elif over and unit.group is not None and unit.phase is Phase.PENDING:
            reason = "not restarted: another group had already finished, a fresh group would start a new history"
            state = swap(state, replace(unit, phase=Phase.FAILED))
            actions.append(given_up(unit, reason))
        elif unit.waits_for is not None and 0 < config.health.wait_timeout_s <= now - unit.due:
            reason = f"it has waited for {config.health.wait_timeout_s:g} s (health.wait_timeout_s): {unit.waits_for}"
            state = swap(state, replace(unit, phase=Phase.FAILED, waits_for=None))
            actions.append(given_up(unit, reason))
    return state, actions


def _start_limit(unit: Unit) -> float | None:
    """Until when a step must be ready, and, once assigned, have its store; None: it waits for others, or for nobody."""
    if unit.phase is not Phase.STARTING or unit.current.store is not None or unit.current.adoption is not None:
        return None
    return unit.due if unit.marks.ready is None or unit.current.assigned else None


def _join_limit(unit: Unit, config: Config) -> float | None:
    """Until when a group whose script runs must have committed a step; None: it has, or there is no limit."""
    limit, begun = config.health.join_timeout_s, unit.marks.begun
    waits = unit.phase is Phase.RUNNING and unit.group is not None and unit.current.step is None
    return begun + limit if waits and limit > 0 and begun is not None and not independent(config) else None


def _timed_out(state: RunState, unit: Unit, words: str, now: float) -> RunState:
    sign = Evidence(None, None, error=words, cause=Cause.START_TIMEOUT)
    return swap(state, stop(unit, Cause.START_TIMEOUT, now, now, sign))


def _assign(state: RunState, now: float, config: Config) -> Outcome:
    return (state, []) if state.ending is not None else assignments(state, now, config)


def _bring_down(state: RunState, now: float, config: Config) -> Outcome:
    """Kill what is STOPPING and due; when the run ends, ask the groups to stop first, the Lighthouse last."""
    actions: list[Action] = []
    ending = state.ending
    if ending is not None:
        for unit in (*state.groups, *state.standbys):
            if unit.phase is Phase.PENDING:
                state = swap(state, replace(unit, phase=Phase.FAILED))
            elif unit.phase in (Phase.STARTING, Phase.RUNNING):
                cause = ending.cause if not unit.is_standby else Cause.CANCELLED
                unit, stops = stop_politely(unit, cause, config.stop.grace_s, now, adopting=True)
                state = swap(state, unit)
                actions += stops
        state = _bring_down_lighthouse(state, now)
    for unit in state.units:
        if unit.phase is Phase.STOPPING and now >= unit.due:
            stuck = any(sign.stuck for sign in unit.current.evidence)
            actions.append(Kill(unit.id, stuck))
            wide = config.groups.nodes > 1 and config.cluster.kind != "local" and not unit.is_lighthouse
            again = STUCK_S if stuck else WIDE_S if wide else KILL_AGAIN_S
            state = swap(state, replace(unit, due=now + again, current=replace(unit.current, spared=False)))
    return state, actions


def _bring_down_lighthouse(state: RunState, now: float) -> RunState:
    """The last to go: groups that are still finishing need it."""
    lighthouse = state.lighthouse
    if lighthouse.phase is Phase.PENDING:
        return swap(state, replace(lighthouse, phase=Phase.FAILED))
    if lighthouse.phase in (Phase.STARTING, Phase.RUNNING) and not any(u.phase in LIVE for u in state.groups):
        return swap(state, stop(lighthouse, Cause.CANCELLED, now, now))
    return state


def _finish(state: RunState, now: float, config: Config) -> Outcome:
    if state.ending is None or now < state.ending.until or any(u.phase in LIVE for u in state.units):
        return state, []
    here = {u.name: u.attempt for u in state.groups}
    restarts = max(0, sum(max(0, n) for n in (dict(state.parked) | here).values()) - state.planned)
    ending = rollover.verdict(state, config)
    done = (
        state.lineage.resume_step if state.lineage.resuming and ending.outcome is RunOutcome.SUCCEEDED else 0
    )  # by an earlier run
    steps = max(state.lineage.step, done)
    record = records.RunRequeued if ending.outcome is RunOutcome.REQUEUED else records.RunFinished
    return replace(state, finished=True, ending=ending), [
        record(outcome=ending.outcome.value, reason=ending.reason, steps=steps, restarts=restarts),
        Finish(ending.outcome, ending.reason),
    ]


RULES = (
    progress_lines.tell,
    takeover.attach,
    node_fate.judge,
    silence.watch,
    silence.mind_lighthouse,
    hangs.find_hangs,
    silence.restore,
    handover.vacate,
    supply.recover,
    supply.settle,
    queue.keep_pilots,
    _expire,
    continuity.guard,
    _end_if_over,
    rollover.roll,
    orders,
    redirect,
    launching.launch,
    supply.supply,
    launching.explain,
    scale.trim,
    _assign,
    rollover.save,
    parameter_servers.tell,
    fault_drills.inject_random,
    _bring_down,
    silence.forget,
    hangs.forget,
    first_step.watch,
    _finish,
)
