"""Keep one lineage of the training: no group starts a new one by accident. Full restart when all state is lost.

A group that has just been launched has random weights. It must heal from a live group or resume from a checkpoint
before it counts; if neither exists, the training must not continue. docs/lighthouse.md lists the orders of events in
which torchft alone would continue, and what prevents each: our Lighthouse (lighthouse/quorum.py), the worker
(worker/lineage_guard.py), or this module.
"""

from __future__ import annotations

from ftslurm.config.schema import Config
from ftslurm.core.jobs import queue
from ftslurm.core.state.events import Granted
from ftslurm.core.state.model import LIVE, RUNS, Comparisons, Phase, Saved, Trait, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.transitions import stop
from ftslurm.core.state.turn import Turn
from ftslurm.protocol import messages, records
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.stages import Stage

PATIENT = 5  # checkpoints that may be missed before the user is warned


def opened(turn: Turn, event: Granted) -> None:
    """Begin a run, from a checkpoint if there is one. Groups without a quorum decide what to resume from."""
    saved = event.checkpoint
    saved_step = 0 if saved is None else saved.step or 0
    for unit in turn.state.units:
        turn.change(unit, due=turn.now)
    turn.set_lineage(checkpoint=saved, origin=saved_step)
    if event.refused is not None:
        turn.fail(event.refused)
    elif saved_step > 0 and not turn.independent:
        turn.set_lineage(resuming=True, resume_step=saved_step)


def reached(state: RunState, config: Config) -> int:
    """Return the lowest step that a quorum may have; 0 while unknown: at the first start, during a full restart.

    If it is known, a group whose script begins now must heal from a live group, because a newer state exists.

    It is one less than the run has reached: each group commits a step by its own vote, so a survivor may be one step
    behind the group that reported the step and died.
    """
    if config.independent or state.lineage.step == 0 or state.lineage.lost is not None or state.lineage.resuming:
        return 0
    return max(1, state.lineage.step - 1)


def is_new_history(turn: Turn, said: messages.Progress, unit: Unit) -> bool:
    """Return whether a group's first committed step shows that it neither healed nor resumed.

    Either the step is not above the floor given to the group when its script began. Or the group joined late, has
    committed every step itself, and has fewer steps than the run. (At the first start, fewer steps only mean that its
    first report arrived after the second one of another group.)
    """
    if said.step <= unit.current.floor:
        return True
    comes_late = unit.attempt > 0 or turn.table.count(Phase.SUCCEEDED) > 0
    return comes_late and said.step <= said.committed and said.step < turn.lineage.step


def guard(turn: Turn) -> None:
    """Restart all groups from a checkpoint, or end the run, when the last group with the training's state is lost.

    A fresh group would begin at step 0, alone or as the donor of the others. So every group is stopped first. Then the
    newest complete checkpoint decides; without one, restart.on_state_loss.
    """
    if not turn.goes_on or turn.independent:
        return
    _use_older_checkpoint(turn)
    if _nobody_resumed(turn):
        where = turn.lineage.checkpoint.path if turn.lineage.checkpoint else "checkpoint.dir"
        turn.fail(
            f"{where} has the training at step {turn.lineage.resume_step}, and no group has resumed from it: the run "
            "would have begun anew. Let the script load it before its first step (ftslurm help checkpoints), or name "
            "another checkpoint.dir"
        )
        return
    lineage = turn.lineage
    if lineage.step == 0 or turn.table.count(Phase.SUCCEEDED):
        return
    there = turn.table.names(Trait.JOINED) or turn.table.names(Trait.ADOPTING)
    if lineage.lost is None and not there and not lineage.resuming:
        turn.set_lineage(lost="no group is left that holds the state")
    lost = turn.lineage.lost
    if lost is None:
        return
    for unit in turn.table.in_phase(*RUNS):
        stop(turn, unit, Cause.CANCELLED)
    if not turn.table.count(*LIVE) and not queue.in_doubt(turn):
        _restart_all(turn, f"{lost} of step {turn.lineage.step}")  # the last steps are known once all have ended


