"""What does a person read about an event? One line, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.core.state.model import Phase
from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.monitor import sentences_jobs
from ftslurm.monitor.status import RunStatus
from ftslurm.monitor.status_groups import GroupStatus
from ftslurm.monitor.status_standbys import is_standby
from ftslurm.monitor.verdict import ORDERLY, mishap, verdict
from ftslurm.protocol.stages import Stage
from ftslurm.run.first_step_report import sentence
from ftslurm.run.journal import Event, integer, names, number, text


def describe(event: Event, status: RunStatus) -> str | None:
    """The line for one event, where `status` already contains it; None for those the live table shows well enough."""
    match event.get("event"):
        case "run_started":
            return _started(event)
        case "allocation_granted" if "pool" not in event:  # the controller's own
            return f"allocation {event.get('allocation')}: {few(names(event, 'nodes'), 8)}"
        case "pilot_restarted":
            return f"job {event.get('allocation')}: another pilot is started on {event.get('node')}{_because(event)}"
        case str(name) if name.startswith("allocation_"):
            return sentences_jobs.describe(event, status)
        case "scaled" | "scale_refused":
            return sentences_jobs.scaled(event)
        case "step_launched":
            return _launched(event, status)
        case "step_ready" if event.get("unit") == LIGHTHOUSE:
            return f"the Lighthouse is up after {seconds(number(event, 'seconds'))}"
        case "step_ready" if is_standby(event):
            nodes = next((u.nodes for u in status.standbys if u.name == event.get("unit")), ())
            return f"{event['unit']} is warm on {few(nodes)} after {seconds(number(event, 'seconds'))}"
        case "step_adopted":
            step = integer(event, "step")
            return f"{event.get('unit')} runs on under this controller" + ("" if step is None else f", at step {step}")
        case "controller_left":
            return f"this controller makes way{_because(event)}"
        case "group_joined":
            return _joined(event, status)
        case "serving" | "session_opened":
            return _works(event, status)
        case "step_exited":
            return _exited(event, status)
        case "launch_refused":
            who, again_s = (
                _unit(event) if event.get("group") is None else _named(event, status),
                number(event, "again_s"),
            )
            again = f", which is tried again in {seconds(again_s)}" if again_s is not None else ""
            return f"{who}: Slurm refuses the launch{again}{_because(event)}"
        case "restart_scheduled":
            wait = (number(event, "due") or 0.0) - (number(event, "time") or 0.0)
            if wait < 1:
                return None  # the launch follows at once and says it
            return f"{_named(event, status)}: attempt {event.get('attempt')} will start in {seconds(wait)} (backoff)"
        case "group_waits" if sentences_jobs.tells(status):
            return None
        case "group_waits":
            return f"{_named(event, status)} waits for {text(event, 'reason') or 'a node'}"
        case "group_given_up":
            return f"{_named(event, status)} is given up{_because(event)}"
        case "node_excluded":
            return f"node {event.get('node')} is left out{_because(event)}"
        case "node_restored":
            return f"node {event.get('node')} is used again{_because(event)}"
        case "node_silent":
            return f"nothing is heard of node {event.get('node')} for {seconds(number(event, 'seconds'))}: looking"
        case "hang_found":
            return _hang(event)
        case "warning":
            return f"warning: {text(event, 'text')}"
        case "controller_error":
            return mishap(event)
        case "no_first_step":
            return f"warning: {sentence(event)}"
        case "fault_injected":
            step = integer(event, "step")
            of_group = step is not None and event.get("group") is not None
            return f"drill: {fault(event)}" + (f" at step {step}" if of_group else "")
        case "fault_refused":
            return f"drill refused, {fault(event)}{_because(event)}"
        case "quorum_refused":
            return f"the Lighthouse waits{_because(event)}"
        case "checkpoint_restored":
            return f"group {event.get('group')} resumes from the checkpoint of step {event.get('step')}"
        case "checkpoint_failed":
            why = text(event, "error") or "unknown"
            return f"the checkpoint of step {event.get('step')} could not be saved, the training goes on: {why}"
        case "full_restart":
            return _full_restart(event)
        case "command" if (text(event, "what") or "").startswith("inject"):
            return None  # what comes of it is told
        case "command":
            return f"{event.get('what')}: {text(event, 'reason') or event.get('by')}"
        case "run_requeued":
            step = integer(event, "steps")
            return f"the run stops at step {status.step if step is None else step}{_because(event)}"
        case "roll_over":
            most = seconds(number(event, "seconds"))
            return f"a checkpoint is saved, within {most}, and then the job is started again{_because(event)}"
        case "run_finished":
            counts = f"{plural(status.step, 'step')}, {plural(status.restarts, 'restart')}"
            return f"the run {ended(status.outcome)} ({counts}){_because(event)}"
    return None


def _started(event: Event) -> str:
    groups, workers = integer(event, "groups"), integer(event, "workers")
    said = [plural(groups, "group") if groups is not None else "groups unknown"]
    if workers is not None:
        said[0] += f" of {plural(workers, 'worker')}"
    if event.get("cluster") == "local":
        said.append("on this machine")
    elif event.get("job_id") is not None:
        said.append(f"Slurm job {event['job_id']}")
    crashed = text(event, "after")
    how = "goes on" if crashed or (integer(event, "leader") or 0) > 1 else "starts"
    return f"run {text(event, 'run_id') or ''} {how}: {', '.join(said)}" + (f" ({crashed})" if crashed else "")


def _launched(event: Event, status: RunStatus) -> str | None:
    attempt, nodes = integer(event, "attempt") or 0, few(names(event, "nodes"))
    group = _group(event, status)
    if is_standby(event):
        return None  # told when it is warm
    if attempt > 0 and (group is None or group.restarts > 0):
        what = called(group) if group else _unit(event)
        down = number(event, "down_s")
        ended_ = "ended" if group and group.last_cause in ORDERLY else "failed"
        after = "" if down is None else f", {seconds(down)} after attempt {attempt - 1} {ended_}"
        if text(event, "standby"):
            return f"{what} goes on as attempt {attempt} on {nodes} with the warm standby{after}"
        where = f"on {nodes}" if names(event, "nodes") else "beside the controller"
        return f"{what} relaunched as attempt {attempt} {where}{after}"
    if group is None or status.first_step is not None or any(g.attempt is None for g in status.groups):
        return None  # told once, when all are; of one that comes later its first step is news
    everywhere = few(tuple(dict.fromkeys(node for g in status.groups for node in g.nodes)))
    count = len(status.groups)
    return f"{'the group' if count == 1 else f'all {count} groups'} launched on {everywhere}"


def _full_restart(event: Event) -> str:
    step, lost = integer(event, "checkpoint_step"), integer(event, "step")
    source = f"the checkpoint of step {step}" if step is not None else text(event, "checkpoint") or "a checkpoint"
    back = 0 if step is None or lost is None else lost - step  # from the last that was heard; it may have been further
    cost = f", {plural(back, 'step')} back or a little more" if back > 0 else ""
    return f"full restart from {source}{cost}{_because(event)}"


def _works(event: Event, status: RunStatus) -> str | None:
    """A parameter server is up, or a group has its first session: told when it comes late."""
    if "seconds" not in event:
        return None  # a further session of a group that had one
    serves = event.get("event") == "serving"
    what = f"serves at {text(event, 'url')}" if serves else "has a session with a server"
    away, since_launch = number(event, "recovery_s"), number(event, "seconds")
    if away is not None:
        return f"{_named(event, status)} is back: it {what}, {seconds(away)} after it died"
    return f"{_named(event, status)} {what}, {seconds(since_launch)} after its launch"


def called(group: GroupStatus) -> str:
    """A group as people read of it: group 3, or group 0 (server) in a run of groups that differ."""
    return f"group {group.group}" + (f" ({group.role})" if group.role else "")


def _named(event: Event, status: RunStatus) -> str:
    group = _group(event, status)
    return called(group) if group is not None else f"group {event.get('group')}"


def _joined(event: Event, status: RunStatus) -> str | None:
    group, step = event.get("group"), integer(event, "step")
    group_ = _group(event, status)
    size = integer(event, "participants")
    quorum = f" ({plural(size, 'group')} in the quorum)" if size is not None else ""
    if integer(event, "attempt") and (group_ is None or group_.restarts > 0):
        away, since_launch = number(event, "recovery_s"), number(event, "seconds")
        if away is not None:
            left = group_ is not None and group_.last_cause in ORDERLY
            took = f" {seconds(away)} after it {'left' if left else 'died'}"
        else:
            took = f" {seconds(since_launch)} after its launch" if since_launch is not None else ""
        return f"group {group} is back: first step {step} committed{took}"
    if sum(g.joined or g.restarts > 0 for g in status.groups) == 1:
        since_launch = number(event, "seconds")
        after = f", {seconds(since_launch)} after the launch" if since_launch is not None else ""
        return f"training: step {step} committed{after}{quorum}"
    # The others were in the same first quorum; one that comes later is news.
    return None if step == status.first_step else f"group {group} has joined at step {step}{quorum}"


def _exited(event: Event, status: RunStatus) -> str | None:
    group, attempt, cause = _group(event, status), event.get("attempt"), event.get("cause")
    what = called(group) if group else _unit(event)
    at = f" at step {group.step}" if group and group.joined and group.step is not None else ""
    number_, step = integer(event, "group"), integer(event, "step")
    if group is None and number_ is not None and cause != "ok":  # it is not one of the run's any more
        return f"group {number_} has left the run" + ("" if step is None else f" (at step {step})")
    if group is None and cause in ("ok", "cancelled"):
        return None  # the Lighthouse goes when the groups have gone
    if cause == "ok":
        return f"{what} has finished"
    if cause in ORDERLY:
        left = None if group is None else sentences_jobs.parted(group, str(cause), text(event, "error"), status)
        return f"{what} {left or ORDERLY[str(cause)]}{at and f' ({at.strip()})'}"
    log = text(event, "log")
    if is_standby(event):
        return f"{what} died: {verdict(event)}" + (f" - log: {short_log(log)}" if log else "")
    before = "" if at or not group or status.lighthouse is None else " before its first step"
    return f"{what} attempt {attempt} died{at}{before}: {verdict(event)}" + (f" - log: {short_log(log)}" if log else "")


def fault(event: Event) -> str:
    """What a drill did, or was to do: "SIGSTOP of rank 0 of group 1"."""
    kind, group, rank, node = text(event, "kind") or "?", event.get("group"), event.get("rank"), text(event, "node")
    whom = "" if group is None else f"group {group}" if rank is None else f"rank {rank} of group {group}"
    if kind == "lighthouse":
        return "the Lighthouse killed"
    if kind == "node":
        return f"the node {node or ''}".rstrip() + (f" lost, with {whom}" if whom else " lost")
    if kind == "cancel":
        return "scancel of the step" + (f" of group {group}" if group is not None else "")
    said = {
        "kill": "SIGKILL",
        "term": "SIGTERM",
        "stop": "SIGSTOP",
        "exit": "an exit",
        "oom": "an out-of-memory end",
        "hang": "a hang",
    }
    return said.get(kind, kind) + (f" of {whom}" if whom else "")


def _hang(event: Event) -> str:
    """What stands still, where, and for how long."""
    step, stage, silent = integer(event, "step"), integer(event, "stage"), number(event, "silent_s")
    at = f" at step {step}" if step is not None else ""
    doing = f", {Stage(stage).doing}" if stage in tuple(Stage) else ""
    long = f", for {seconds(silent)}" if silent is not None else ""
    return f"group {event.get('group')} hangs{at}{doing}{long}{_because(event)}"


def standbys(status: RunStatus) -> str | None:
    """How the warm standbys are: "standbys: 1 ready on n4, 1 starting on n5"; None: there are none."""
    said = []
    for word, phases in _STANDBY_WORDS:
        units = [unit for unit in status.standbys if unit.phase in phases]
        if units:
            nodes = tuple(dict.fromkeys(node for unit in units for node in unit.nodes))
            said.append(f"{len(units)} {word}" + (f" on {few(nodes)}" if nodes else ""))
    return f"standbys: {', '.join(said)}" if said else None


_STANDBY_WORDS = (
    ("ready", (Phase.RUNNING,)),
    ("starting", (Phase.STARTING,)),
    ("waiting to start", (Phase.PENDING,)),
    ("ended", (Phase.STOPPING, Phase.SUCCEEDED, Phase.FAILED)),
)


def checkpoint(status: RunStatus) -> str | None:
    """What a full restart would go back to: "newest checkpoint: step 100"; None: nothing is known of any."""
    return None if status.checkpoint is None else f"newest checkpoint: step {status.checkpoint}"


def left_out(status: RunStatus) -> str | None:
    """The nodes that get no group for now: "left out: n2, n5"; None: there are none."""
    return f"left out: {few(status.excluded_nodes, 8)}" if status.excluded_nodes else None


def rate(steps_per_s: float) -> str:
    """Steps a second: 12.3, or 0.017 for a training that takes a minute for each."""
    return f"{steps_per_s:.1f}" if steps_per_s >= 0.95 else f"{steps_per_s:.2g}"


def phases(took: Mapping[str, float | None]) -> str:
    """Where the time of a recovery went: "detect 0.03 s, end 0.04, wait 0.00, start 0.2"."""
    known = [(name, took[name]) for name in took if took[name] is not None]
    return ", ".join(f"{name} {_brief(value)}{'' if n else ' s'}" for n, (name, value) in enumerate(known))


def _brief(value: float | None) -> str:
    value = value or 0.0
    return f"{value:.2f}" if value < 0.095 else f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def of_total(step: int, status: RunStatus) -> str:
    """A step, and of how many if that is known: 61/120."""
    return f"{step}/{status.total_steps}" if status.total_steps else str(step)


def short_log(path: str) -> str:
    """A log's path inside the run directory, whose own path has been told already."""
    return "logs/" + path.rpartition("/logs/")[2]


