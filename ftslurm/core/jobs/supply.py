"""Decide how many Slurm jobs the run needs beside the controller's, and which ones to cancel or requeue. Pure.

Level-triggered: each decision compares the wanted number of jobs with the present one. Pending jobs count as present,
and so do jobs that Slurm has requeued: their requeue and a new submission never make two.

    array mode   a pilot for each group that has not finished, and for each standby (per pool, see cluster.ranges)
    steps mode   a satellite for each group without a place in the controller's own allocation, and satellites for the
                 spare nodes (cluster.spare_nodes) that are missing because nodes were lost (cluster.requeue)
"""

from __future__ import annotations

from collections.abc import Iterator

from ftslurm.config.schema import Config
from ftslurm.core.jobs import queue
from ftslurm.core.jobs.queue import Outcome, living
from ftslurm.core.state.actions import Action, AskJobs, CancelJobs, Exclude, RequestJobs, RequeueJob, StartNow
from ftslurm.core.state.events import NodesLeft
from ftslurm.core.state.model import LIVE, OVER, Allocation, Asking, Job, Phase, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.unit_table import Trait
from ftslurm.core.state.units import pool_of
from ftslurm.core.state.values import replace
from ftslurm.protocol import records
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.job_states import state as job_state

LEAVES_S = 5.0  # after its group has left, Slurm may end or requeue a pilot for this long; then we requeue it
SETTLED_S = 2.0  # Slurm 22.05 fails a requeued job for good if it is started within about 0.2 s
AGAIN_S = 20.0  # a command that had no effect is repeated after this long
BETWEEN_S = 10.0  # an ending job may return to the queue for this long
MOST_EXCLUDED = 100  # most nodes in sbatch --exclude
SHORT_S = 60.0  # a node lost for less than this is not replaced while a spare one is free
SAVES_S = 30.0  # time reserved for saving a checkpoint
SPARE_S = 5.0  # margin between the end of a group's grace time and the end of its job
HANDOVER_S = 900.0  # the next job of a group is requested so long before the end of its job, at most half of its time
HOPELESS = 4  # consecutive refusals of sbatch after which a group without a place will get none


def array(config: Config) -> bool:
    """Return whether all nodes come from pilots."""
    return config.cluster.kind == "array"


def uses_jobs(config: Config) -> bool:
    """Return whether the run may have jobs beside the controller's."""
    return array(config) or (config.cluster.kind == "slurm" and config.cluster.requeue)


def may_come(state: RunState, unit: Unit, now: float, config: Config) -> bool:
    """Return whether a group without a place may still get one from a job."""
    if not uses_jobs(config):
        return False
    pool = pool_of(unit.group, config)
    if config.internal.pilots is not None:  # no job is ever submitted: only one without a group can serve
        jobs = state.job_pool.jobs
        there = (one for one in jobs if one.alive or job_state(one.state).between or now < one.since + BETWEEN_S)
        return not state.job_pool.polled or not jobs or any(not any(living(state, one.name)) for one in there)
    if any(one.alive and one.pool == pool for one in state.job_pool.jobs):
        return True
    refused = next((one.refusals for one in state.job_pool.asking if one.pool == pool), 0)
    return refused < HOPELESS


def handover_at(one: Job, config: Config) -> float | None:
    """Return when to request the successor of a running job, to which its group may move; None: no time limit."""
    if one.ends is None or one.began is None:
        return None
    whole, signal_s = one.ends - one.began, config.cluster.signal_s
    return one.ends - max(min(HANDOVER_S, whole / 2), min(2 * signal_s, whole * 3 / 4))


def lasts(one: Job, state: RunState, now: float, config: Config) -> bool:
    """Return whether a job provides nodes, or will, for longer than its replacement takes."""
    if one.dismissed is not None:
        return False
    if job_state(one.state).between and now < one.since + BETWEEN_S:
        return True
    bad = state.nodes.unusable if any(living(state, one.name)) else state.nodes.unusable | given_back(state, config)
    if not one.alive or not bad.isdisjoint(one.nodes):
        return False
    if one.leaving is not None:
        return _requeues(one, config)
    limit = handover_at(one, config)
    return limit is None or now < limit or not may_ask(config)


