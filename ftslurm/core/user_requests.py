"""Answer the requests of a user to a running group, and end the steps that such a request ends. Pure.

A step that a request ends is *recalled*: that is written to the journal, so a controller that takes over ends it too,
and the step's end is no failure, even if the script exits with 0.
"""

from __future__ import annotations

from ftslurm.config.schema import Config
from ftslurm.core.groups import ranks
from ftslurm.core.groups.exits import Outcome
from ftslurm.core.jobs import scale
from ftslurm.core.lineage import rollover
from ftslurm.core.state.actions import Action, TakeStacks
from ftslurm.core.state.events import CheckpointAsked, RestartAsked, StacksAsked, StacksTaken
from ftslurm.core.state.model import Asker, Cause, Phase, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.transitions import stop_politely
from ftslurm.core.state.unit_table import Trait
from ftslurm.core.state.units import independent, swap, tasks_of
from ftslurm.core.state.values import replace
from ftslurm.protocol import records

RUNS = (Phase.STARTING, Phase.RUNNING)


def recall(state: RunState, unit: Unit, reason: str) -> Outcome:
    """Mark a step as recalled: the rule `end_recalled` ends it."""
    record = records.StepRecalled(unit=unit.name, group=unit.group, attempt=unit.attempt, reason=reason)
    return swap(state, replace(unit, current=replace(unit.current, recalled=reason))), [record]


def end_recalled(state: RunState, now: float, config: Config) -> Outcome:
    """End the recalled steps: politely if their scripts run. One that is being adopted is ended once it is."""
    actions: list[Action] = []
    if state.ending is not None:
        return state, actions
    for unit in state.attended():
        if unit.current.recalled is not None and unit.phase in RUNS and unit.current.adoption is None:
            grace_s = config.stop.grace_s if unit.group is not None else 0.0
            unit, stops = stop_politely(unit, Cause.REQUESTED, grace_s, now)
            state, actions = swap(state, unit), [*actions, *stops]
    return state, actions


def why_stuck(state: RunState, unit: Unit, config: Config) -> str | None:
    """Return why a group must not leave its nodes now; None: it may."""
    if state.table.count(Phase.SUCCEEDED) and not independent(config):
        return "a group has finished already: a new attempt could only start a new history"
    if unit.current.over or unit.current.done:
        return f"the script of group {unit.group} has ended: it is about to finish"
    joined = state.table.named(state.table.having_trait(Trait.JOINED))
    if unit.joined and not independent(config) and not any(scale.trains(u) for u in joined if u.name != unit.name):
        return f"only group {unit.group} holds the training's state now; try again when another group trains"
    return None


def restart(state: RunState, event: RestartAsked, config: Config) -> Outcome:
    """Recall the step of a group, or refuse to."""
    why_not = _no_step(state, event.group, event.rank, config)
    unit = None if why_not is not None else state.table.group(event.group)
    why_not = why_not if unit is None else why_stuck(state, unit, config)
    if unit is None or why_not is not None:
        return state, [_refused("restart", event, why_not or "")]
    reason = "asked for with ftslurm restart"
    if event.rank is not None:
        reason += f", for rank {event.rank}" + _on_node(unit, event.rank)
    text = f"group {event.group} is asked to leave, and starts again as attempt {unit.attempt + 1}"
    done = records.CommandDone(
        command=event.command, what="restart", by=event.by.name, text=text, group=event.group, rank=event.rank
    )
    state, actions = recall(state, unit, reason)
    return state, [done, *actions]


def stacks(state: RunState, event: StacksAsked, config: Config) -> Outcome:
    """Ask the guards for the stacks of a rank, or of all, or refuse to; each answers with StacksTaken."""
    why_not = _no_step(state, event.group, event.rank, config)
    unit = None if why_not is not None else state.table.group(event.group)
    if unit is not None and (not unit.current.assigned or None in unit.current.hosts):
        unit, why_not = None, f"group {event.group} is starting: its ranks are not assigned yet"
    if unit is None:
        return state, [_refused("stacks", event, why_not or "")]
    table = ranks.table([str(host) for host in unit.current.hosts])
    task = next((task for task, row in enumerate(table) if row.rank == event.rank), None)
    whose = f"rank {event.rank}" if event.rank is not None else f"{len(table)} ranks"
    done = records.CommandDone(
        command=event.command,
        what="stacks",
        by=event.by.name,
        text=f"{whose} of group {event.group} asked for",
        group=event.group,
        rank=event.rank,
    )
    return state, [done, TakeStacks(unit.id, event.command, task, "ftslurm stacks")]


def stacks_taken(state: RunState, event: StacksTaken, unit: Unit) -> Outcome:
    """Record where the stacks of a task are."""
    if unit.group is None or None in unit.current.hosts or event.task >= len(unit.current.hosts):
        return state, []
    row = ranks.table([str(host) for host in unit.current.hosts])[event.task]
    taken = records.StacksTaken(
        command=event.command,
        group=unit.group,
        attempt=unit.attempt,
        rank=row.rank,
        node=row.node,
        file=event.file,
        error=event.error,
    )
    return state, [taken]


def save(state: RunState, event: CheckpointAsked, now: float, config: Config) -> Outcome:
    """Ask the groups for a checkpoint, or refuse to; `rollover.tell` answers when it is complete."""
    why_not = _no_save(state, config)
    if why_not is not None:
        return state, [records.CommandRefused(command=event.command, what="save", by=event.by.name, reason=why_not)]
    return rollover.ask_for_user(state, Asker(event.command, event.by), now), []


def _no_save(state: RunState, config: Config) -> str | None:
    """Return why no checkpoint can be saved now; None: one can."""
    running = state.table.in_phase(Phase.RUNNING)
    if state.ending is not None:
        return f"the run is ending: {state.ending.reason}"
    if independent(config):
        return "groups without a quorum (lighthouse=none) save in their own ways"
    if state.lineage.lost is not None or state.lineage.resuming:
        return "all groups start over from a checkpoint, and have not come further yet"
    if not running:
        return "no group trains now"
    if not state.lineage.saved and not any(unit.current.saves for unit in running):
        return (
            "no script of the run has an ftslurm.checkpoint.Checkpointer, so none can be asked to save: "
            "ftslurm help checkpoints"
        )
    return None


def _no_step(state: RunState, group: int, rank: int | None, config: Config) -> str | None:
    """Return why nothing can be done to this group, or to this rank of it; None: it runs."""
    if state.ending is not None:
        return f"the run is ending: {state.ending.reason}"
    if not 0 <= group < state.table.groups:
        return f"there is no group {group}; the run has groups 0 to {state.table.groups - 1}"
    unit = state.table.group(group)
    if unit.phase is Phase.STOPPING or unit.current.recalled is not None:
        return f"group {group} is being brought down already"
    if unit.phase not in RUNS:
        waits = f": it waits for {unit.waits_for}" if unit.waits_for else ""
        return f"group {group} does not run ({unit.phase.value}){waits}"
    size = tasks_of(unit, config)
    if rank is not None and not 0 <= rank < size:
        return f"group {group} has no rank {rank}; it has ranks 0 to {size - 1}"
    return None


def _on_node(unit: Unit, rank: int) -> str:
    if None in unit.current.hosts:
        return ""  # not every task has reported its node
    table = ranks.table([str(host) for host in unit.current.hosts])
    return f" on {next(row.node for row in table if row.rank == rank)}"


def _refused(what: str, event: RestartAsked | StacksAsked, reason: str) -> records.CommandRefused:
    return records.CommandRefused(
        command=event.command, what=what, by=event.by.name, reason=reason, group=event.group, rank=event.rank
    )
