"""The state machine: given the state and what has happened, what is done now? Pure; the controller carries it out.

    state, actions = decide(state, events, now, config)

First every event is folded into the state (observe.py), then the state is reconciled with what is wanted: every
Lighthouse and group up, until the run ends. Level, not edge: asking again with no events and the same clock changes
nothing and asks for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ftslurm.config import Config
from ftslurm.core import placement, ranks
from ftslurm.core.model import (
    LIVE,
    Action,
    Cause,
    Ending,
    Event,
    Finish,
    Kill,
    Launch,
    Phase,
    Place,
    Record,
    RunState,
    Stop,
    Unit,
)
from ftslurm.core.observe import Outcome, assignments, given_up, observe, rank_fields, swap, tasks_of
from ftslurm.core.orders import orders
from ftslurm.rundir import LIGHTHOUSE, group_unit

FINISH_TOGETHER_S = 2.0  # groups finish in lockstep; one that has not even joined this long after the first never will
KILL_AGAIN_S = 5.0  # a step that a Kill has not ended after this long gets another, harder one


def begin(config: Config) -> RunState:
    """The state of a run before anything has happened."""
    groups = tuple(Unit(group_unit(g), g) for g in range(config.groups.count))
    return RunState(lighthouse=Unit(LIGHTHOUSE, None), groups=groups)


def decide(state: RunState, events: Sequence[Event], now: float, config: Config) -> Outcome:
    """Fold the events in, then say what is to be done.

    Returns:
        The new state, and the actions in the order in which they must be carried out. Records come first.
    """
    actions: list[Action] = []
    for event in events:
        state, more = observe(state, event, now, config)
        actions += more
    if state.finished:
        return state, actions
    for rule in (_expire, _guard_state, _end_if_over, orders, _launch, _assign, _bring_down, _finish):
        state, more = rule(state, now, config)
        actions += more
    actions.sort(key=lambda action: not isinstance(action, Record))  # stable: records first, each in its order
    return state, actions


def deadline(state: RunState, now: float) -> float | None:
    """When decide has to be asked again even if nothing happens; None: not before something does."""
    due = [u.due for u in state.units if u.phase in (Phase.PENDING, Phase.STARTING, Phase.STOPPING)]
    due += [u.begin_after for u in state.groups if u.phase is Phase.STARTING]
    over = _over_from(state)
    if over is not None:
        due.append(over)
    return min((time for time in due if time > now), default=None)


def _over_from(state: RunState) -> float | None:
    """From when on a group that has not joined could only start a new history; None: no group has finished yet."""
    finished = [u.exits[-1].time for u in state.groups if u.phase is Phase.SUCCEEDED]
    return min(finished) + FINISH_TOGETHER_S if finished and state.step > 0 else None


def _end_if_over(state: RunState, now: float, config: Config) -> Outcome:
    """Has the run come to its end, good or bad?"""
    if state.ending is not None:
        return state, []
    succeeded = [u for u in state.groups if u.phase is Phase.SUCCEEDED]
    failed = [u for u in state.groups if u.phase is Phase.FAILED]
    if len(succeeded) + len(failed) == len(state.groups) and len(succeeded) >= config.groups.min:
        reason = "all groups finished"
        if failed:
            reason = f"{len(succeeded)} of {len(state.groups)} groups finished; group {failed[0].group} did not"
        if state.step == 0:
            reason += "; no step was ever committed: does the script use torchft's Manager?"
        doubtful = failed and state.step == 0  # nothing shows that the others have done its share
        return replace(state, ending=Ending("failed" if doubtful else "succeeded", reason)), []
    if len(state.groups) - len(failed) < config.groups.min:
        why = "; ".join(f"group {u.group}: {_last_words(u)}" for u in failed[:3])
        reason = (
            f"{len(failed)} of {len(state.groups)} groups were given up, fewer than groups.min={config.groups.min} are "
            f"left ({why}; see restart.max_per_group={config.restart.max_per_group} and restart.policy="
            f"{config.restart.policy})"
        )
        return replace(state, ending=Ending("failed", reason)), []
    waiting = [u for u in state.groups if u.phase is Phase.PENDING and _has_no_place(state, u, now, config)]
    if waiting and len(state.groups) - len(failed) - len(waiting) < config.groups.min:
        nodes = ", ".join(sorted(state.avoid))
        reason = (
            f"{len(waiting)} groups have no node to run on since {nodes} were lost, fewer than groups.min="
            f"{config.groups.min} can step: ask for spare nodes with cluster.spare_nodes"
        )
        return replace(state, ending=Ending("failed", reason)), []
    return state, []


def _has_no_place(state: RunState, unit: Unit, now: float, config: Config) -> bool:
    """Whether it waits for a node; in one allocation none ever comes, except from a group that is given up."""
    return state.allocation is not None and now >= unit.due and _place(state, unit, config) is None


def _last_words(unit: Unit) -> str:
    last = unit.exits[-1] if unit.exits else None
    if last is None:
        return "never started"
    return f"{last.cause.value}" + (f", {last.error}" if last.error else "")


def _expire(state: RunState, now: float, config: Config) -> Outcome:
    """Bring down steps that have taken too long to start, and groups that can only start a new history."""
    over_from = _over_from(state)
    over = over_from is not None and now >= over_from
    actions: list[Action] = []
    for unit in state.units:
        late = unit.phase is Phase.STARTING and now >= unit.due
        stray = over and unit.group is not None and unit.phase in (Phase.STARTING, Phase.RUNNING) and not unit.joined
        if late:
            unit = replace(unit, phase=Phase.STOPPING, intent=Cause.START_TIMEOUT, due=now, down_since=now)
            state = swap(state, unit)
        elif stray:
            unit = replace(unit, phase=Phase.STOPPING, intent=Cause.CANCELLED, due=now, down_since=now)
            state = swap(state, unit)
        elif over and unit.group is not None and unit.phase is Phase.PENDING:
            reason = "not restarted: another group had already finished, a fresh group would start a new history"
            state = swap(state, replace(unit, phase=Phase.FAILED))
            actions.append(given_up(unit, reason))
    return state, actions


def _guard_state(state: RunState, now: float, config: Config) -> Outcome:
    """When the last group that holds the training's state is gone, nobody trains on as if nothing had happened.

    A fresh group would begin at step 0, alone or as the donor of the others. So every group is brought down, and when
    all are, they start over from a checkpoint or the run fails (restart.on_state_loss).
    """
    if state.ending is not None or state.step == 0 or any(u.phase is Phase.SUCCEEDED for u in state.groups):
        return state, []
    if state.lost is None and not any(u.joined for u in state.groups) and not state.resuming:
        last = max((u for u in state.groups if u.down_since is not None), key=lambda u: u.down_since or 0.0)
        state = replace(state, lost=f"group {last.group}, the last that held the state of step {state.step}, is down")
    if state.lost is None:
        return state, []
    if config.restart.on_state_loss == "fail":
        advice = (
            "restart.on_state_loss=fail ends the run here. If the script saves to and resumes from "
            "$FTSLURM_CHECKPOINT_DIR, set restart.on_state_loss=checkpoint"
        )
        return replace(state, ending=Ending("failed", f"{state.lost}: {advice}")), []
    for unit in state.groups:
        if unit.phase in (Phase.STARTING, Phase.RUNNING):
            down = replace(unit, phase=Phase.STOPPING, intent=Cause.CANCELLED, due=now, down_since=now)
            state = swap(state, down)
    if any(u.phase in LIVE for u in state.groups):
        return state, []
    if not state.checkpoint:
        advice = "restart.on_state_loss=checkpoint, but checkpoint.dir is empty, and a run never restarts from step 0"
        return replace(state, ending=Ending("failed", f"{state.lost}: {advice}")), []
    fields: dict[str, object] = {"reason": state.lost, "step": state.step}
    return replace(state, lost=None, resuming=True, allowed_by=None), [Record("full_restart", fields)]


def _launch(state: RunState, now: float, config: Config) -> Outcome:
    """Launch every unit that is due and has a place."""
    actions: list[Action] = []
    if state.ending is not None or state.allocation is None:
        return state, actions
    for unit in state.units:
        if unit.phase is not Phase.PENDING or now < unit.due:
            continue
        if unit.group is not None and (state.lost is not None or _over_from(state) is not None):
            continue  # there is nobody to heal from
        spot = _place(state, unit, config)
        if spot is None:
            continue  # it waits; the other groups go on
        unit = Unit(
            name=unit.name,
            group=unit.group,
            phase=Phase.STARTING,
            attempt=unit.attempt + 1,
            place=spot,
            reason=unit.reason,
            due=now + config.health.start_timeout_s,
            launched=now,
            begin_after=_begin_after(unit, config),
            hosts=(None,) * tasks_of(unit, config),
            down_since=unit.down_since,
            exits=unit.exits,
        )
        state = swap(state, unit)
        table = ranks.expected(spot, config.groups.workers if unit.group is not None else 1)
        fields: dict[str, object] = {"unit": unit.name, "group": unit.group, "attempt": unit.attempt}
        fields |= {
            "nodes": list(spot.nodes),
            "slot": spot.slot,
            "allocation": state.allocation.name if state.allocation else None,
        }
        fields |= {"ranks": [rank_fields(r) for r in table], "reason": unit.reason}
        fields["down_s"] = None if unit.down_since is None else round(now - unit.down_since, 3)
        actions += [Record("step_launched", fields), Launch(unit.id, unit.group, spot)]
    return state, actions


def _begin_after(unit: Unit, config: Config) -> float:
    """When the script of the next attempt may start: not before the Lighthouse has forgotten the one that died.

    A group that comes back quickly makes its manager, which sends heartbeats, and is then busy building its model. If
    the dead attempt has not expired by then, the survivors' quorum goes on to wait for the newcomer, up to
    join_timeout_ms (measured: survivors stalled 1.9 s instead of 1.0 s, which was until the newcomer's first step).
    """
    if unit.down_since is None or unit.group is None or config.lighthouse.kind == "ftslurm":
        return 0.0  # ours is told at once, and does not let survivors wait for a newcomer
    lighthouse = config.lighthouse
    return unit.down_since + (lighthouse.heartbeat_timeout_ms + 2 * lighthouse.quorum_tick_ms) / 1000 + 0.05


def _place(state: RunState, unit: Unit, config: Config) -> Place | None:
    assert state.allocation is not None
    if unit.group is None:
        return Place(state.allocation.nodes[:1])  # on the controller's node: what kills one kills both
    taken = [u.place for u in state.groups if u.phase in LIVE and u.place is not None and u.name != unit.name]
    groups = config.groups
    return placement.place(groups.nodes, groups.per_node, state.allocation, taken, state.avoid, unit.place)


def _assign(state: RunState, now: float, config: Config) -> Outcome:
    return (state, []) if state.ending is not None else assignments(state, now, config)


def _bring_down(state: RunState, now: float, config: Config) -> Outcome:
    """Kill what is STOPPING and due; when the run ends, ask the groups to stop first, the Lighthouse last."""
    actions: list[Action] = []
    ending = state.ending
    if ending is not None:
        for unit in state.groups:
            if unit.phase is Phase.PENDING:
                state = swap(state, replace(unit, phase=Phase.FAILED))
            elif unit.phase in (Phase.STARTING, Phase.RUNNING):
                polite = unit.phase is Phase.RUNNING  # before its script runs there is nobody to ask
                due = now + config.stop.grace_s if polite else now
                unit = replace(unit, phase=Phase.STOPPING, intent=ending.cause, due=due, down_since=now)
                state = swap(state, unit)
                if polite:
                    actions.append(Stop(unit.id))
        state = _bring_down_lighthouse(state, now)
    for unit in state.units:
        if unit.phase is Phase.STOPPING and now >= unit.due:
            actions.append(Kill(unit.id))
            state = swap(state, replace(unit, due=now + KILL_AGAIN_S))
    return state, actions


def _bring_down_lighthouse(state: RunState, now: float) -> RunState:
    """The last to go: groups that are still finishing need it."""
    lighthouse = state.lighthouse
    if lighthouse.phase is Phase.PENDING:
        return swap(state, replace(lighthouse, phase=Phase.FAILED))
    if lighthouse.phase in (Phase.STARTING, Phase.RUNNING) and not any(u.phase in LIVE for u in state.groups):
        down = replace(lighthouse, phase=Phase.STOPPING, intent=Cause.CANCELLED, due=now, down_since=now)
        return swap(state, down)
    return state


def _finish(state: RunState, now: float, config: Config) -> Outcome:
    if state.ending is None or any(u.phase in LIVE for u in state.units):
        return state, []
    restarts = sum(max(0, u.attempt) for u in state.groups)
    fields: dict[str, object] = {"outcome": state.ending.outcome, "reason": state.ending.reason}
    fields |= {"steps": state.step, "restarts": restarts}
    return replace(state, finished=True), [
        Record("run_finished", fields),
        Finish(state.ending.outcome, state.ending.reason),
    ]
