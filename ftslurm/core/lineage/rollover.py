"""Request a checkpoint on demand, and continue a run in another job when its own is about to end. Pure.

A rule that is about to stop the last groups with the training's state first calls `ask` and waits until `answered`.
The rule `save` sends the request to the groups, also to those that start later. A checkpoint in progress is not
requested twice, and the wait has a limit, because a script need not save through ftslurm.

The roll-over of steps mode uses this: Slurm warns before the time limit, a checkpoint is requested, the training
continues until it is saved, the groups are stopped, and the controller requeues its job
(ftslurm/submission/requeue.py). There is no roll-over if the next job could not resume or could make no progress.
"""

from __future__ import annotations

from ftslurm.config.schema import Config
from ftslurm.core.groups.exits import Outcome
from ftslurm.core.lineage import continuity
from ftslurm.core.state.actions import Action, SaveNow
from ftslurm.core.state.events import Checkpointed, JobEnds
from ftslurm.core.state.model import OVER, Ending, Phase, RunOutcome, SaveAsked
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.units import independent, swap
from ftslurm.core.state.values import replace
from ftslurm.protocol import records


def ask(state: RunState, now: float, patience_s: float) -> RunState:
    """Ask the groups for a checkpoint of this step or a later one, and wait for it at most `patience_s` seconds."""
    restarts = (
        state.lineage.resuming or state.lineage.lost is not None
    )  # no group is beyond the checkpoint from which all start
    step = state.lineage.newest if restarts else max(1, state.lineage.step)
    return replace(state, lineage=replace(state.lineage, saving=SaveAsked(step, now + patience_s)))


def answered(state: RunState, now: float) -> bool:
    """Return whether the wait for the checkpoint is over: it is saved, has failed, or is late."""
    saving = state.lineage.saving
    if saving is None or state.lineage.newest >= saving.step or saving.error is not None or now >= saving.until:
        return True
    return state.table.count(*OVER) == state.table.groups


def checkpointed(state: RunState, event: Checkpointed) -> RunState:
    """Record that a group has saved a checkpoint or failed to."""
    if event.error is None:
        return replace(state, lineage=replace(state.lineage, newest=event.step))
    if state.lineage.saving is None or event.step < state.lineage.saving.step:
        return state
    return replace(state, lineage=replace(state.lineage, saving=replace(state.lineage.saving, error=event.error)))


def save(state: RunState, now: float, config: Config) -> Outcome:
    """Send the request for a checkpoint once to each group whose script runs."""
    saving = state.lineage.saving
    if saving is None or answered(state, now) or state.ending is not None:
        return state, []
    actions: list[Action] = []
    for unit in state.attended():
        if unit.group is not None and unit.phase is Phase.RUNNING and unit.current.wanted < saving.step:
            state = swap(state, replace(unit, current=replace(unit.current, wanted=saving.step)))
            actions.append(SaveNow(unit.id, saving.step))
    return state, actions


def begin(state: RunState, event: JobEnds, now: float, config: Config) -> Outcome:
    """Begin the roll-over: the job will end soon."""
    if state.lineage.rolling is not None or state.ending is not None:
        return state, []
    state = replace(
        state, lineage=replace(state.lineage, rolling=Ending(RunOutcome.GOES_ON, event.reason, event.cause, event.by))
    )
    if not independent(config):  # independent groups save in their own ways, or not at all
        state = ask(state, now, event.left_s)
    return state, [records.RollOver(reason=event.reason, by=event.by.name, seconds=round(event.left_s, 1))]


def roll(state: RunState, now: float, config: Config) -> Outcome:
    """End the run in this job when the wait for the checkpoint is over."""
    if state.lineage.rolling is None or state.ending is not None or not answered(state, now):
        return state, []
    return replace(state, ending=state.lineage.rolling), []


def verdict(state: RunState, config: Config) -> Ending:
    """Return how the run ends after its last step; a roll-over becomes a stop if the next job could not continue."""
    ending = state.ending
    assert ending is not None
    if ending.outcome is not RunOutcome.GOES_ON:
        return ending
    why_not = _why_not(state, config)
    if why_not is not None:
        return replace(
            ending, outcome=RunOutcome.STOPPED, reason=f"{ending.reason}; the run does not go on by itself: {why_not}"
        )
    saving, found = state.lineage.saving, state.lineage.checkpoint
    ours = found is not None and found.step is not None
    whence = f"the checkpoint of step {found.step}" if found is not None and ours else "where its script has saved"
    if ours and saving is not None and state.lineage.newest < saving.step:
        whence += f" (a newer one could not be saved: {saving.error or 'not in time, see cluster.signal_s'})"
    return replace(ending, outcome=RunOutcome.REQUEUED, reason=f"{ending.reason}; the run goes on from {whence}")


def _why_not(state: RunState, config: Config) -> str | None:
    """Return why another job could not continue this run, and what to set; None: it can."""
    if independent(config) and config.restart.on_state_loss != "checkpoint":
        return (
            "ftslurm does not know how its groups (lighthouse=none) save and restore; if their scripts go on where "
            "they were, say so with restart.on_state_loss=checkpoint"
        )
    if state.drills.stepping_since is None:
        return "no step was committed in this job, and the next would come no further: ask for more with cluster.time"
    why_not = None if independent(config) else continuity.why_no_restart(state.lineage.checkpoint, config)
    if why_not is not None:
        return why_not
    step = state.lineage.checkpoint.step if state.lineage.checkpoint is not None else None
    if step is not None and step <= state.lineage.origin:
        return (
            f"no checkpoint was saved in this job, the newest is that of step {step} with which it began, and the next "
            f"would come no further: ask for more with cluster.time, or warn earlier with cluster.signal_s"
        )
    return None
