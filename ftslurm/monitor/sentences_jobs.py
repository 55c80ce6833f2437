"""What does a person read about the jobs that give groups their nodes, and what can be done about one that waits?

A run of 64 groups has 64 jobs, whose states change together: the first of a kind is told, the table shows the rest.
"""

from __future__ import annotations

import time

from ftslurm.core.state.model import Phase
from ftslurm.monitor.status import RunStatus
from ftslurm.monitor.status_groups import GroupStatus
from ftslurm.monitor.status_jobs import JobStatus
from ftslurm.run.journal import Event, integer, names, text

# The controller's job may take the place of a group's.
TOO = "the controller's job counts too (cluster.controller_sbatch, cluster.controller=here)"
# How Slurm's reason begins -> what to do about it; {job} is the job's name. Whoever waits for their turn needs no hint.
HINTS = {
    "JobHeldUser": "it is held: scontrol release {job}",
    "JobHeldAdmin": "an administrator holds it: ask them",
    "JobHoldMaxRequeue": "it was requeued too often: scontrol release {job}",
    "launch failed requeued held": "Slurm could not start it and holds it: scontrol release {job}",
    "ReqNodeNotAvail": "the nodes it may use are down, drained or reserved (sinfo -R); before a maintenance a shorter "
    "cluster.time may fit",
    "Reservation": "its reservation has not begun: cluster.reservation",
    "QOS": "a limit of your QOS is reached: fewer groups (ftslurm scale), or another cluster.qos or cluster.partition; "
    f"{TOO}",
    "Assoc": f"a limit of your account is reached: fewer groups (ftslurm scale), or another cluster.account; {TOO}",
    "MaxJobsPerAccount": f"a limit of your account is reached: fewer groups (ftslurm scale), another account; {TOO}",
    "PartitionTimeLimit": "the partition allows no such time limit: a shorter cluster.time",
    "PartitionNodeLimit": "the partition gives no job so many nodes: a smaller groups.nodes",
    "PartitionDown": "the partition is down: choose another cluster.partition, or wait",
    "PartitionInactive": "the partition is closed: choose another cluster.partition, or wait",
    "BadConstraints": "no node has what it asks for: cluster.constraint, groups.gpus, groups.mem",
    "NodeDown": "a node it needs is down (sinfo -R)",
    "InvalidAccount": "Slurm does not know the account: cluster.account",
    "InvalidQOS": "Slurm does not know the QOS: cluster.qos",
    "Licenses": "it waits for licences",
}


def hint(reason: str | None, job: str) -> str | None:
    """What to do about a job that waits for this reason; None: nothing, its turn will come."""
    words = (reason or "").replace("_", " ").lower()
    found = next((HINTS[key] for key in HINTS if words.startswith(key.lower())), None)
    return found and found.format(job=job)


def describe(event: Event, status: RunStatus) -> str | None:
    """The line for one event about jobs, where `status` already contains it; None: others tell enough."""
    name, reason = text(event, "allocation"), text(event, "reason") or ""
    job = status.jobs.named(name)
    match event.get("event"):
        case "allocation_requested":
            return _requested(event, status)
        case "allocation_refused":
            return f"sbatch refuses jobs for {groups_of(integer(event, 'pool') or 0)}: {reason}"
        case "allocation_pending":
            like = [one for one in status.jobs.waiting if one.reason == reason]
            return f"job {name} waits in the queue: {_why(like[0])}" if len(like) == 1 else None
        case "allocation_granted":
            late = status.first_step is not None and all(g.attempt is not None for g in status.groups)
            return f"job {name} has {', '.join(names(event, 'nodes'))}{_until(job)}" if late else None
        case "allocation_leaving":
            return f"job {name} is about to end, its group leaves it: {reason}"
        case "allocation_requeued":
            return f"job {name} is put back into the queue: its group has left it ({reason.replace('_', ' ')})"
        case "allocation_lost":
            misses = any(g.job == name and g.phase in (Phase.PENDING, Phase.STOPPING) for g in status.groups)
            if text(event, "state") is None and not misses:
                return None  # given back: its group has finished, left the run, or is elsewhere
            words = {"PENDING": "back in the queue", None: "given up"}.get(text(event, "state"), "lost")
            return f"job {name} is {words}: {reason}"
    return None


