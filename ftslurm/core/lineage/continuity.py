"""Keep one history of the training: no group starts it anew by accident. Full restart when all state is lost.

A group that has just been launched has random weights. It must heal from a live group, or resume from a checkpoint,
before it counts; when neither is there, nobody trains on as if nothing had happened. docs/state.md has the orders of
events in which torchft alone would, and who prevents each: our Lighthouse (lighthouse/quorum.py), the worker itself
(worker/lineage_guard.py), or what is here.
"""

from __future__ import annotations

from ftslurm.config.schema import Config
from ftslurm.core.lineage import takeover
from ftslurm.core.state.actions import Action
from ftslurm.core.state.events import Granted, Progressed, Restored
from ftslurm.core.state.model import LIVE, Cause, Ending, Phase, RunOutcome, Saved, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.transitions import stop
from ftslurm.core.state.unit_table import Trait
from ftslurm.core.state.units import independent, swap
from ftslurm.core.state.values import replace
from ftslurm.protocol import records
from ftslurm.protocol.stages import Stage

PATIENT = 5  # checkpoints may be missed before it is said


def opened(state: RunState, event: Granted, now: float, config: Config) -> tuple[RunState, list[Action]]:
    """The first state of a run that may have a past: a checkpoint to start from, an earlier life of the same run.

    Groups without a quorum only count their attempts on: what each goes on from is its script's own business.
    """
    saved, past, gone = event.checkpoint, event.past, list[Action]()
    for unit in state.units:
        state = swap(state, replace(unit, due=now))
    known = saved is not None and saved.step is not None and saved.step > 0
    state = replace(
        state, lineage=replace(state.lineage, checkpoint=saved, origin=saved.step or 0 if saved is not None else 0)
    )
    if event.refused is not None:
        return replace(state, ending=Ending(RunOutcome.FAILED, event.refused)), []
    if past is not None:
        state, last = takeover.scaled(state, past, config), dict(past.attempts)
        exits = dict(past.exits)
        for unit in state.units:
            state = swap(state, replace(unit, attempt=last.get(unit.name, -1), exits=exits.get(unit.name, ())))
        state = takeover.scheduled(state, past, now, config)
        state = takeover.left_out(state, past, now, config)
        state = replace(
            state, lineage=replace(state.lineage, restarted=now), job_pool=replace(state.job_pool, leaving=past.leaving)
        )
        state, gone = takeover.opened(state, past, event.homes, now, config)
        failed = {one.unit for one in past.scheduled}
        idle = (u for u in state.groups if u.attempt >= 0 and u.phase is Phase.PENDING and not u.current.adoption)
        moved = (u for u in idle if u.name not in failed)
        state = replace(state, planned=past.planned + len(list(moved)))
        if any(unit.current.adoption for unit in state.groups):
            return state, gone
        if past.step > 0 and not independent(config):
            lost = f"the job was requeued at step {past.step}, with all groups"
            return replace(state, lineage=replace(state.lineage, step=past.step, lost=lost)), gone
    if known and saved is not None and not independent(config):
        state = replace(state, lineage=replace(state.lineage, resuming=True, resume_step=saved.step or 0))
    return state, gone


def reached(state: RunState, config: Config) -> int:
    """The step below which no quorum may be; 0 while nobody knows: at the first start, during a full restart.

    One less than the run has reached: groups vote for themselves whether a step is committed, so the one that lives
    may be one short of the one that told us and died.
    """
    if independent(config) or state.lineage.step == 0 or state.lineage.lost is not None or state.lineage.resuming:
        return 0
    return max(1, state.lineage.step - 1)


def heals(state: RunState, config: Config) -> bool:
    """Whether a group whose script begins now has to heal from a live group: there is, or was, a newer state."""
    return reached(state, config) > 0


def floor(state: RunState, config: Config) -> int:
    """The step below which no quorum may be that a group takes part in whose script begins now."""
    return reached(state, config) or (state.lineage.resume_step if state.lineage.resuming else 0)


def is_new_history(event: Progressed, unit: Unit, state: RunState) -> bool:
    """Whether a group's first committed step shows that it neither healed nor resumed.

    It is not beyond what was asked of it when its script began. Or it comes late, has committed every step itself,
    and they are fewer than the run's. (At the first start this may be a group whose first report was overtaken by
    another's second.)
    """
    if event.step <= unit.current.floor:
        return True
    comes_late = unit.attempt > 0 or bool(state.table.count(Phase.SUCCEEDED))
    return comes_late and event.step <= event.committed and event.step < state.lineage.step


