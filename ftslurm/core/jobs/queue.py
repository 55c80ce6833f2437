"""Fold the reports of Slurm and of pilots about the run's jobs into the state. supply.py acts on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from ftslurm.core.state.actions import CancelJobs, Exclude
from ftslurm.core.state.events import JobEvent, JobLeaving, JobsSeen, RequeueRefused, Submitted
from ftslurm.core.state.model import LIVE, Asking, Evidence, Job, Out, Phase, Unit, replace
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.transitions import stop
from ftslurm.core.state.turn import Turn
from ftslurm.protocol import records
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.job_states import GONE

ORDERED = (Cause.CANCELLED, Cause.PREEMPTED, Cause.TIME_LIMIT)  # the causes if Slurm has ordered the end
CORRECTS_S = 60.0  # Slurm's word on a job corrects the cause of an attempt for this long after its end
BUSY_S = 2.0  # poll interval while a job is between two states; it grows until nothing has changed for long
SLOW = 20  # the poll interval is at least this many times the duration of the last answer
RARE_S = 300.0  # the longest poll interval, however slow slurmctld is
WARNS_EARLY_S = 60.0  # Slurm may send its warning before the time limit this much too early
DOUBT_S = 30.0  # if Slurm does not answer, a job whose step was ended is used again after this long
MOST_EXCLUDED = 100  # most nodes in sbatch --exclude
TOGETHER_S = 30.0  # jobs that are cancelled together end within this time
ALL_CANCELLED = "somebody has cancelled all jobs of the groups"
REFUSED_S = (15.0, 300.0)  # delay before sbatch is tried again after a refusal, which then doubles, and its maximum


def observe(turn: Turn, event: JobEvent) -> None:
    """Fold one answer of Slurm or one message of a pilot into the state."""
    match event:
        case JobsSeen():
            _seen(turn, event)
        case Submitted():
            _submitted(turn, event)
        case JobLeaving(name, cause, why):
            _leaving(turn, name, cause, why)
        case RequeueRefused(name, error):
            why, known = f"it cannot be requeued ({error})", job(turn, name)
            if known is not None:
                turn.do(lost(known, why))
            update(turn, name, dismissed=why)
            turn.do(CancelJobs((name,)))


def job(turn: Turn, name: str | None) -> Job | None:
    """Return the job of this name; None if there is none."""
    return None if name is None else turn.state.job_pool.by_name.get(name)


def put(turn: Turn, jobs: Iterable[Job]) -> None:
    """Add or change these jobs. Copies all jobs: call it once for many."""
    changed = {job.name: job for job in jobs}
    if changed:
        turn.set_job_pool(by_name={**turn.state.job_pool.by_name, **changed})


def update(turn: Turn, name: str, **changes: object) -> None:
    """Change one job, if it is known."""
    known = job(turn, name)
    if known is not None:
        put(turn, [replace(known, **changes)])  # type: ignore[arg-type]


def asking_of(turn: Turn, pool: int) -> Asking:
    """Return which jobs of a pool sbatch is asked for, and how often it has refused."""
    return turn.state.job_pool.asking.get(pool, Asking())


def put_asking(turn: Turn, pool: int, asking: Asking) -> None:
    """Replace what asking_of returns for this pool."""
    turn.set_job_pool(asking=turn.state.job_pool.asking.set(pool, asking))


def bad(state: RunState) -> tuple[str, ...]:
    """Return the nodes that new jobs must not get."""
    nodes = state.nodes.those(lambda node: node.out not in (None, Out.GONE) or node.drained)
    return tuple(sorted(nodes))[:MOST_EXCLUDED]


def poll_by(turn: Turn, time: float) -> None:
    """Schedule the next poll of Slurm no later than `time`."""
    turn.set_job_pool(next_poll=min(turn.state.job_pool.next_poll, time))


def living(turn: Turn, name: str) -> Iterator[Unit]:
    """Return the units that have a step in this job."""
    return (unit for unit in turn.table.of_job(name) if unit.phase in LIVE)


def lost(job: Job, reason: str, state: str | None = None) -> records.AllocationLost:
    """Return the journal record of a job that no longer provides nodes.

    Args:
        job: the job as it was before.
        reason: why.
        state: the job's Slurm state now; None: the controller cancels it.
    """
    return records.AllocationLost(allocation=job.name, nodes=job.nodes, reason=reason, state=state)


def leaves(one: Job, cause: Cause, why: str) -> records.AllocationLeaving:
    """Return the journal record of a job that is about to end."""
    return records.AllocationLeaving(allocation=one.name, cause=cause.value, reason=why)


def doubt(turn: Turn, unit: Unit) -> None:
    """Poll Slurm at once whether the job of a unit still runs, because its step was ended from outside."""
    known = job(turn, unit.place.allocation)
    if known is not None and known.row.runs:
        update(turn, known.name, doubted=turn.now)
        poll_by(turn, turn.now)


def all_cancelled(turn: Turn) -> bool:
    """Return whether a person has cancelled all jobs of the groups, two or more, at the same time.

    What was submitted since then instead of the first of them does not count.
    """
    mine = [one for one in turn.jobs if one.pool >= 0 and one.dismissed is None]
    just = [one for one in mine if one.row.cause is Cause.CANCELLED and turn.now <= one.since + TOGETHER_S]
    first = min((one.since for one in just), default=0.0)
    return len(just) > 1 and not any((one.alive or one.row.between) and one.born < first for one in mine)


def in_doubt(turn: Turn) -> bool:
    """Return whether Slurm may soon say that jobs were cancelled in which steps have just been ended from outside."""
    times = (one.since if one.row.between else one.doubted for one in turn.jobs)
    return any(time is not None and not turn.due(time + TOGETHER_S) for time in times)


def _submitted(turn: Turn, event: Submitted) -> None:
    old = asking_of(turn, event.pool)
    if event.error:
        wait = min(REFUSED_S[0] * 2.0 ** min(old.refusals, 20), REFUSED_S[1])
        refused = Asking(refusals=old.refusals + 1, again=turn.now + wait, error=event.error)
        put_asking(turn, event.pool, refused)
        if event.error != old.error:
            turn.do(records.AllocationRefused(pool=event.pool, reason=event.error, again_s=wait))
        return
    known = turn.state.job_pool.by_name
    put(turn, [Job(name, event.pool, born=turn.now, since=turn.now) for name in event.names if name not in known])
    put_asking(turn, event.pool, Asking())
    if old.count and (now := bad(turn.state)) != old.exclude:  # meanwhile a node was found bad, or is so no more
        turn.do(*(Exclude(name, now) for name in event.names))
    poll_by(turn, turn.now + BUSY_S)


def _leaving(turn: Turn, name: str, cause: Cause, why: str) -> None:
    known = job(turn, name)
    if known is None or known.leaving is not None or not known.alive:
        return
    early = known.ends is None or turn.now < known.ends - turn.config.cluster.signal_s - WARNS_EARLY_S
    if cause is Cause.TIME_LIMIT and early:  # preemption sets a new, near end, with the same warning
        cause = Cause.PREEMPTED
    if cause is Cause.TIME_LIMIT and known.ends is not None:
        return  # leaving.vacate decides when, also for the last group that holds the training's state
    update(turn, name, leaving=cause)
    poll_by(turn, turn.now + BUSY_S)
    turn.do(leaves(known, cause, why))


def _seen(turn: Turn, event: JobsSeen) -> None:
    now = turn.now
    shown = {one.name: one for one in event.jobs}
    jobs = dict(turn.state.job_pool.by_name)
    for name, new in shown.items():
        if name not in jobs:
            jobs[name] = Job(name, new.pool, "", born=now, since=now)
    for old in list(jobs.values()):
        seen = shown.get(old.name)
        if seen is None and event.whole and old.born < event.asked:
            seen = replace(old, state=GONE, nodes=(), reason="")
        if seen is None:
            continue
        # Once: the job stays in squeue, and a user may have taken the node back since.
        if seen.nodes and seen.row.ends and old.state not in ("", seen.state):
            _cannot_write(turn, seen)
        jobs[old.name] = _changed(turn, old, seen)
        if _has_lost_its_nodes(old, seen):
            _bring_down(turn, old, seen)
    if not event.whole:
        wait = max(turn.config.poll_s, 2 * event.took_s)
        turn.set_job_pool(by_name=jobs, next_poll=now + min(wait, RARE_S))
        return
    jobs = {name: one for name, one in jobs.items() if one.state != GONE}
    soon = min((_settling_s(one, now) for one in jobs.values() if _unsettled(one)), default=inf)
    wait = max(min(soon, turn.config.poll_s), SLOW * event.took_s)
    if not turn.state.job_pool.polled:  # what an earlier controller has submitted is among them
        for number, asking in turn.state.job_pool.asking.items():
            put_asking(turn, number, replace(asking, count=0))
    turn.set_job_pool(polled=True, by_name=jobs, next_poll=now + min(wait, RARE_S))
    slurm_answered(turn)


def slurm_answered(turn: Turn) -> None:
    """Record that slurmctld answers: what a probe does not reach is judged from here on (health/node_health.py)."""
    for node, look in turn.nodes.looks.items():
        if look.slurm is None:
            turn.node(node, look=replace(look, slurm=turn.now))


def _cannot_write(turn: Turn, one: Job) -> None:
    """Leave out the first node of a job that has ended since it could not make its output there."""
    node, why = one.nodes[0], f"it cannot write into the run directory (run.root), so Slurm job {one.name} has failed"
    if not turn.nodes.of(node).out:
        turn.node(node, out=Out.UNFIT, since=turn.now, why=why)
        turn.do(records.NodeCheckFailed(node=node, reason=why, seconds=None, log=None))


def _unsettled(one: Job) -> bool:
    """Return whether a job is between two states, or waits, so that Slurm is polled more often for a while."""
    between = one.row.between or not one.nodes
    waits = between or one.leaving is not None or one.tried > -inf or one.doubted is not None
    return waits and (one.alive or between)


def _settling_s(one: Job, now: float) -> float:
    """Return the poll interval for such a job: the longer nothing has changed, the longer."""
    return max(BUSY_S, (now - max(one.since, one.tried, one.doubted or 0.0)) / 2)


def _changed(turn: Turn, old: Job, new: Job) -> Job:
    """Return the known job `old` updated to what squeue shows (`new`), and journal the changes."""
    runs = new.row.runs and bool(new.nodes)
    told = old.dismissed is None and old.pool >= 0
    job = replace(old, state=new.state, id=new.id or old.id, reason=new.reason, ends=new.ends or old.ends, doubted=None)
    if old.state != new.state:
        job = replace(job, since=turn.now, tried=-inf)
    if runs and not _is_same_run(old, new):
        job = _granted(turn, job, old, new)
    elif runs and job.ends != old.ends and told:  # the end was unknown before, or was changed
        turn.do(records.AllocationEnds(allocation=old.name, ends=job.ends))
    if runs and job.leaving is None and new.preempted:
        job = replace(job, leaving=Cause.PREEMPTED)
        turn.do(leaves(old, Cause.PREEMPTED, "Slurm preempts it"))
    if old.row.runs and old.nodes and new.row.between:
        job = replace(job, doubted=turn.now)
    elif _has_lost_its_nodes(old, new):
        preempted = job.leaving is Cause.PREEMPTED
        job = replace(job, nodes=(), began=None, ends=None, leaving=None, left=None, preempted=preempted)
        if told:
            guessed = "" if old.leaving is None or new.row.cause else f" ({old.leaving.value})"
            turn.do(lost(old, f"{_how(new)}{guessed}", new.state))
    if new.row.waits and new.reason not in ("", old.reason) and told:
        turn.do(records.AllocationPending(allocation=new.name, reason=new.reason, pool=old.pool))
    return job


def _is_same_run(old: Job, new: Job) -> bool:
    """Return whether a job has the same nodes and was not requeued and restarted in between."""
    again = old.began is not None and new.began is not None and new.began > old.began + 5.0
    return old.nodes == new.nodes and not again


def _has_lost_its_nodes(old: Job, new: Job) -> bool:
    """Return whether a job had nodes and has none now."""
    return bool(old.nodes) and not (new.row.runs and new.nodes) and not new.row.between


def _granted(turn: Turn, job: Job, old: Job, new: Job) -> Job:
    """Return a job that has received nodes, for the first time or again, and journal it."""
    if old.dismissed is None and old.pool >= 0:
        granted = records.AllocationGranted(allocation=new.name, nodes=new.nodes, pool=old.pool, ends=new.ends)
        turn.do(granted)
    began = new.began or turn.now
    return replace(job, nodes=new.nodes, began=began, ends=new.ends, left=None, leaving=None, preempted=False)


def _bring_down(turn: Turn, old: Job, new: Job) -> None:
    """Stop the units in a job that has ended, without waiting for their srun, which may hang.

    Where a step has just ended by itself, correct the cause that was decided without knowing this.
    """
    how = _how(new)
    cause = new.row.cause or old.leaving or (Cause.PREEMPTED if new.row.waits else Cause.UNKNOWN)
    node = old.nodes[0] if cause is Cause.NODE_LOST and len(old.nodes) == 1 else None
    sign = Evidence(None, node, error=f"job {old.name}: {how}", cause=cause, stuck=True)
    ordered = cause in ORDERED
    for unit in turn.table.of_job(old.name):
        current = unit.current
        if unit.phase is Phase.STOPPING:
            intent = cause if ordered and current.intent in (None, *ORDERED) else current.intent
            turn.attempt(unit, evidence=(*current.evidence, sign), intent=intent)
            turn.change(unit, due=min(unit.due, turn.now))
        elif unit.phase in LIVE:
            stop(turn, unit, cause, sign)
        elif unit.group is not None and ordered and old.dismissed is None:
            end = unit.exits[-1]
            known = not end.cause.row.with_job or end.cause in (cause, Cause.NODE_LOST)
            if not known and turn.now <= end.time + CORRECTS_S:
                turn.change(unit, exits=(*unit.exits[:-1], replace(end, cause=cause)))
                turn.do(records.CauseCorrected(**unit.of_group, was=end.cause.value, cause=cause.value, reason=how))


def _how(new: Job) -> str:
    if new.row.waits:
        return "Slurm has requeued it"
    return "Slurm knows it no more" if new.state == GONE else f"Slurm job {new.state}"
