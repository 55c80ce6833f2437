"""Texts about a run for people: one line for each event, and the texts of the table and the summary.

`describe` returns the line for an event. The functions after it format parts of the status for the table and the
summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ftslurm.core.groups.verdict import describe as verdict
from ftslurm.core.state.model import OVER, Phase
from ftslurm.core.state.unit_names import LIGHTHOUSE, STANDBY, group_unit
from ftslurm.monitor import starting
from ftslurm.monitor.event_text import controller_error, no_first_step
from ftslurm.monitor.status import GroupStatus, JobStatus, RunStatus
from ftslurm.protocol import records
from ftslurm.protocol.causes import cause_of, is_failure
from ftslurm.run.deliveries import Delivery
from ftslurm.run.journal import Event
from ftslurm.run.journal_lines import read
from ftslurm.words import about, every, few, plural, seconds

# The controller's job may take the place of a group's.
TOO = "the controller's job counts too (cluster.ranges, cluster.controller=here)"
# Prefix of Slurm's reason -> what to do about it; {job} is the job's name. A job that waits for its turn needs no hint.
HINTS = {
    "JobHeldUser": "it is held: scontrol release {job}",
    "JobHeldAdmin": "an administrator holds it: ask them",
    "JobHoldMaxRequeue": "it was requeued too often: scontrol release {job}",
    "job requeued in held state": "somebody has requeued and holds it: scontrol release {job}",
    "launch failed requeued held": "Slurm could not start it and holds it: scontrol release {job}",
    "ReqNodeNotAvail": "the nodes it may use are down, drained or reserved (sinfo -R); before a maintenance a shorter "
    "cluster.time may fit",
    "Reservation": "its reservation has not begun: cluster.sbatch.reservation",
    "QOS": "a limit of your QOS is reached: fewer groups (ftslurm scale), or another cluster.sbatch.qos or "
    f"cluster.partition; {TOO}",
    "Assoc": f"a limit of your account is reached: fewer groups (ftslurm scale), or another cluster.account; {TOO}",
    "PartitionTimeLimit": "the partition allows no such time limit: a shorter cluster.time",
    "PartitionNodeLimit": "the partition gives no job so many nodes: a smaller groups.nodes",
    "PartitionDown": "the partition is down: choose another cluster.partition, or wait",
    "PartitionInactive": "the partition is closed: choose another cluster.partition, or wait",
    "BadConstraints": "no node has what it asks for: cluster.sbatch.constraint, groups.gpus, groups.mem",
    "NodeDown": "a node it needs is down (sinfo -R)",
}


def describe(event: Event, status: RunStatus) -> str | None:
    """Return the line for an event, where `status` already contains it; None if the table shows it well enough."""
    record = read(event)
    return (
        _of_run(record, status) or _of_jobs(record, status) or _of_steps(record, status) or _of_training(record, status)
    )


def _of_run(record: records.JournalRecord | None, status: RunStatus) -> str | None:
    """Return the line for an event of the run or its controllers."""
    match record:
        case records.RunStarted():
            return _run_started(record)
        case records.ControllerLeft():
            return f"this controller makes way{_because(record.reason)}"
        case records.ControllerError():
            return controller_error(record)
        case records.Warned():
            return f"warning: {record.text}"
        case records.Command():
            return f"{record.what}: {record.reason or record.by}"
        case records.Scaled():
            return f"the run has {plural(record.groups, 'group')} from now on (ftslurm scale)"
        case records.CommandDone():
            return f"{record.what}: {record.text}"
        case records.CommandRefused():
            return f"{record.what} refused: {record.reason}"
        case records.RollOver():
            most = seconds(record.seconds)
            return f"a checkpoint is saved, within {most}, and then the job is started again{_because(record.reason)}"
        case records.RunRequeued():
            return f"the run stops at step {record.steps or status.step}{_because(record.reason)}"
        case records.RunFinished():
            counts = ", ".join((plural(status.step, "step"), *(restarts(status) or ["0 restarts"])))
            return f"the run {ended(status.outcome)} ({counts}){_because(record.reason)}"
    return None


def _of_jobs(record: records.JournalRecord | None, status: RunStatus) -> str | None:
    """Return the line for an event of Slurm jobs or nodes."""
    match record:
        case records.NodeSilent():
            return f"nothing is heard of node {record.node} for {seconds(record.seconds)}: looking"
        case records.NodeExcluded():
            return f"node {record.node} is left out{_because(record.reason)}"
        case records.NodeRestored():
            return f"node {record.node} is used again{_because(record.reason)}"
        case records.NodeShunned():
            return f"node {record.node} is used only if no other node is free{_because(record.reason)}"
        case records.NodeUnshunned():
            return f"node {record.node} is no longer drained{_because(record.reason)}"
        case records.NodeCheckFailed():
            log = f"; see {record.log}" if record.log else ""
            return f"node {record.node} is left out, it has failed its check{_because(record.reason)}{log}"
        case records.AllocationGranted(pool=None):  # the controller's own
            return f"allocation {record.allocation}: {few(record.nodes, 8)}"
        case records.AllocationRefused():
            again = f"; it is asked again in {seconds(record.again_s)}, later at most every 5 minutes"
            return f"sbatch refuses jobs for {groups_of(record.pool)}: {record.reason}{again}"
        case records.AllocationRequested() if record.pool not in status.jobs_refused:  # else it is told when accepted
            return f"asked for {plural(record.count, 'job')} for {groups_of(record.pool)}"
        # Jobs that wait for the same reason share a line: 64 groups may have 64 such jobs.
        case records.AllocationPending(allocation=name):
            if sum(job.reason == record.reason for job in status.waiting_jobs) != 1:
                return None
            todo = f" ({hinted})" if (hinted := hint(record.reason, name)) else ""
            return f"job {name} waits in the queue: {record.reason or 'Slurm gives no reason'}{todo}"
        case records.AllocationGranted(allocation=name):
            late = status.first_step is not None and all(g.attempt is not None for g in status.groups)
            return f"job {name} has {', '.join(record.nodes)}" if late else None
        case records.AllocationLeaving(allocation=name):
            return f"job {name} is about to end, its group leaves it: {record.reason}"
        case records.AllocationRequeued(allocation=name):
            return f"job {name} is put back into the queue: its group has left it"
        case records.AllocationLost(allocation=name):
            needed = any(g.job == name and g.phase in (Phase.PENDING, Phase.STOPPING) for g in status.groups)
            if record.state is None and not needed:
                return None  # cancelled: its group has finished, has left the run, or runs in another job
            what = {"PENDING": "back in the queue", None: "given up"}.get(record.state, "lost")
            return f"job {name} is {what}: {record.reason}"
    return None


def _of_steps(record: records.JournalRecord | None, status: RunStatus) -> str | None:
    """Return the line for an event of Slurm steps."""
    match record:
        case records.StepLaunched():
            return _launched(record, status)
        case records.LaunchRefused():
            return f"{_who(record, status)}: Slurm refuses the launch{_because(record.reason)}"
        case records.StepReady() if record.unit == LIGHTHOUSE:
            return f"the Lighthouse is up after {seconds(record.seconds)}"
        case records.StepReady() if record.unit.startswith(STANDBY):
            nodes = status.units[record.unit].nodes if record.unit in status.units else ()
            return f"{record.unit} is warm on {few(nodes)} after {seconds(record.seconds)}"
        case records.StepStarting():
            group = _group(record.group, status)
            waits = None if group is None else starting.wait_of(group, status)
            return f"{_who(record, status)} waits for {waits.what}" if waits is not None else None
        case records.StepAdopted():
            at = "" if record.step is None else f", at step {record.step}"
            return f"{record.unit} runs on under this controller{at}"
        case records.CauseCorrected():
            how = cause_of(record.cause).row.orderly
            return f"{_who(record, status)} attempt {record.attempt} {how}{_because(record.reason)}"
        case records.StepExited():
            return _exited(record, status)
        case records.StacksTaken():
            log = f"logs/{group_unit(record.group)}/attempt-{record.attempt:03d}/rank-{record.rank}.log"
            cannot = " could not be written into" if record.size is None else ":"
            return f"the stacks of rank {record.rank} of group {record.group}{cannot} {log}"
        case records.StepRecalled():
            return f"{_who(record, status)} is asked to leave its nodes{_because(record.reason)}"
        case records.RestartScheduled():
            wait = record.due - (status.updated or 0.0)
            if wait < 1:
                return None  # the line of the launch follows at once
            return f"{_who(record, status)}: attempt {record.attempt} will start in {seconds(wait)} (backoff)"
        case records.GroupWaits():
            if status.mode == "array" or record.allocation is not None:
                return None  # the lines about jobs show what groups wait for
            return f"{_who(record, status)} waits for {record.reason or 'a node'}"
        case records.GroupGivenUp():
            return f"{_who(record, status)} is given up{_because(record.reason)}"
        case records.StandbyGivenUp():
            return f"{record.unit} is given up{_because(record.reason)}"
    return None


def _of_training(record: records.JournalRecord | None, status: RunStatus) -> str | None:
    """Return the line for an event of the training."""
    match record:
        case records.GroupJoined():
            return _joined(record, status)
        case records.Serving():
            return _at_work(record, f"serves at {record.url}", status)
        case records.SessionOpened():
            return _at_work(record, "has a session with a server", status)
        case records.NoFirstStep():
            return f"warning: {no_first_step(record)}"
        case records.GroupSetAside():
            long = f" for {seconds(record.seconds)}" if record.seconds is not None else ""
            return f"group {record.group} is not heard{long}: the others go on without it for now"
        case records.GroupHeardAgain():
            return f"group {record.group} is heard again after {seconds(record.seconds)}: it takes part again"
        case records.GroupSlow(slow=False):
            return f"group {record.group} is as fast as the others again"
        case records.GroupSlow():
            own, others = seconds(record.own_s or 0.0), seconds(record.others_s or 0.0)
            compared = f"its own part of a step takes {own}, that of the others {others}"
            where = ", ".join(record.nodes)
            return f"group {record.group} is slow on {where}: {compared}, so all wait for it (health.on_slow)"
        case records.ReplicasDiffer():
            return record.reason
        case records.CheckpointsDistrusted():
            return f"what group {record.group} has saved after step {record.step} is not restored: it had diverged"
        case records.QuorumRefused():
            return f"the Lighthouse{_because(record.reason or 'no quorum for now')}"
        case records.CheckpointFailed():
            error = record.error or "unknown"
            return f"the checkpoint of step {record.step} could not be saved, the training goes on: {error}"
        case records.CheckpointRestored():
            return f"group {record.group} resumes from the checkpoint of step {record.step}"
        case records.GroupHealed():
            if record.seconds < 1.0:
                return None
            way = f"{record.size / 1e9:.1f} GB from {record.donor} by {record.interface}"
            rate = f"{record.size / 1e9 / record.seconds:.2g} GB/s"
            return f"group {record.group} has the state of step {record.step}: {way} in {record.seconds:.1f} s, {rate}"
        case records.FullRestart():
            return _full_restart(record)
        case records.FaultInjected():
            at = f" at step {record.step}" if record.step is not None and record.group is not None else ""
            return f"drill: {fault(record)}{at}"
        case records.FaultRefused():
            return f"drill refused, {fault(record)}{_because(record.reason)}"
    return None


def _run_started(record: records.RunStarted) -> str:
    what = plural(record.groups, "group")
    if record.workers is not None:
        what += f" of {plural(record.workers, 'worker')}"
    if record.cluster == "local":
        what += ", on this machine"
    elif record.job_id is not None:
        what += f", Slurm job {record.job_id}"
    if record.parent is not None:
        what += f", resumes {run_name(record.parent)}"
    how = "goes on" if record.after or (record.leader or 0) > 1 else "starts"
    return f"run {record.run_id} {how}: {what}" + (f" ({record.after})" if record.after else "")


def restarts(status: RunStatus) -> list[str]:
    """Return how often a group has restarted after a failure, and how often all have together, if they have."""
    counts = ((status.restarts, "restart"), (status.full_restarts, "full restart"))
    return [plural(count, what) for count, what in counts if count]


# --- Slurm jobs and nodes --------------------------------------------------------------------------------------------


def groups_of(pool: int) -> str:
    """Return which groups the jobs of a pool are for."""
    if pool == records.CONTROLLER_POOL:
        return "the controller"
    return "groups" if pool == 0 else f"groups of cluster.ranges[{pool - 1}]"


def hint(reason: str | None, job: str) -> str | None:
    """Return what the user can do about a job that waits for this reason; None: nothing, it only waits its turn."""
    words = (reason or "").replace("_", " ").lower()
    found = next((HINTS[key] for key in HINTS if words.startswith(key.lower())), None)
    return found and found.format(job=job)


# --- Slurm steps -----------------------------------------------------------------------------------------------------


def _launched(record: records.StepLaunched, status: RunStatus) -> str | None:
    group, attempt, nodes = _group(record.group, status), record.attempt, few(record.nodes)
    if record.unit.startswith(STANDBY):
        return None  # its line is printed when it is warm
    if attempt > 0 and (group is None or group.again):
        what = _who(record, status)
        how = "failed" if group and (group.last is None or is_failure(group.last.cause)) else "ended"
        after = "" if record.down_s is None else f", {seconds(record.down_s)} after attempt {attempt - 1} {how}"
        if record.standby:
            return f"{what} goes on as attempt {attempt} on {nodes} with the warm standby{after}"
        where = f"on {nodes}" if record.nodes else "beside the controller"
        return f"{what} relaunched as attempt {attempt} {where}{after}"
    if group is None or group.retried or status.first_step is not None or any(g.attempt is None for g in status.groups):
        return None  # one line when all are launched; a later group gets its line at its first step
    everywhere = few(tuple(dict.fromkeys(node for g in status.groups for node in g.nodes)))
    return f"{every(len(status.groups))} launched on {everywhere}"


def _exited(record: records.StepExited, status: RunStatus) -> str | None:
    group, row, what = _group(record.group, status), cause_of(record.cause).row, _who(record, status)
    if record.group is None and not row.failure and not record.error:
        return None  # the Lighthouse ends after the groups
    if record.cause == "ok":
        return f"{what} has finished"
    gone = group is None and record.group is not None  # `ftslurm scale` has taken it out of the run
    step = record.step if group is None else group.step if group.joined else None
    at = "" if step is None else f"at step {step}"
    if gone or not row.failure:
        how = "has left the run" if gone or (group is not None and group.leaves) else row.orderly
        why = _because(record.error if record.cause in ("preempted", "cancelled") else None)
        return f"{what} {how}{why}" + (f" ({at})" if at else "")
    log = f" - log: {short_log(record.log)}" if record.log else ""
    where = f" {at}" if at else " before its first step" if group and status.lighthouse is not None else ""
    return f"{what} attempt {record.attempt} died{where}: {verdict(record)}{log}"


# --- the training ----------------------------------------------------------------------------------------------------


def _joined(record: records.GroupJoined, status: RunStatus) -> str | None:
    group, step, size = _group(record.group, status), record.step, record.participants
    quorum = f" ({plural(size, 'group')} in the quorum)" if size is not None else ""
    if record.attempt and (group is None or group.again):
        took = ""
        if record.recovery_s is not None:
            how = "died" if group is None or group.last is None or is_failure(group.last.cause) else "left"
            took = f" {seconds(record.recovery_s)} after it {how}"
        if (first_s := (record.phases or {}).get("commit") or 0.0) >= 1.0:  # the script may compile in it
            took += f" ({seconds(first_s)} in its first step)"
        return f"group {record.group} is back: first step {step} committed{took}"
    if sum(g.joined or g.again for g in status.groups) == 1:
        after = f", {seconds(record.seconds)} after the launch" if record.seconds is not None else ""
        return f"training: step {step} committed{after}{quorum}"
    # Only the first group of the first quorum gets a line, and each group that joins later.
    return None if step == status.first_step else f"group {record.group} has joined at step {step}{quorum}"


def _at_work(record: records.Serving | records.SessionOpened, what: str, status: RunStatus) -> str | None:
    """Return the line for the first report of a group in a run with parameter servers; None: not the first."""
    if record.seconds is None:
        return None
    who = _who(record, status)
    if record.recovery_s is not None:
        return f"{who} is back: it {what}, {seconds(record.recovery_s)} after it died"
    return f"{who} {what}, {seconds(record.seconds)} after its launch"


def _full_restart(record: records.FullRestart) -> str:
    step, reached = record.checkpoint_step, record.step
    source = f"the checkpoint of step {step}" if step is not None else record.checkpoint or "a checkpoint"
    back = 0 if step is None or reached is None else reached - step  # the last steps may not have been reported
    cost = f", {plural(back, 'step')} back or a little more" if back > 0 else ""
    return f"full restart from {source}{cost}{_because(record.reason)}"


def fault(drill: records.FaultInjected | records.FaultRefused) -> str:
    """Return the fault of a drill: "SIGSTOP of rank 0 of group 1"."""
    kind = drill.kind or "?"
    what = _DRILLS.get(kind, kind) + (f" {drill.node}" if kind == "node" and drill.node else "")
    rank = [f"rank {drill.rank}"] if drill.rank is not None and drill.group is not None and kind != "cancel" else []
    return " of ".join([what, *rank, *([] if drill.group is None else [f"group {drill.group}"])])


_DRILLS = {
    "kill": "SIGKILL",
    "term": "SIGTERM",
    "stop": "SIGSTOP",
    "corrupt": "a flipped bit",
    "cancel": "scancel of the step",
    "node": "loss of the node",
    "lighthouse": "the Lighthouse killed",
}


# --- parts of the status ---------------------------------------------------------------------------------------------


def called(group: GroupStatus) -> str:
    """Return a group's name for people: group 3, or group 0 (server) in a run of groups that differ."""
    return f"group {group.group}" + (f" ({group.role})" if group.role else "")


