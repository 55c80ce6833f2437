"""Decide how many Slurm jobs the run needs beside the controller's, and which ones to cancel or requeue.

Level-triggered: each decision compares the wanted number of jobs with the present one. Pending jobs count as present,
and so do jobs that Slurm has requeued: their requeue and a new submission never make two.

    array mode   a pilot for each group that has not finished, and for each standby (per pool, see cluster.ranges)
    steps mode   a satellite for each group without a place in the controller's own allocation, and satellites for the
                 spare nodes (cluster.spare_nodes) that are missing because nodes were lost (cluster.requeue)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import TypeAlias

from ftslurm.config.schema import Config
from ftslurm.core.jobs import queue
from ftslurm.core.jobs.queue import asking_of, living
from ftslurm.core.state.actions import AskJobs, CancelJobs, Exclude, RequestJobs, RequeueJob, StartNow
from ftslurm.core.state.events import NodesLeft
from ftslurm.core.state.model import JOBS, LIVE, OVER, Allocation, Job, Out, Phase, Trait, Unit, replace
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.units import pool_of
from ftslurm.protocol import records
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.job_states import HELD_BACK

LEAVES_S = 5.0  # after its group has left, Slurm may end or requeue a pilot for this long; then we requeue it
SETTLED_S = 2.0  # Slurm 22.05 fails a requeued job for good if it is started within about 0.2 s
AGAIN_S = 20.0  # a command that had no effect is repeated after this long
BETWEEN_S = 60.0  # an ending job may return to the queue for this long: its processes get 30 s (KillWait)
ENDED_S = 10.0  # and one that has ended
SAVES_S = 30.0  # time reserved for saving a checkpoint
SPARE_S = 5.0  # margin between the end of a group's grace time and the end of its job
HANDOVER_S = 900.0  # the next job of a group is requested so long before the end of its job, at most half of its time
STARTS_S = 3.0  # a controller's job that has just begun can lead after this long
HOPELESS = 4  # consecutive refusals of sbatch after which a group without a place will get none


def uses_jobs(config: Config) -> bool:
    """Return whether the run may have jobs beside the controller's."""
    return config.job_per_group or (config.one_job and config.cluster.requeue)


def may_come(turn: Turn, unit: Unit) -> bool:
    """Return whether a group without a place may still get one from a job."""
    state, config = turn.state, turn.config
    if not uses_jobs(config):
        return False
    pool = pool_of(unit.group, config)
    if config.internal.pilots is not None:  # no job is ever submitted: only one without a group can serve
        jobs = state.job_pool.jobs
        free = (one for one in jobs if one.alive or one.row.between or not turn.due(one.since + ENDED_S))
        return not state.job_pool.polled or not jobs or any(not any(living(turn, one.name)) for one in free)
    if any(one.alive and one.pool == pool for one in state.job_pool.jobs):
        return True
    return asking_of(turn, pool).refusals < HOPELESS


def handover_at(one: Job, config: Config) -> float | None:
    """Return when to request the successor of a running job, to which its group may move; None: no time limit."""
    if one.ends is None or one.began is None:
        return None
    whole, signal_s = one.ends - one.began, config.cluster.signal_s
    return one.ends - max(min(HANDOVER_S, whole / 2), min(2 * signal_s, whole * 3 / 4))


def lasts(turn: Turn, one: Job) -> bool:
    """Return whether a job provides nodes, or will, for longer than its replacement takes."""
    state, config = turn.state, turn.config
    if one.dismissed is not None:
        return False
    bad = state.nodes.unusable if any(living(turn, one.name)) else state.nodes.unusable | given_back(turn)
    if not bad.isdisjoint(one.nodes):
        return False
    if one.row.between and not turn.due(one.since + BETWEEN_S, JOBS):
        return True  # somebody may have requeued it, or holds it
    if not one.alive:
        return False
    if one.leaving is not None:
        return _requeues(one, config)
    limit = handover_at(one, config)
    return limit is None or not may_ask(config) or not turn.due(limit, JOBS)


def lasting(turn: Turn, pool: int) -> tuple[Allocation, ...]:
    """Return where steps of a pool may be started for longer than the replacement of a job takes."""
    known = turn.state.job_pool.by_name
    return tuple(one for one in turn.state.allocations(pool) if one.own or lasts(turn, known[one.name]))


def given_back(turn: Turn) -> frozenset[str]:
    """Return the nodes that Slurm drains, if a group that has failed there gets another job."""
    return turn.nodes.those(lambda node: node.shunned) if may_ask(turn.config) else frozenset()


