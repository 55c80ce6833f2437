"""Write into the journal what groups report, and what they wait for before their first step. Pure.

A group reports its progress once a second. Up to eight groups every report is journaled; of more groups about eight
lines a second in total, or a journal of 64 groups would grow by 230,000 lines an hour, which every successor of the
controller has to read. An omitted report is added to the group's next line; nothing is lost when its attempt ends.

What a group waits for before its first committed step is written if that lasts, and that no group commits one. Facts
only: ftslurm/monitor makes the sentences of them. Nothing is ended: the first step
of a correct script may take any time.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ftslurm.core.groups import ranks
from ftslurm.core.state.model import LIVE, Marks, Phase, Trait, Unit, replace
from ftslurm.core.state.transitions import run
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.units import tasks_of
from ftslurm.protocol import records
from ftslurm.protocol.messages import Healed, Reads
from ftslurm.protocol.records import Progress
from ftslurm.protocol.stages import Stage

SILENT = (  # no task of a step has sent its first message
    "nothing arrives on its standard output (a wrapper in job.python must pass it on at once: conda run "
    "--no-capture-output)"
)
SLOW_S = 5.0  # a shorter fetch of the state costs little by any network
MOST_WARNINGS = 20  # different ones, per run
LINES_PER_S = 8  # of all groups together; each reports at most once a second


def every_s(groups: int) -> float:
    """Return the longest time between two lines of one group that reports, in seconds."""
    return max(1.0, groups / LINES_PER_S)


def reported(turn: Turn, unit: Unit, report: Progress) -> Unit:
    """Journal the line of a group's report if one is due, else keep the report, with the longer gap, for the next."""
    if unit.current.untold is not None:
        gaps = (unit.current.untold[1].gap_s, report.gap_s)
        report = replace(report, gap_s=max((gap for gap in gaps if gap is not None), default=None))
    unit = turn.attempt(unit, untold=(turn.now, report))
    return told(turn, unit) if _is_due(turn, unit) else unit


def line(unit: Unit, now: float) -> Progress | None:
    """Return the line of all that a group has reported since its last line; None: nothing."""
    if unit.current.untold is None:
        return None
    time, report = unit.current.untold
    return report if time == now else replace(report, at=time)


def told(turn: Turn, unit: Unit) -> Unit:
    """Journal the line of all that a group has reported since its last line."""
    report = line(unit, turn.now)
    if report is None:
        return unit
    turn.do(report)
    return turn.attempt(unit, untold=None, last_told=turn.now)


def tell(turn: Turn) -> None:
    """Journal the due lines of groups that report nothing new because they stand still."""
    for unit in turn.attended():
        if unit.current.untold is not None and _is_due(turn, unit):
            told(turn, unit)