def _group(event: Event, status: RunStatus) -> GroupStatus | None:
    group = integer(event, "group")
    return status.groups[group] if group is not None and 0 <= group < len(status.groups) else None


def _unit(event: Event) -> str:
    return "the Lighthouse" if event.get("unit") == LIGHTHOUSE else str(event.get("unit"))


def _because(event: Event) -> str:
    reason = text(event, "reason")
    return f": {reason}" if reason else ""


def ended(outcome: str) -> str:
    """A verb for how the run stands."""
    return {"stopped": "was stopped", "running": "has not finished"}.get(outcome, outcome)


def phase(group: GroupStatus, status: RunStatus) -> str:
    """The phase as a table shows it: in a run that has finished, what had not ended by itself was stopped."""
    over = status.outcome != "running" and group.phase not in (Phase.SUCCEEDED, Phase.FAILED)
    return "stopped" if over else group.phase.value


def few(items: Sequence[str], most: int = 3) -> str:
    """Some names, and how many more."""
    if len(items) <= most:
        return ", ".join(items) or "no node"
    return f"{', '.join(items[: most - 1])} and {len(items) - most + 1} more"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def seconds(value: float | None) -> str:
    """A duration with as much precision as a person wants: 0.07 s, 2.1 s, 48 s, 3 min 20 s, 5 h 2 min."""
    if value is None:
        return "-"
    if value < 0.01:
        return "under 0.01 s"
    if value < 0.95:
        return f"{value:.2g} s"
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def clock(value: float) -> str:
    """A duration for a place that is redrawn all the time: 0:07, 12:40, 1:02:03."""
    minutes, second = divmod(max(0, round(value)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