def lasting(state: RunState, pool: int, now: float, config: Config) -> tuple[Allocation, ...]:
    """Return where steps of a pool may be started for longer than the replacement of a job takes."""
    known = state.job_pool.by_name
    return tuple(one for one in state.allocations(pool) if one.own or lasts(known[one.name], state, now, config))


def given_back(state: RunState, config: Config) -> frozenset[str]:
    """Return the nodes that Slurm drains, if a group that has failed there leaves its job for another one."""
    return state.nodes.shunned if array(config) and may_ask(config) else frozenset()


def _requeues(one: Job, config: Config) -> bool:
    """Return whether a job that is about to end is requeued, by Slurm or by us."""
    return config.cluster.requeue and (one.leaving is not Cause.TIME_LIMIT or not may_ask(config))


def may_ask(config: Config) -> bool:
    """Return whether jobs may be submitted; the tasks of an array submitted by hand can only be requeued."""
    return (array(config) or config.cluster.requeue) and config.internal.pilots is None


def wanted(state: RunState, pool: int, now: float, config: Config) -> int:
    """Return how many jobs a pool needs."""
    groups = _open_groups(state, pool, config)
    if array(config):
        standbys = sum(u.phase is not Phase.FAILED for u in state.standbys) if pool == 0 else 0
        return groups + (standbys if groups else 0)
    there = (one.name for one in state.job_pool.by_name.values() if one.alive)
    names = {name for job in there for name in state.table.in_job.get(job, ())}
    units = state.table.named({*names, *state.table.having_trait(Trait.WAITING)})
    away = sum(_is_open(unit) and pool_of(unit.group, config) == pool for unit in units)
    away += _stuck(state, config) - _being_checked(state, config) if pool == 0 else 0
    return max(away, _instead(state, groups, now, config) if pool == 0 else 0)


def _open_groups(state: RunState, pool: int, config: Config) -> int:
    """Return the number of groups of a pool that have not finished, failed or been retired."""
    if config.cluster.ranges:
        return sum(_is_open(unit) and pool_of(unit.group, config) == pool for unit in state.table.all_groups())
    retired = state.table.named(state.table.having_trait(Trait.RETIRED))
    gone = sum(unit.phase not in OVER for unit in retired)
    return state.table.groups - state.table.count(*OVER) - gone if pool == 0 else 0


def _is_open(unit: Unit) -> bool:
    return unit.group is not None and unit.phase not in OVER and not unit.retired


def _stuck(state: RunState, config: Config) -> int:
    """Return how many groups on drained nodes of the controller's allocation find no other place in it."""
    drained = state.nodes.drained
    near = {unit.name: unit for node in drained for unit in state.table.near(node)}.values()
    stay = sum(u.phase in LIVE and _is_open(u) and u.place is not None and u.place.allocation is None for u in near)
    if stay == 0 or state.allocation is None:
        return 0
    sound = [node for node in state.allocation.nodes if node not in state.nodes.unusable]
    own = [unit.place for unit in state.table.in_phase(*LIVE) if unit.place and unit.place.allocation is None]
    taken = sum(drained.isdisjoint(place.nodes) for place in own)
    shares = len(sound) // config.groups.nodes * config.groups.per_node
    return max(0, stay - max(0, shares - taken))


def _being_checked(state: RunState, config: Config) -> int:
    """Return how many groups get a place in the controller's allocation if the nodes pass that are being checked."""
    if not state.nodes.checks.waiting or state.allocation is None:
        return 0
    nodes = sum(node in state.nodes.checks.waiting for node in state.allocation.nodes)
    return nodes // config.groups.nodes * config.groups.per_node