def tells(status: RunStatus) -> bool:
    """Whether the lines about jobs say what groups wait for, so that not every group needs to say it."""
    return status.mode == "array" or bool(status.jobs.asked)


def _requested(event: Event, status: RunStatus) -> str | None:
    count, pool, exclude = integer(event, "count") or 0, integer(event, "pool") or 0, names(event, "exclude")
    if pool in status.jobs.refused:
        return None  # the same again; it would be told if it were not refused
    what = "a job is" if count == 1 else f"{count} jobs are"
    without = f", not on {', '.join(exclude[:3])}{' ...' if len(exclude) > 3 else ''}" if exclude else ""
    whom = f" ({groups_of(pool)})" if pool else ""
    return f"{what} asked for{whom}{without}"


def groups_of(pool: int) -> str:
    """Which groups the jobs of a pool are for."""
    return "groups" if pool == 0 else f"groups of cluster.ranges[{pool - 1}]"


def _why(job: JobStatus) -> str:
    hinted = hint(job.reason, job.name)
    return (job.reason or "Slurm gives no reason") + (f" ({hinted})" if hinted else "")


def _until(job: JobStatus | None) -> str:
    return f", until {_clock(job.ends)}" if job is not None and job.ends and job.left(time.time()) is not None else ""


def _clock(unix: float) -> str:
    return time.strftime("%a %H:%M", time.localtime(unix))


def scaled(event: Event) -> str:
    """What became of `ftslurm scale`."""
    groups = integer(event, "groups")
    if event.get("event") == "scale_refused":
        return f"scale to {groups} refused: {text(event, 'reason')}"
    return f"the run has {groups} group{'' if groups == 1 else 's'} from now on (ftslurm scale)"


def parted(group: GroupStatus, cause: str, error: str | None, status: RunStatus) -> str | None:
    """How a group has left without having failed, where that was not the run's end; None: it was."""
    job = status.jobs.named(group.job)
    where = f"job {group.job}" if group.job is not None else "its job"
    if group.leaves:
        return "has left the run"
    if cause == "preempted" and (job is not None or error is not None):
        return f"has left {where}: preempted" if error is None else f"was preempted: {error}"
    if cause == "time_limit" and job is not None:
        return f"has left {where}: its time limit is near"
    if cause == "cancelled" and error is not None:
        return f"was ended from outside: {error}"
    return None


def table_note(group: GroupStatus, status: RunStatus, now: float) -> str | None:
    """Beside a group's nodes: in which job it is, and how long that lasts; for one that waits, its job and why."""
    job, waits = status.jobs.named(group.job), group.phase is Phase.PENDING
    if job is None or waits == bool(job.nodes):
        return None
    if waits:
        return f"job {job.name}: {job.reason or 'in the queue'}"
    left = job.left(now)
    return f"in {job.name}" + ("" if left is None else f", {_left(left)} left")


def _left(seconds: float) -> str:
    if seconds < 120:
        return f"{max(0, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h" if minutes < 2880 else f"{minutes // 1440} d"


def lines(status: RunStatus, now: float) -> list[str]:
    """Below the table: how many jobs there are, when the first one ends, what the others wait for and what helps."""
    jobs = status.jobs
    if not jobs.there and not jobs.refused:
        return []
    limits = [(left, job.name) for job in jobs.running if (left := job.left(now)) is not None]
    first, name = min(limits, key=lambda limit: limit[0], default=(None, ""))
    ends = "" if first is None else f", the first ends in {_left(first)} ({name})"
    said = [f"jobs: {len(jobs.running)} running{ends}, {len(jobs.waiting)} waiting"]
    reasons: dict[str, list[JobStatus]] = {}
    for job in jobs.waiting:
        reasons.setdefault(job.reason or "in the queue", []).append(job)
    for reason, alike in reasons.items():
        more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        hinted = hint(reason, alike[0].name)
        said.append(f"  {alike[0].name}{more}: {reason}" + (f" - {hinted}" if hinted else ""))
    said += [f"  sbatch refuses jobs for {groups_of(pool)}: {why}" for pool, why in jobs.refused.items()]
    return said