def _restart_all(turn: Turn, lost: str) -> None:
    """Restart all groups, of which none has a step, from the newest checkpoint, or end the run if there is none."""
    saved = turn.lineage.checkpoint
    why_not = why_no_restart(saved, turn.config)
    if why_not is not None:
        turn.fail(f"{lost}: {why_not}")
        return
    assert saved is not None
    record = records.FullRestart(reason=lost, step=turn.lineage.step, checkpoint=saved.path, checkpoint_step=saved.step)
    turn.do(record)
    waiting = turn.table.in_phase(Phase.PENDING)
    due = max((u.due for u in waiting), default=turn.now)
    for unit in waiting:  # together: a later group would heal, and its data position would not be the checkpoint's
        turn.change(unit, due=due)
    turn.set_lineage(lost=None, resuming=True, resume_step=saved.step or 0, allowed_by=None, restarted=turn.now)
    turn.set_lineage(history=turn.lineage.history + 1)
    turn.set(released=False, comparisons=Comparisons())


def why_no_restart(saved: Saved | None, config: Config) -> str | None:
    """Return why the groups cannot restart from a checkpoint; None: they can.

    A complete checkpoint of ftslurm can be resumed from. For any other files only the user knows.
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
        f"there is no checkpoint, {never}. Let the script save with ftslurm.checkpoint (ftslurm help checkpoints), as "
        f"the examples do, and set checkpoint.every=STEPS"
    )


def unsaved(turn: Turn, said: messages.Progress) -> str:
    """Return a warning if checkpoints are configured but none is saved; empty: all is well, or it is too early."""
    every, own = turn.config.checkpoint.every, turn.config.restart.on_state_loss == "checkpoint"
    if every == 0 or said.committed < PATIENT * every or turn.lineage.saved or own:
        return ""
    return (
        f"checkpoint.every={every}, and {PATIENT} times as many steps later no checkpoint has been heard of: does the "
        f"script save with ftslurm.checkpoint? (ftslurm help checkpoints; if in a way of its own, say so with "
        f"restart.on_state_loss=checkpoint)"
    )


def restored(turn: Turn, said: messages.Restored, unit: Unit) -> None:
    """Record the checkpoint that a group has loaded; an older one of the run's own checkpoints lowers its floor.

    A checkpoint from elsewhere is the script's choice and does not lower the floor.
    """
    saved = turn.lineage.checkpoint
    if saved is not None and (said.path or "").rpartition("/")[0] == saved.path.rpartition("/")[0]:
        turn.attempt(unit, restored=said.step, floor=min(unit.current.floor, said.step))
    turn.do(records.CheckpointRestored(**unit.of_group, step=said.step, path=said.path))


def _use_older_checkpoint(turn: Turn) -> None:
    """Start the run from an older checkpoint if all groups have loaded one because none could read the newest."""
    if not turn.lineage.resuming:
        return
    best = 0
    for unit in turn.table.all_groups():
        if unit.phase is not Phase.FAILED:
            if unit.phase is not Phase.RUNNING or unit.current.restored is None:
                return
            best = max(best, unit.current.restored)
    if 0 < best < turn.lineage.resume_step:
        turn.set_lineage(resume_step=best, allowed_by=None)


def _nobody_resumed(turn: Turn) -> bool:
    """Return whether all groups request a quorum with a step below that of the run's checkpoint.

    Our Lighthouse refuses them, and they would repeat the request until torchft's time-out.
    """
    step = turn.lineage.resume_step
    if not turn.lineage.resuming or step == 0 or turn.table.count(Phase.FAILED) == turn.table.groups:
        return False
    return all(unit.phase is Phase.FAILED or _asks_below(unit, step) for unit in turn.table.all_groups())


def _asks_below(unit: Unit, step: int) -> bool:
    pulse, begun = unit.pulse, unit.marks.begun
    if unit.phase is not Phase.RUNNING or pulse is None or begun is None or pulse.time <= begun:
        return False
    return pulse.stage == Stage.SEEKING_QUORUM and pulse.step is not None and pulse.step < step