def guard(state: RunState, now: float, config: Config) -> tuple[RunState, list[Action]]:
    """When the last group that holds the training's state is gone, all groups start over from a checkpoint, or none.

    A fresh group would begin at step 0, alone or as the donor of the others. So every group is brought down, and when
    all are, the newest complete checkpoint decides; without one, restart.on_state_loss.
    """
    if state.ending is not None or independent(config):
        return state, []
    state = _older_checkpoint(state)
    if _nobody_resumed(state):
        return replace(state, ending=Ending(RunOutcome.FAILED, _not_resumed(state))), []
    if state.lineage.step == 0 or state.table.count(Phase.SUCCEEDED):
        return state, []
    there = state.table.having_trait(Trait.JOINED) or state.table.having_trait(Trait.ADOPTING)
    if state.lineage.lost is None and not there and not state.lineage.resuming:
        last = max(state.groups, key=_failed_at)
        words = f"no group is left that holds the state of step {state.lineage.step}"
        words += f" (the last to go down was group {last.group})"
        state = replace(state, lineage=replace(state.lineage, lost=words))
    if state.lineage.lost is None:
        return state, []
    for unit in state.table.in_phase(Phase.STARTING, Phase.RUNNING):
        state = swap(state, stop(unit, Cause.CANCELLED, now, now))
    if state.table.count(*LIVE):
        return state, []
    why_not = why_no_restart(state.lineage.checkpoint, config)
    if why_not is not None:
        return replace(state, ending=Ending(RunOutcome.FAILED, f"{state.lineage.lost}: {why_not}")), []
    saved = state.lineage.checkpoint
    assert saved is not None
    record = records.FullRestart(
        reason=state.lineage.lost, step=state.lineage.step, checkpoint=saved.path, checkpoint_step=saved.step
    )
    waiting = state.table.in_phase(Phase.PENDING)
    due = max((u.due for u in waiting), default=now)
    for unit in waiting:  # together: who came later would heal, and its place in the data would not be the checkpoint's
        state = swap(state, replace(unit, due=due))
    state = replace(
        state, lineage=replace(state.lineage, lost=None, resuming=True, resume_step=saved.step or 0, allowed_by=None)
    )
    return replace(state, released=False, lineage=replace(state.lineage, restarted=now)), [record]


def why_no_restart(saved: Saved | None, config: Config) -> str | None:
    """Why the groups cannot start over; None: they can.

    A whole checkpoint of ours says for itself that it can be resumed from. What else lies there only the user knows.
    """
    never = f"and a run never restarts from step 0 by itself (restart.on_state_loss={config.restart.on_state_loss})"
    if saved is not None and saved.damaged is not None:
        return f"no checkpoint is complete ({saved.path}: {saved.damaged}), {never}"
    if saved is not None and (saved.step is not None or config.restart.on_state_loss == "checkpoint"):
        return None
    if saved is not None:
        return (
            f"{saved.path} has files, but no complete checkpoint that ftslurm knows, {never}. If the script resumes "
            f"from them, set restart.on_state_loss=checkpoint (and, to go on from these, checkpoint.dir={saved.path})"
        )
    if config.checkpoint.every > 0:
        return f"none was complete yet (checkpoint.every={config.checkpoint.every}), {never}"
    return (
        f"there is no checkpoint, {never}. Let the script save with ftslurm.checkpoint (docs/checkpoints.md), as the "
        f"examples do, and set checkpoint.every=STEPS"
    )


def unsaved(state: RunState, event: Progressed, config: Config) -> str | None:
    """A word for the user who has asked for checkpoints and gets none; None: all is well, or it is too early to say."""
    every = config.checkpoint.every
    if (
        every == 0
        or event.committed < PATIENT * every
        or state.lineage.saved
        or config.restart.on_state_loss == "checkpoint"
    ):
        return None
    return (
        f"checkpoint.every={every}, and {PATIENT} times as many steps later no checkpoint has been heard of: does the "
        f"script save with ftslurm.checkpoint? (docs/checkpoints.md; if in a way of its own, say so with "
        f"restart.on_state_loss=checkpoint)"
    )


def restored(unit: Unit, event: Restored, state: RunState) -> Unit:
    """The group has loaded a checkpoint. If it is an older one of those that the run starts from, that is its floor.

    From anywhere else it is the script's doing, and no reason to let it begin below.
    """
    saved = state.lineage.checkpoint
    if saved is None or event.path.rpartition("/")[0] != saved.path.rpartition("/")[0]:
        return unit
    return replace(unit, current=replace(unit.current, restored=event.step, floor=min(unit.current.floor, event.step)))


def _older_checkpoint(state: RunState) -> RunState:
    """If the newest checkpoint could be read by nobody, the run starts from the older one that all have loaded."""
    if not state.lineage.resuming:
        return state
    loaded = list[int | None]()
    for unit in state.table.all_groups():
        if unit.phase is not Phase.FAILED:
            loaded.append(unit.current.restored if unit.phase is Phase.RUNNING else None)
            if loaded[-1] is None:
                return state
    best = max((step for step in loaded if step is not None), default=0)
    if not 0 < best < state.lineage.resume_step:
        return state
    return replace(state, lineage=replace(state.lineage, resume_step=best, allowed_by=None))


def _nobody_resumed(state: RunState) -> bool:
    """Whether all groups ask for a quorum with less than the checkpoint has from which the run starts.

    Our Lighthouse refuses them, and they would ask until torchft's time-out.
    """
    if not state.lineage.resuming or state.lineage.resume_step == 0:
        return False
    if state.table.count(Phase.FAILED) == state.table.groups:
        return False
    units = (unit for unit in state.table.all_groups() if unit.phase is not Phase.FAILED)
    return all(_asks_below(unit, state.lineage.resume_step) for unit in units)


def _asks_below(unit: Unit, step: int) -> bool:
    pulse, begun = unit.pulses[0] if unit.pulses else None, unit.marks.begun
    if unit.phase is not Phase.RUNNING or pulse is None or begun is None or pulse.time <= begun:
        return False
    return pulse.stage == Stage.SEEKING_QUORUM and pulse.step is not None and pulse.step < step


def _not_resumed(state: RunState) -> str:
    path = state.lineage.checkpoint.path if state.lineage.checkpoint else "checkpoint.dir"
    return (
        f"{path} has the training at step {state.lineage.resume_step}, and no group has resumed from it: the run would "
        f"have begun anew. Let the script load it before its first step (docs/checkpoints.md), or name another "
        f"checkpoint.dir"
    )


def _failed_at(unit: Unit) -> float:
    times = (unit.current.failing.noticed, unit.marks.noticed)
    return next((time for time in times if time is not None), 0.0)