def _requeues(one: Job, config: Config) -> bool:
    """Return whether a job that is about to end is requeued, by Slurm or by us."""
    return config.cluster.requeue and (one.leaving is not Cause.TIME_LIMIT or not may_ask(config))


def may_ask(config: Config) -> bool:
    """Return whether jobs may be submitted; the tasks of an array submitted by hand can only be requeued."""
    return uses_jobs(config) and config.internal.pilots is None


def wanted(turn: Turn, pool: int) -> int:
    """Return how many jobs a pool needs."""
    if pool == records.CONTROLLER_POOL:
        return 1
    state, config = turn.state, turn.config
    groups = _open_groups(turn, pool)
    if config.job_per_group:
        standbys = sum(u.phase is not Phase.FAILED for u in state.standbys) if pool == 0 else 0
        return groups + (standbys if groups else 0)
    there = (one.name for one in state.job_pool.by_name.values() if one.alive)
    names = {unit.name for job in there for unit in state.table.of_job(job)}
    units = state.table.named({*names, *state.table.names(Trait.WAITING)})
    away = sum(_is_open(unit) and pool_of(unit.group, config) == pool for unit in units)
    away += _stuck(turn) if pool == 0 else 0
    return max(away, _instead(turn, groups) if pool == 0 else 0)


def _open_groups(turn: Turn, pool: int) -> int:
    """Return the number of groups of a pool that have not finished, failed or been retired."""
    return sum(_is_open(unit) and pool_of(unit.group, turn.config) == pool for unit in turn.table.all_groups())


def _is_open(unit: Unit) -> bool:
    return unit.group is not None and unit.phase not in OVER and not unit.retired


def _stuck(turn: Turn) -> int:
    """Return how many groups on drained nodes of the controller's allocation find no other place in it."""
    state, groups, drained = turn.state, turn.config.groups, turn.nodes.drained
    near = turn.table.near(*drained)
    stay = sum(u.phase in LIVE and _is_open(u) and u.place.allocation is None for u in near)
    if stay == 0:
        return 0
    sound = [node for node in state.allocation.nodes if node not in state.nodes.unusable]
    own = [unit.place for unit in state.table.in_phase(*LIVE) if unit.place.allocation is None]
    taken = sum(drained.isdisjoint(place.nodes) for place in own)
    shares = len(sound) // groups.nodes * groups.per_node
    return max(0, stay - max(0, shares - taken))


