"""Write what a group waits for before its first committed step, if that lasts, and that no group commits one. Pure.

Facts only: ftslurm/monitor makes the sentences of them, and adds the last lines of the logs. Nothing is ended: the
first step of a correct script may take any time.
"""

from __future__ import annotations

from collections import Counter

from ftslurm.core.groups.progress_lines import every_s
from ftslurm.core.state.model import Phase, Unit
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.unit_table import Trait
from ftslurm.core.state.units import tasks_of
from ftslurm.protocol import records
from ftslurm.protocol.stages import Stage

TOLD_S = 5.0  # a group is looked at this long after its launch, and again after the same time
NAMED = 8  # missing tasks, or groups, that a record names


def tell(turn: Turn) -> None:
    """Record what each group that is due waits for, unless the journal has it; and whether no step comes."""
    for unit in turn.attended() if turn.goes_on else ():
        since = unit.marks.launched if unit.current.looked is None else unit.current.looked
        starts = unit.phase is Phase.STARTING or (unit.phase is Phase.RUNNING and not turn.independent)
        if unit.group is None or unit.joined or unit.current.adoption is not None or since is None or not starts:
            continue
        if not turn.due(since + max(TOLD_S, every_s(turn.table.groups)), unit.name):
            continue
        record = _record(turn, unit)
        waits = record.stage, record.lacks
        if waits != unit.current.waits:
            turn.do(record)
        turn.attempt(unit, looked=turn.now, waits=waits)
    if not turn.independent:
        _mind_first_step(turn)


def _record(turn: Turn, unit: Unit) -> records.StepStarting:
    current, marks, tasks = unit.current, unit.marks, tasks_of(unit, turn.config)
    absent = tuple(task for task, host in enumerate(current.hosts) if host is None)
    late = absent or tuple(task for task in range(tasks) if task not in current.ready)
    other, since = None, marks.ready
    if unit.phase is Phase.RUNNING:
        stage, late, since = _of_script(unit), (), marks.begun
    elif late:
        stage, since = "launch" if absent else "check" if current.checking else "import", marks.launched
    elif not current.assigned:
        stage = "lighthouse"
    elif current.store is None:
        stage = "store"
    elif turn.state.released:
        stage = "eviction"
    else:
        stage, other = "others", turn.state.waited_for
    return records.StepStarting(
        unit=unit.name,
        group=unit.group_id,
        attempt=unit.attempt,
        stage=stage,
        since=None if since is None else round(since, 3),
        tasks=tasks,
        missing=late[:NAMED],
        lacks=len(late),
        other=other,
    )


def _of_script(unit: Unit) -> str:
    """Return what a running script waits for: the script itself, a quorum, its peers in one, or its own step.

    torchft requests the quorum in a thread: the script may already wait for it in its collectives or its vote.
    """
    pulse, aborted = next((one for one in unit.pulses if one is not None), None), unit.current.aborted > 0
    if pulse is None or pulse.step is None or (pulse.stage == Stage.COMPUTING and not aborted):
        return "script"
    if pulse.stage == Stage.SEEKING_QUORUM or (unit.marks.quorum is None and not aborted):
        return "quorum" if unit.current.seen is None else "peers"
    return "peers" if pulse.stage == Stage.COLLECTIVE else "step"


def _mind_first_step(turn: Turn) -> None:
    """Record `no_first_step` config.first_step_s after all scripts run, and again each time the wait has doubled.

    The wait begins when every group that has a place has begun its script, at the first start and after a full
    restart. It continues while single groups fail and return, and ends with the first committed step.
    """
    table, stepless = turn.table, turn.state.stepless
    begun = table.having_trait(Trait.JOINED) or table.having_trait(Trait.ADOPTING) or table.count(Phase.SUCCEEDED)
    if begun or turn.lineage.lost is not None or not turn.goes_on:
        turn.set(stepless=None)
    elif stepless is None:
        pending = table.count(Phase.PENDING) - len(table.having_trait(Trait.WAITING))
        if table.count(Phase.RUNNING) and not table.count(Phase.STARTING) + pending:
            turn.set(stepless=(turn.now, 0.0))
    elif turn.due(stepless[0] + max(turn.config.first_step_s, 2 * stepless[1])):
        running = [unit for unit in table.in_phase(Phase.RUNNING) if not unit.retired]
        if running:
            _no_step(turn, running, since=stepless[0])


def _no_step(turn: Turn, running: list[Unit], since: float) -> None:
    seconds, stages = round(turn.now - since, 3), [_of_script(unit) for unit in running]
    rows: tuple[records.StuckGroup, ...] = tuple(
        {"group": unit.group_id, "attempt": unit.attempt, "stage": stage}
        for unit, stage in zip(running[:NAMED], stages, strict=False)
    )
    record = records.NoFirstStep(
        seconds=seconds,
        aborted=sum(unit.current.aborted for unit in running),
        least=turn.config.groups.min,
        stages=dict(Counter(stages)),
        groups=rows,
    )
    turn.do(record)
    turn.set(stepless=(since, seconds))
