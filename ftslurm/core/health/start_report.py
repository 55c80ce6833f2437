"""Write what a group waits for between its launch and its first committed step, if that lasts. Pure."""

from __future__ import annotations

from ftslurm.core.groups.progress_lines import every_s
from ftslurm.core.health import first_step
from ftslurm.core.state.model import Phase, Unit
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.units import tasks_of
from ftslurm.protocol import records
from ftslurm.protocol.stages import Stage

TOLD_S = 5.0  # a group is looked at this long after its launch, and again after the same time
TASKS_TOLD = 8  # missing tasks that a record names


def tell(turn: Turn) -> None:
    """Record what each group that is due waits for, unless the journal has it."""
    if not turn.goes_on:
        return
    for unit in turn.attended():
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


def _record(turn: Turn, unit: Unit) -> records.StepStarting:
    current, marks, tasks = unit.current, unit.marks, tasks_of(unit, turn.config)
    absent = tuple(task for task, host in enumerate(current.hosts) if host is None)
    late = absent or tuple(task for task in range(tasks) if task not in current.ready)
    other, since = None, marks.ready
    if unit.phase is Phase.RUNNING:
        stage, late, since = _of_script(unit), (), marks.begun
    elif late:
        stage, since = "launch" if absent else "import", marks.launched
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
        missing=late[:TASKS_TOLD],
        lacks=len(late),
        other=other,
    )


def _of_script(unit: Unit) -> str:
    at = first_step.stage(unit)
    return "script" if at is None else "quorum" if at == Stage.SEEKING_QUORUM else "step"