def notes(status: RunStatus) -> Iterator[str]:
    """Yield the lines below the table of the groups."""
    if (lighthouse := status.lighthouse) is not None:
        where = f" on {few(lighthouse.nodes)}" if lighthouse.nodes else ""
        attempt = f", attempt {lighthouse.attempt}" if lighthouse.attempt else ""
        yield f"Lighthouse {lighthouse.phase.value}{where}{attempt}"
    if (resumes := parent(status)) is not None:
        yield resumes
    if status.standbys:
        ready = [unit for unit in status.standbys if unit.ready]
        nodes = few(list(dict.fromkeys(node for unit in ready for node in unit.nodes)))
        yield f"standbys: {len(ready)} of {len(status.standbys)} ready" + (f" on {nodes}" if ready else "")
    if (avoided := left_out(status)) is not None:
        yield avoided
    if slow := [f"group {g.group} ({g.slow:.1f} times)" for g in status.groups if g.slow is not None]:
        yield f"slow, by their own part of a step: {few(slow, 4)}"
    if status.checkpoint is not None:
        yield f"newest checkpoint: step {status.checkpoint}"
    if (limit := status.hang_limit) is not None:
        took = f"learnt: the longest took {seconds(limit.longest_s)}"
        yield f"hang limit {seconds(limit.in_step_s)} in a step, {seconds(limit.between_s)} between two ({took})"
    yield from _jobs(status)