def _instead(turn: Turn, groups: int) -> int:
    """Return how many satellites replace the nodes that are missing for the groups and cluster.spare_nodes."""
    state, config = turn.state, turn.config
    if config.cluster.spare_nodes == 0:
        return 0
    sound = sum(state.nodes.of(name).usable for name in state.allocation.nodes)
    shares = -(-groups // config.groups.per_node)
    missing = min(state.job_pool.had, config.groups.nodes * shares + config.cluster.spare_nodes) - sound
    return max(0, -(-missing // config.groups.nodes))


def nodes_left(turn: Turn, event: NodesLeft) -> None:
    """Apply Slurm's list of the nodes that the controller's job still has.

    Slurm never returns a node that it has found down to the same job. Another job may get it when it is well, so
    pending jobs no longer exclude it.
    """
    own = turn.state.allocation
    if own.nodes == event.nodes:
        return
    gone = [node for node in own.nodes if node not in event.nodes]
    why = "Slurm has taken it out of the job"
    turn.do(*(records.NodeExcluded(node=node, reason=why) for node in gone if not turn.nodes.of(node).out))
    turn.set(allocation=replace(own, nodes=tuple(node for node in own.nodes if node not in gone)))
    turn.node(*(set(gone) - turn.nodes.out(Out.UNFIT)), out=Out.GONE, since=turn.now)
    if gone:
        told_to_avoid(turn)


def told_to_avoid(turn: Turn) -> None:
    """Keep the waiting jobs off the nodes that no job must get; these have changed."""
    for one in turn.jobs if may_ask(turn.config) else ():
        if one.alive and one.row.waits:
            turn.do(Exclude(one.name, queue.bad(turn.state)))


def _recover(turn: Turn) -> None:
    """Restore nodes that Slurm has removed from the controller's job and given to another job of this run."""
    gone = turn.nodes.out(Out.GONE)
    for one in turn.jobs if gone else ():
        for node in one.nodes if one.usable else ():
            if node in gone:
                turn.take_back(node, f"Slurm has given it to the run again, in job {one.name}")


def supply(turn: Turn) -> None:
    """Submit missing jobs, cancel unneeded ones, and poll Slurm about all."""
    ended = not turn.goes_on and turn.state.job_pool.polled  # before Slurm's answer no step in another job is adopted
    if ended or not turn.state.allocation.name or not uses_jobs(turn.config):
        return
    if turn.state.job_pool.polled and turn.attends_jobs():
        # Else the next leader would not know why a step ends, nor of one that Slurm is creating.
        if turn.lighthouse_serves and not turn.table.count(Phase.STARTING, Phase.STOPPING):
            turn.set(hands_over=hand_over_due(turn))
        array = turn.config.job_per_group and turn.config.cluster.controller == "job" and may_ask(turn.config)
        for pool in range(records.CONTROLLER_POOL if array else 0, len(turn.config.cluster.ranges) + 1):
            _balance(turn, pool)
        _requeue(turn)
    known = turn.state.job_pool
    busy = turn.config.job_per_group or any(one.alive for one in turn.jobs) or not known.polled
    again = known.next_poll
    doubts = [look.asked for look in turn.nodes.looks.values() if look.slurm is None]
    if doubts:  # no node is judged until Slurm answers
        is_new = max(doubts) > known.asked
        again = min(again, known.asked + (0.0 if is_new else queue.BUSY_S))
    if busy and turn.due(again):
        turn.do(AskJobs(turn.now))
        turn.set_job_pool(asked=turn.now, next_poll=turn.now + queue.RARE_S)  # until the answer comes


def hand_over_due(turn: Turn) -> str | None:
    """Return why another job of the run is to lead; None: this one leads on.

    The lead goes to the controller's next job, and before a job of a group ends to any other: no job ends while its
    controller has sruns in other jobs.
    """
    mine = queue.job(turn, turn.state.allocation.name)
    if mine is None:
        return None
    others = _others(turn)
    own, ends = mine.pool == records.CONTROLLER_POOL, mine.leaving is not None or not lasts(turn, mine)
    home = any(one.pool == records.CONTROLLER_POOL and _can_lead(turn, one) for one in others)
    if ends and (home or (others and not own)):
        return "its job is about to end"
    return "the controller's own job leads again" if home and not own else None


def _others(turn: Turn) -> list[Job]:
    """Return the jobs, but for that of this controller, in which another one may lead for longer."""
    own = turn.state.allocation.name
    return [one for one in turn.jobs if one.usable and one.name != own and lasts(turn, one)]


def _can_lead(turn: Turn, one: Job) -> bool:
    """Return whether the process of a controller's job waits for the lead; one that has led ends with its job."""
    again = one.name != turn.state.former or (one.began or 0.0) > turn.state.began
    return again and turn.due(one.since + STARTS_S, JOBS)


def settle(turn: Turn) -> None:
    """Take up what has become of the jobs and their nodes."""
    _recover(turn)
    _note_left(turn)


def _note_left(turn: Turn) -> None:
    """Record which jobs their groups have left; use a doubted job again if Slurm does not answer."""
    changed = list[Job]()
    for one in turn.jobs if turn.attends_jobs() else ():
        job = one
        if job.alive and job.doubted is not None and turn.due(job.doubted + queue.DOUBT_S, JOBS):
            job = replace(job, doubted=None)
        if job.leaving is not None and job.left is None and not any(living(turn, job.name)):
            job = replace(job, left=turn.now)
        if job is not one:
            changed.append(job)
    queue.put(turn, changed)


def _balance(turn: Turn, pool: int) -> None:
    """Request the jobs that a pool lacks; cancel those that it does not need or that are no longer usable."""
    mine = [one for one in turn.jobs if one.pool == pool]
    have = [one for one in mine if lasts(turn, one)]
    surplus = len(have) - wanted(turn, pool)
    asking = asking_of(turn, pool)
    missing = -surplus
    if missing > 0 and asking.count == 0 and may_ask(turn.config) and turn.due(asking.again, JOBS):
        bad = queue.bad(turn.state)
        asking = replace(asking, count=missing, exclude=bad, again=turn.now)
        queue.put_asking(turn, pool, asking)
        turn.do(records.AllocationRequested(pool=pool, count=missing, exclude=bad), RequestJobs(pool, missing, bad))
    out: dict[str, str] = {}
    if surplus > 0 and asking.count == 0:
        idle = [one for one in reversed(have) if not any(living(turn, one.name))]
        idle.sort(key=lambda one: one.row.runs)  # stable sort: pending jobs go first
        out = {one.name: "it is not needed any more" for one in idle[:surplus]}
    lasting = {one.name for one in have}
    for one in mine:
        ends = one.alive and one.name not in lasting and one.row.runs
        if ends and not any(living(turn, one.name)):
            why = _why_ended(turn, one, enough=surplus >= 0)
            if why is not None:
                out[one.name] = why
    _dismiss(turn, out)


def _why_ended(turn: Turn, one: Job, enough: bool) -> str | None:
    """Return why a running job that does not last is cancelled; None: it is not.

    Args:
        turn: the decision.
        one: a job that no unit is in.
        enough: whether its pool has the jobs that it needs without this one.
    """
    config = turn.config
    drained = turn.nodes.drained | given_back(turn)
    gone = sorted((turn.nodes.unusable | drained).intersection(one.nodes))
    if gone and may_ask(config):
        return f"{', '.join(gone)} is {'drained' if drained.issuperset(gone) else 'lost or bad'}"
    if one.leaving is not None and not _requeues(one, config):
        return f"its group has left it ({one.leaving.value})"
    return "its time limit is near, and its successor is there" if not gone and enough else None


def _dismiss(turn: Turn, out: dict[str, str]) -> None:
    """Cancel these jobs, each for its reason."""
    own = queue.job(turn, turn.state.allocation.name)
    if own is not None and (own.pool == records.CONTROLLER_POOL or _others(turn)):
        out.pop(own.name, None)  # it ends when another job leads
    if out and (turn.lighthouse_serves or not turn.state.former):  # else the Lighthouse before may serve in such a job
        known = turn.state.job_pool.by_name
        turn.do(*(queue.lost(known[name], why) for name, why in out.items()))
        queue.put(turn, [replace(known[name], dismissed=why) for name, why in out.items()])
        turn.do(CancelJobs(tuple(out)))


def _requeue(turn: Turn) -> None:
    """Requeue the jobs that their groups had to leave; start requeued jobs at once that Slurm holds back."""
    now, tried = turn.now, list[Job]()
    for one in turn.jobs:
        again = one.tried + AGAIN_S
        if one.left is not None and one.alive and one.row.runs and _requeues(one, turn.config):
            if turn.due(max(one.left + LEAVES_S, again), JOBS):
                cause = None if one.leaving is None else one.leaving.value
                turn.do(records.AllocationRequeued(allocation=one.name, reason=cause), RequeueJob(one.name))
                tried.append(replace(one, tried=now))
                queue.poll_by(turn, now + queue.BUSY_S)
        elif one.alive and one.reason == HELD_BACK and not one.preempted:  # else it might take what it has given
            if not turn.due(max(one.since + SETTLED_S, again), JOBS):
                continue
            turn.do(StartNow(one.name))
            tried.append(replace(one, tried=now))
    queue.put(turn, tried)


def over(state: RunState) -> tuple[str, ...]:
    """Return the jobs to cancel when the run ends."""
    jobs, own = state.job_pool.jobs, state.allocation.name
    return tuple(one.name for one in jobs if (one.alive or one.row.between) and (one.pool >= 0 or one.name != own))


Awaited: TypeAlias = tuple[str | None, str | None]  # what it is, with Slurm's reason; the job's name. None: no job


def coming(turn: Turn, pool: int) -> Iterator[Awaited]:
    """Yield what the groups of a pool without a place wait for, without end.

    Each waits for a job of its own that has no nodes yet, the oldest first, so that the start of a job changes nothing
    for the others. One that runs and may be ending counts only if there is no other.
    """
    jobs = [one for one in turn.jobs if one.pool == pool and one.alive and not one.usable]
    queued = [one for one in jobs if not one.row.runs]
    found = [_awaited(one) for one in queued or jobs] or [_no_job(turn, pool)]
    return chain(found, repeat(found[-1]))


def _no_job(turn: Turn, pool: int) -> Awaited:
    asking = asking_of(turn, pool)
    if turn.config.internal.pilots is not None:
        return "a task of the array, of which none is left for it", None
    if asking.error:
        return f"a job that sbatch refuses: {asking.error}", None
    return "a job of its own" if turn.config.job_per_group or asking.count else None, None


def _awaited(job: Job) -> Awaited:
    if job.leaving is not None:
        return f"the requeue of Slurm job {job.name}", job.name
    why = f": {job.reason}" if job.reason else ""
    return f"Slurm job {job.name} ({'ending' if job.row.runs else job.state.lower() + why})", job.name
