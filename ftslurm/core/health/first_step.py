"""Warn when no step is committed although all scripts run, and report what each group does. Pure.

It only warns: the first step of a correct script may take any time. ftslurm/run/first_step_report.py adds the last
log lines of the ranks when it writes the record.
"""

from __future__ import annotations

from collections.abc import Iterable

from ftslurm.config.schema import Config
from ftslurm.core.state.model import Phase, Unit
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.unit_table import Trait
from ftslurm.protocol import records
from ftslurm.protocol.stages import Stage

TOLD_OF = 8  # groups that a record describes


def watch(turn: Turn) -> None:
    """Record `no_first_step` config.first_step_s after all scripts run, and again each time the wait has doubled.

    The wait begins when every group that has a place has begun its script, at the first start and after a full
    restart. It continues while single groups fail and return, and ends with the first committed step.
    """
    if turn.independent:
        return
    table, stepless = turn.table, turn.state.stepless
    begun = table.having_trait(Trait.JOINED) or table.having_trait(Trait.ADOPTING) or table.count(Phase.SUCCEEDED)
    if begun or turn.lineage.lost is not None or not turn.goes_on:
        turn.set(stepless=None)
    elif stepless is None:
        pending = table.count(Phase.PENDING) - len(table.having_trait(Trait.WAITING))
        if table.count(Phase.RUNNING) and not table.count(Phase.STARTING) + pending:
            turn.set(stepless=(turn.now, 0.0))
    elif turn.due(stepless[0] + max(turn.config.first_step_s, 2 * stepless[1])):
        _tell(turn, since=stepless[0])


def _tell(turn: Turn, since: float) -> None:
    """Record what each group does that has run without a step since then."""
    running = [unit for unit in turn.table.in_phase(Phase.RUNNING) if not unit.retired]
    if not running:
        return
    seconds = round(turn.now - since, 3)
    stuck: tuple[records.StuckGroup, ...] = tuple(
        {"group": u.group_id, "attempt": u.attempt, "stage": stage(u)} for u in running[:TOLD_OF]
    )
    turn.do(records.NoFirstStep(seconds=seconds, reason=reason(running, turn.config), groups=stuck))
    turn.set(stepless=(since, seconds))


def stage(unit: Unit) -> int | None:
    """Return the stage of the group's first worker that reports one; None: it has not requested a quorum.

    torchft requests the quorum in a thread: the script may already wait for it in its collectives or its vote.
    """
    pulse = next((one for one in unit.pulses if one is not None), None)
    if pulse is None or pulse.step is None or (pulse.stage == Stage.COMPUTING and unit.current.aborted == 0):
        return None
    return pulse.stage if unit.marks.quorum is not None or unit.current.aborted > 0 else Stage.SEEKING_QUORUM


def reason(running: list[Unit], config: Config) -> str:
    """Return the likeliest reason for no committed step, with what to check or change; likelier ones come first."""
    stages = {u.name: stage(u) for u in running}
    early = [u for u in running if stages[u.name] is None]
    asking = [u for u in running if stages[u.name] == Stage.SEEKING_QUORUM]
    if aborted := sum(u.current.aborted for u in running):
        return (
            f"{aborted} steps were tried and none was committed: an error inside the step (see the ranks' lines), or "
            "the script's min_replica_size is above the number of groups"
        )
    if len(running) < config.groups.min:
        return f"only {len(running)} groups run, and no quorum comes with fewer than groups.min={config.groups.min}"
    if len(early) == len(running):
        return (
            "no script has asked for a quorum: it still loads its model or data or computes its first step (then raise "
            "job.longest_step_s), it has caught an error, or it uses no Manager of torchft (ftslurm help "
            "fault-tolerant)"
        )
    if asking and early:
        return f"{_named(asking)} asked for a quorum and may wait for {_named(early)}, which has not"
    if len(asking) == len(running) and all(u.current.seen is None for u in running):
        return (
            "all ask for a quorum and none is given: see lighthouse.log; groups.min, or the version of torchft, which "
            "may be one that ftslurm was not tried with (ftslurm help fault-tolerant)"
        )
    if any(stages[u.name] in (Stage.SEEKING_QUORUM, Stage.COLLECTIVE) for u in running):
        return (
            "they have a quorum and wait for one another: connections between the nodes may be blocked, or take the "
            "wrong network (cluster.interface), or a rank has caught an error"
        )
    return "they have a quorum and compute: if the first step takes this long, raise job.longest_step_s"


def _named(units: Iterable[Unit]) -> str:
    numbers = [str(u.group) for u in units]
    more = f" and {len(numbers) - TOLD_OF} more" if len(numbers) > TOLD_OF else ""
    return f"group{'' if len(numbers) == 1 else 's'} {', '.join(numbers[:TOLD_OF])}{more}"