def parent(status: RunStatus) -> str | None:
    """Return which run this one resumes; None: it resumes none."""
    return None if status.parent is None else f"resumes {run_name(status.parent)}"


def run_name(directory: str) -> str:
    """Return the id of the run in a directory."""
    return directory.rstrip("/").rpartition("/")[2]


def left_out(status: RunStatus) -> str | None:
    """Name the nodes that are avoided: "left out: n2 (lost); drained: n7 (ftslurm drain)"; None: there are none."""
    parts = []
    for kind, nodes in (("left out", status.excluded_nodes), ("drained", status.drained_nodes)):
        if nodes:
            parts.append(f"{kind}: {few([f'{node} ({why})' for node, why in nodes.items()])}")
    return "; ".join(parts) or None


def of_total(step: int, status: RunStatus) -> str:
    """Format a step with the total number of steps, if that is known: 61/120."""
    return f"{step}/{status.total_steps}" if status.total_steps else str(step)


def short_log(path: str) -> str:
    """Return a log's path relative to the run directory, which is printed elsewhere."""
    return "logs/" + path.rpartition("/logs/")[2]


def table_note(group: GroupStatus, status: RunStatus, now: float) -> str | None:
    """Return a group's job and its time left; for a group that waits, the job it waits for and the reason."""
    job, waits = status.jobs.get(group.job or ""), group.phase is Phase.PENDING
    if job is None or waits == bool(job.nodes):
        return None
    if waits:
        return f"job {job.name}: {job.reason or 'in the queue'}"
    left = job.left(now)
    return f"job {job.name}" + ("" if left is None else f", {about(left)} left")