def _is_due(turn: Turn, unit: Unit) -> bool:
    """Return whether the group's time slot has come since its last line. The slots of groups are spread evenly."""
    groups = turn.table.groups
    if groups <= LINES_PER_S or unit.current.last_told is None or unit.group is None:
        return True
    shift, every = unit.group / LINES_PER_S, every_s(groups)
    return turn.due(((unit.current.last_told - shift) // every + 1) * every + shift, unit.name)


def warn(turn: Turn, group: int | None, text: str) -> None:
    """Warn the user, once for each text."""
    if text and text not in turn.state.warnings and len(turn.state.warnings) < MOST_WARNINGS:
        turn.set(warnings=turn.state.warnings | {text})  # every group and every attempt reports the same
        turn.do(records.Warned(group=group, text=text))


def reads(turn: Turn, said: Reads, unit: Unit) -> None:
    """Warn if a group takes its batches from other data than another one."""
    name = said.text.partition(":")[0]
    others = sorted(text for text in turn.state.data if text.partition(":")[0] == name and text != said.text)
    turn.set(data=turn.state.data | {said.text})
    if others:
        why = "so samples are missing or come twice: give all groups one dataset, batch size and seed"
        warn(turn, unit.group, f"groups read different data ({others[0]}; {said.text}), {why}")


def healed(turn: Turn, said: Healed, unit: Unit) -> None:
    """Record that a group has the state of a live one; warn if that took long, and a network stands by."""
    of_state = {name: getattr(said, name) for name in ("step", "size", "seconds", "donor", "interface")}
    turn.do(records.GroupHealed(**unit.of_group, **of_state))
    if said.seconds > SLOW_S and said.size * 8e-9 / said.seconds < said.gbit / 10:
        cure = "ftslurm doctor --nodes LIST compares the networks of nodes"
        if said.fastest != said.interface:
            cure = f"set cluster.interface={said.fastest} if all nodes reach each other by it ({cure})"
        slow = f"less than a tenth of the {said.gbit:g} Gb/s of {said.fastest}"
        warn(turn, unit.group, f"groups heal by {said.interface or 'an unknown network'} at {slow}: {cure}")


# --- the parts of a group's recovery ----------------------------------------------------------------------------------


NAMES = ("earlier", "detect", "end", "wait", "start", "import", "assign", "join", "commit")


def since(moment: float | None, now: float) -> float | None:
    """Return the seconds since `moment`, rounded for the journal; None: the moment is not known."""
    return None if moment is None else round(now - moment, 3)


def phases(marks: Marks) -> dict[str, float | None]:
    """Return the durations of one attempt by NAMES; None: it did not reach that part, or nothing can be measured.

    earlier: failed attempts before this one, from the first failure on (None: this is the first); detect: fault to
    notice (known for drills, silence and hangs); end: notice to the last process of the failed attempt gone;
    wait: from then to the launch (backoff, a free node); start: to every task's first message; import: to
    all of them ready; assign: to the start of the script (ranks, store); join: to the first quorum; commit: to the
    first committed step. A warm standby has started and imported before it was needed: 0.
    """
    times = (
        marks.died,
        marks.noticed,
        marks.ended,
        marks.launched,
        marks.hello,
        marks.ready,
        marks.begun,
        marks.quorum,
    )
    tries = None if marks.away is None or marks.died is None else round(marks.died - marks.away, 3)
    out = {"earlier": tries or None}
    for name, start, end in zip(NAMES[1:], times, (*times[1:], marks.joined), strict=True):
        out[name] = None if start is None or end is None else round(max(0.0, end - start), 3)
    out["detect"] = out["detect"] or None
    return out


def recovery(marks: Marks, now: float) -> dict[str, Any]:
    """Return the fields seconds, recovery_s and phases of the record of a group that works at `now`.

    recovery_s is how long it was away; None: this is its first start.
    """
    return {"seconds": since(marks.launched, now), "recovery_s": since(marks.away, now), "phases": phases(marks)}


# --- before the first step --------------------------------------------------------------------------------------------


TOLD_S = 5.0  # a group is looked at this long after its launch, and again after the same time
NAMED = 8  # missing tasks, or groups, that a record names


def tell_waiting(turn: Turn) -> None:
    """Record what each group that is due waits for, unless the journal has it; and whether no step comes."""
    for unit in turn.attended() if turn.goes_on else ():
        since = unit.marks.launched if unit.current.looked is None else unit.current.looked
        starts = unit.phase is Phase.STARTING or (unit.phase is Phase.RUNNING and not turn.independent)
        if unit.group is None or unit.joined or unit.adopting or since is None or not starts:
            continue
        if not turn.due(since + max(TOLD_S, every_s(turn.table.groups)), unit.name):
            continue
        record = _waiting(turn, unit)
        waits = record.stage, record.lacks
        if waits != unit.current.waits:
            turn.do(record)
        turn.attempt(unit, looked=turn.now, waits=waits)
    if not turn.independent:
        _mind_first_step(turn)


def _waiting(turn: Turn, unit: Unit) -> records.StepStarting:
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
    else:
        stage, other = "others", awaited(turn)
    return records.StepStarting(
        **unit.names,
        stage=stage,
        since=None if since is None else round(since, 3),
        tasks=tasks,
        missing=late[:NAMED],
        lacks=len(late),
        other=other,
    )


def awaited(turn: Turn) -> int | None:
    """Return a group that others wait for; None: each has its store, has failed since the start, or has no node."""
    return next((unit.group for unit in turn.table.all_groups() if not _is_there(turn, unit)), None)


def _is_there(turn: Turn, unit: Unit) -> bool:
    restarted = turn.lineage.restarted
    failed = bool(unit.exits) and (restarted is None or unit.exits[-1].time > restarted)
    there = unit.phase in LIVE and unit.current.store is not None
    return there or failed or unit.phase is Phase.FAILED or unit.waits_for is not None


def _of_script(unit: Unit) -> str:
    """Return what a running script waits for: the script itself, a quorum, its peers in one, or its own step.

    torchft requests the quorum in a thread: the script may already wait for it in its collectives or its vote.
    """
    pulse, aborted = next((one for one in unit.pulses if one is not None), None), unit.current.aborted > 0
    if pulse is None or pulse.step is None or (pulse.stage == Stage.COMPUTING and not aborted):
        return "script"
    if pulse.stage == Stage.SEEKING_QUORUM or (unit.marks.quorum is None and not aborted):
        return "quorum"
    return "peers" if pulse.stage == Stage.COLLECTIVE else "step"


def _mind_first_step(turn: Turn) -> None:
    """Record `no_first_step` config.first_step_s after all scripts run, and again each time the wait has doubled.

    The wait begins when every group that has a place has begun its script, at the first start and after a full
    restart. It continues while single groups fail and return, and ends with the first committed step.
    """
    table, stepless = turn.table, turn.state.stepless
    if table.names(Trait.ADOPTING):
        return  # nobody knows yet
    begun = table.names(Trait.JOINED) or table.count(Phase.SUCCEEDED)
    if begun or turn.lineage.lost is not None or not turn.goes_on:
        turn.set(stepless=None)
    elif stepless is None:
        pending = table.count(Phase.PENDING) - table.count(Trait.WAITING)
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


def step_up(turn: Turn, unit: Unit) -> None:
    """Note that all tasks are ready, once their nodes are known: a worker may be heard before its guard."""
    if unit.marks.ready is not None or len(unit.current.ready) < tasks_of(unit, turn.config):
        return
    if None in unit.current.hosts or unit.is_lighthouse:
        return
    unit = turn.mark(unit, ready=turn.now)
    if unit.is_standby and unit.phase is Phase.STARTING:
        unit = run(turn, unit)
    hosts = tuple(map(str, unit.current.hosts))
    usual = hosts == ranks.expected(unit.place, turn.config.groups.workers)  # else Slurm has another order
    step_ready(turn, unit, hosts=() if usual else hosts)


def step_ready(turn: Turn, unit: Unit, url: str | None = None, hosts: tuple[str, ...] = ()) -> None:
    turn.do(
        records.StepReady(
            **unit.names,
            seconds=since(unit.marks.launched, turn.now),
            url=url,
            slurm_step=unit.current.slurm_step,
            hosts=hosts,
        )
    )