def _instead(state: RunState, groups: int, now: float, config: Config) -> int:
    """Return how many satellites replace the nodes that are missing for the groups and cluster.spare_nodes.

    A lost node counts as missing after SHORT_S, a suspected one at once.
    """
    if config.cluster.spare_nodes == 0 or state.allocation is None:
        return 0
    out = {back.node for back in state.nodes.returning if now >= back.since + SHORT_S} | {
        node for node, _ in state.nodes.suspected
    }
    out |= state.nodes.drained | state.nodes.unfit
    sound = sum(node not in out for node in state.allocation.nodes)
    shares = -(-groups // config.groups.per_node)
    missing = min(state.job_pool.had, config.groups.nodes * shares + config.cluster.spare_nodes) - sound
    return max(0, -(-missing // config.groups.nodes))


def _gone(state: RunState) -> frozenset[str]:
    """Return the nodes that Slurm has removed from the controller's job; they are well when another job gets them."""
    known = {back.node for back in state.nodes.returning} | {node for node, _ in state.nodes.suspected}
    known |= state.nodes.unfit
    own = state.allocation.nodes if state.allocation is not None else ()
    return state.nodes.avoid - known - set(own)


def _bad(state: RunState) -> tuple[str, ...]:
    """Return the nodes that new jobs must not get."""
    return tuple(sorted((state.nodes.avoid - _gone(state)) | state.nodes.drained))[:MOST_EXCLUDED]


def nodes_left(state: RunState, event: NodesLeft, config: Config) -> Outcome:
    """Apply Slurm's list of the nodes that the controller's job still has.

    Slurm never returns a node that it has found down to the same job. Another job may get it when it is well, so
    pending jobs no longer exclude it.
    """
    if state.allocation is None or state.allocation.nodes == event.nodes:
        return state, []
    gone = [node for node in state.allocation.nodes if node not in event.nodes]
    why = "Slurm has taken it out of the job"
    lines = [records.NodeExcluded(node=node, reason=why) for node in gone if node not in state.nodes.avoid]
    state = replace(
        state,
        allocation=replace(state.allocation, nodes=tuple(n for n in state.allocation.nodes if n not in gone)),
        nodes=replace(
            state.nodes,
            avoid=state.nodes.avoid | set(gone),
            returning=tuple(back for back in state.nodes.returning if back.node not in gone),
            suspected=tuple(pair for pair in state.nodes.suspected if pair[0] not in gone),
        ),
    )
    return state, [*lines, *(told_to_avoid(state, config) if gone else [])]


def told_to_avoid(state: RunState, config: Config) -> list[Action]:
    """Return the orders that keep the waiting jobs off the nodes that no job must get; these have changed."""
    waiting = (one for one in state.job_pool.jobs if one.alive and one.state == "PENDING" and may_ask(config))
    return [Exclude(one.name, _bad(state)) for one in waiting]


def recover(state: RunState, now: float, config: Config) -> Outcome:
    """Restore nodes that Slurm has removed from the controller's job and given to another job of this run."""
    gone = _gone(state) if state.nodes.avoid else frozenset()
    if not gone:
        return state, []
    back = [(node, one.name) for one in state.job_pool.jobs if one.usable for node in one.nodes if node in gone]
    if not back:
        return state, []
    words = "Slurm has given it to the run again, in job"
    lines: list[Action] = [records.NodeRestored(node=node, reason=f"{words} {job}") for node, job in back]
    return replace(state, nodes=replace(state.nodes, avoid=state.nodes.avoid - {node for node, _ in back})), lines


def supply(state: RunState, now: float, config: Config) -> Outcome:
    """Submit missing jobs, cancel unneeded ones, and poll Slurm about all."""
    actions: list[Action] = []
    if state.ending is not None or state.allocation is None or not uses_jobs(config):
        return state, actions
    if state.job_pool.polled and state.jobs_concerned(now):
        for pool in range(len(config.cluster.ranges) + 1):
            state, more = _balance(state, pool, now, config)
            actions += more
        state, more = _requeue(state, now, config)
        actions += more
    busy = _is_busy(state, config)
    doubtful = busy and any(not look.slurm for look in state.nodes.looks)  # no node is judged until Slurm answers
    if busy and (doubtful or now >= state.job_pool.next_poll):
        actions.append(AskJobs())
        state = replace(state, job_pool=replace(state.job_pool, next_poll=now + queue.RARE_S))  # until the answer comes
    return state, actions


def settle(state: RunState, now: float, config: Config) -> Outcome:
    """Record which jobs their groups have left; use a doubted job again if Slurm does not answer."""
    changed: dict[str, Job] = {}
    for one in state.job_pool.jobs if state.jobs_concerned(now) else ():
        job = one
        if job.alive and job.doubted is not None and now >= job.doubted + queue.DOUBT_S:
            job = replace(job, doubted=None)
        if job.leaving is not None and job.left is None and not any(living(state, job.name)):
            job = replace(job, left=now)
        if job is not one:
            changed[job.name] = job
    return queue.put(state, changed.values()), []


def _balance(state: RunState, pool: int, now: float, config: Config) -> Outcome:
    """Request the jobs that a pool lacks; cancel those that it does not need or that are no longer usable."""
    actions: list[Action] = []
    mine = [one for one in state.job_pool.jobs if one.pool == pool]
    have = [one for one in mine if lasts(one, state, now, config)]
    needed = wanted(state, pool, now, config)
    asking = next((one for one in state.job_pool.asking if one.pool == pool), Asking(pool, 0))
    missing = needed - len(have) - asking.count
    if missing > 0 and now >= asking.again and (may_ask(config) or (not mine and _asks_first(config))):
        bad = _bad(state)
        rest = tuple(one for one in state.job_pool.asking if one.pool != pool)
        asking = replace(asking, count=asking.count + missing, again=now)
        state = replace(state, job_pool=replace(state.job_pool, asking=(*rest, asking)))
        requested = records.AllocationRequested(pool=pool, count=missing, exclude=bad)
        actions += [requested, RequestJobs(pool, missing, bad)]
    out: dict[str, str] = {}
    spare = len(have) - needed if asking.count == 0 else 0
    if spare > 0:
        homes = _homes(state, pool, config)
        idle = [one for one in reversed(have) if one.name not in homes and not any(living(state, one.name))]
        idle.sort(key=lambda one: one.state == "RUNNING")  # stable sort: pending jobs go first
        out = {one.name: "it is not needed any more" for one in idle[:spare]}
    lasting = {one.name for one in have}
    for one in mine:
        ends = one.alive and one.name not in lasting and one.state == "RUNNING"
        if ends and not any(living(state, one.name)):
            drained = state.nodes.drained | given_back(state, config)
            gone = sorted((state.nodes.avoid | drained).intersection(one.nodes))
            if gone and may_ask(config):
                how = "drained" if drained.issuperset(gone) else "lost or bad"
                out[one.name] = f"{', '.join(gone)} is {how}"
            elif one.leaving is not None and not _requeues(one, config):
                out[one.name] = f"its group has left it ({one.leaving.value})"
            elif not gone and len(have) >= needed:
                out[one.name] = "its time limit is near, and its successor is there"
    state, more = _dismiss(state, out)
    return state, actions + more


def _asks_first(config: Config) -> bool:
    """Return whether the controller submits the first jobs of the run."""
    return array(config) and config.internal.pilots is None


def _homes(state: RunState, pool: int, config: Config) -> set[str | None]:
    """Return the jobs to which pending groups of this pool return, because they ran there."""
    waiting = (u for u in state.table.in_phase(Phase.PENDING) if u.place is not None and not u.retired)
    return {u.place.allocation for u in waiting if u.place is not None and pool_of(u.group, config) == pool}


def _dismiss(state: RunState, out: dict[str, str]) -> Outcome:
    if not out:
        return state, []
    known = state.job_pool.by_name
    lines = [queue.lost(known[name], why) for name, why in out.items()]
    state = queue.put(state, [replace(known[name], dismissed=why) for name, why in out.items()])
    return state, [*lines, CancelJobs(tuple(out))]


def _requeue(state: RunState, now: float, config: Config) -> Outcome:
    """Requeue the jobs that their groups had to leave; start requeued jobs at once that Slurm delays (BeginTime)."""
    actions: list[Action] = []
    tried: list[Job] = []
    for one in state.job_pool.jobs:
        due = now >= one.tried + AGAIN_S
        if one.left is not None and one.alive and one.state == "RUNNING" and _requeues(one, config):
            if now >= one.left + LEAVES_S and due:
                cause = None if one.leaving is None else one.leaving.value
                actions += [records.AllocationRequeued(allocation=one.name, reason=cause), RequeueJob(one.name)]
                tried.append(replace(one, asked="requeue", tried=now))
                state = queue.poll_by(state, now + queue.BUSY_S)
        elif one.alive and (one.state, one.reason) == ("PENDING", "BeginTime") and due and now >= one.since + SETTLED_S:
            actions.append(StartNow(one.name))
            tried.append(replace(one, asked="start", tried=now))
    return queue.put(state, tried), actions


def over(state: RunState) -> tuple[str, ...]:
    """Return the jobs to cancel when the run ends."""
    return tuple(one.name for one in state.job_pool.jobs if one.alive or job_state(one.state).between)


class ComingJobs:
    """The job that each group without a place may get next. Not a value: used within one decision only."""

    def __init__(self, state: RunState, config: Config) -> None:
        self._state, self._config = state, config
        waiting: dict[int, list[str]] = {}
        for unit in state.table.in_phase(Phase.PENDING):
            waiting.setdefault(pool_of(unit.group, config), []).append(unit.name)
        self._turn = {name: turn for names in waiting.values() for turn, name in enumerate(names)}
        self._jobs: dict[int, list[Job]] = {}  # by pool, in the order of the waiting groups
        for one in state.job_pool.jobs:
            if one.alive and not one.usable:
                self._jobs.setdefault(one.pool, []).append(one)
        for pool, jobs in self._jobs.items():  # unusable running jobs may be ending: only if there are no others
            self._jobs[pool] = [one for one in jobs if one.state != "RUNNING"] or jobs

    def job_for(self, unit: Unit) -> Job | None:
        """Return the job that a group may get next; the first waiting group gets the oldest. None: there is none."""
        jobs = self._jobs.get(pool_of(unit.group, self._config), [])
        return jobs[min(self._turn.get(unit.name, 0), len(jobs) - 1)] if jobs else None

    def reason(self, unit: Unit) -> str | None:
        """Return what a group without a place waits for, with Slurm's reason; None: for no job."""
        job, config = self.job_for(unit), self._config
        if job is None and config.internal.pilots is not None:
            return "a task of the array, of which none is left for it"
        if job is None:
            pool = pool_of(unit.group, config)
            asking = next((one for one in self._state.job_pool.asking if one.pool == pool), None)
            if asking is None or not asking.error:
                return "a job of its own" if array(config) or (asking is not None and asking.count) else None
            return f"a job that sbatch refuses: {asking.error}"
        if job.leaving is not None:
            return f"the requeue of Slurm job {job.name}"
        why = f": {job.reason}" if job.reason not in ("", "None") else ""
        return f"Slurm job {job.name} ({'ending' if job.state == 'RUNNING' else job.state.lower() + why})"


def poll_times(state: RunState, config: Config) -> Iterator[float]:
    """Yield the time of the next poll of the jobs."""
    if state.ending is None and uses_jobs(config) and _is_busy(state, config):
        yield state.job_pool.next_poll


def _is_busy(state: RunState, config: Config) -> bool:
    """Return whether there may be jobs to poll."""
    return array(config) or any(one.alive for one in state.job_pool.jobs) or not state.job_pool.polled


def deadlines(state: RunState, config: Config) -> Iterator[float]:
    """Yield the times at which the rules about jobs must examine all of them without an event.

    The rules are those of this file, handover.vacate and queue.keep_pilots. They skip the jobs until then, so every
    time at which a rule's decision changes must be yielded here.
    """
    yield from queue.pilot_deadlines(state)
    if state.ending is not None or not uses_jobs(config):
        return
    if state.lineage.saving is not None:
        yield state.lineage.saving.until
    yield from (one.again for one in state.job_pool.asking)
    yield from (back.since + SHORT_S for back in state.nodes.returning)
    for one in state.job_pool.jobs:
        if not one.alive and not job_state(one.state).between:
            continue
        yield one.tried + AGAIN_S
        yield one.since + SETTLED_S
        yield one.since + BETWEEN_S
        if one.left is not None:
            yield one.left + LEAVES_S
        if one.doubted is not None:
            yield one.doubted + queue.DOUBT_S
        limit = handover_at(one, config)
        if limit is not None and one.ends is not None:
            yield limit
            yield (limit + one.ends) / 2
            yield one.ends - config.cluster.signal_s
            yield one.ends - config.stop.grace_s - SPARE_S - SAVES_S
            yield one.ends - config.stop.grace_s - SPARE_S