def waits(group: GroupStatus, status: RunStatus, now: float) -> str | None:
    """Return what a group waits for, and how long it may: "waits for rank 2: imports, 12 s of 600 s (SETTING)".

    None: it waits for nothing.
    """
    wait = starting.wait_of(group, status)
    if wait is None:
        return None
    note = table_note(group, status, now) if group.phase is Phase.PENDING else None
    text = note or f"waits for {wait.what}"
    waited = 0 if wait.since is None else round(now - wait.since)
    if waited > 0 or wait.limit_s is not None:
        text += f", {waited} s" if waited < 120 else f", {seconds(waited)}"
    if wait.limit_s is not None:
        text += f", a warning at {wait.limit_s:g} s" if wait.warns else f" of {wait.limit_s:g} s"
    return text + (f" ({wait.setting})" if wait.setting is not None else "")


def _jobs(status: RunStatus) -> Iterator[str]:
    """Yield the number of jobs, and why some wait."""
    waiting = status.waiting_jobs
    if status.jobs or status.jobs_refused:
        yield f"jobs of groups: {len(status.jobs) - len(waiting)} running, {len(waiting)} waiting"
    reasons: dict[str, list[JobStatus]] = {}
    for job in waiting:
        reasons.setdefault(job.reason or "in the queue", []).append(job)
    for reason, alike in reasons.items():
        hinted = hint(reason, alike[0].name)
        yield f"  {few([job.name for job in alike], 1)}: {reason}" + (f" - {hinted}" if hinted else "")
    for pool, why in status.jobs_refused.items():
        yield f"  sbatch refuses jobs for {groups_of(pool)}: {why}"


def hook_lines(hooks: Iterable[Delivery]) -> list[str]:
    """Return a line for each hook, callback or output of metrics that fails: hook mail.sh: 3 of 12 failed, ..."""
    return [
        f"{one.name}: {one.failed} of {one.done} failed, {one.dropped} dropped: {one.last_error or 'it is too slow'} "
        "(logs/observer.log)"
        for one in hooks
        if one.failed or one.dropped
    ]


def _group(number_: int | None, status: RunStatus) -> GroupStatus | None:
    return status.groups[number_] if number_ is not None and number_ < len(status.groups) else None


def _who(record: records.JournalRecord, status: RunStatus) -> str:
    """Return what the group or the other unit of a record is called."""
    number_ = getattr(record, "group", None)
    if number_ is None:
        name: str = getattr(record, "unit", "")
        return "the Lighthouse" if name == LIGHTHOUSE else name
    group = _group(number_, status)
    return called(group) if group is not None else f"group {number_}"


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def ended(outcome: str) -> str:
    """Return the verb for the outcome of a run."""
    return {"stopped": "was stopped", "running": "has not finished", "lost": "is lost"}.get(outcome, outcome)


def phase(group: GroupStatus, status: RunStatus) -> str:
    """Return the phase for a table. In a finished run, a group that had not ended by itself shows as "stopped"."""
    over = status.outcome != "running" and group.phase not in OVER
    return "stopped" if over else group.phase.value
