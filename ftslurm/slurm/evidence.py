"""Parse what Slurm says of a run's own steps and nodes, and of its controller's job, into evidence and events. Pure.

Malformed lines are skipped or raise, as each function states: no output can harm the controller. The texts were
recorded on Slurm 22.05.8 and 24.11.5. What Slurm says of a cluster is in slurm/parse.py.
"""

from __future__ import annotations

import re
import signal
import time

from ftslurm.config.schema import Config
from ftslurm.core.state.events import Looked, NodeFate, StopAsked
from ftslurm.core.state.model import SLURM, Evidence, Requester, RunOutcome
from ftslurm.protocol.causes import Cause, Says
from ftslurm.security.json_text import read_object
from ftslurm.security.names import NODE, is_node
from ftslurm.slurm.hosts import expand_hosts
from ftslurm.slurm.parse import plain

# --- srun ------------------------------------------------------------------------------------------------------------

_TASK_LINE = re.compile(
    rf"srun: error: (?P<node>{NODE}): tasks? (?P<task>[0-9]{{1,9}})(?:[,\-][0-9,\-]*)?: (?P<what>.+)"
)
_NODE_LINE = re.compile(r"srun: error: Node failure on (?P<nodes>\S+)")
_NO_LAUNCH = re.compile(rf"srun: error: Task launch for \S+ failed on node (?P<node>{NODE}): (?P<why>.+)")
_IO_ERROR = re.compile(r"aborting, io error with slurmstepd on node [0-9]{1,9}")  # the number is not the node's name
_SILENT = ("ommunication", "timed out", "refused", "No route", "Unable to connect")
_CANCELLED = re.compile(
    rf"\*\*\* (?:STEP|JOB) (?P<step>\S+) ON (?P<node>{NODE}) CANCELLED AT \S+(?: (?i:due to) (?P<why>[^*]+?))? \*\*\*"
)
_STUCK = re.compile(rf"\*\*\* STEPD TERMINATED ON (?P<node>{NODE}) AT \S+ DUE TO (?P<why>[^*]+?) \*\*\*")
_OUT_OF_MEMORY = re.compile(r"(?i)detected [0-9]{1,9} oom.kill event|\bOOM Killed\b")
_TASK_NO_LAUNCH = re.compile(r"srun: error: task (?P<task>[0-9]{1,9}) launch failed: (?P<why>.+)")
_DUE_TO = {
    "TIME LIMIT": Cause.TIME_LIMIT,
    "PREEMPTION": Cause.PREEMPTED,
    "JOB REQUEUE": Cause.PREEMPTED,
    "NODE FAILURE": Cause.NODE_LOST,
}
_SIGNALS = {f"{signal.strsignal(number)}": number for number in signal.Signals}


def read_srun(line: str) -> Evidence | None:
    """Parse a line of srun's stderr into evidence about a task or a node; None if the line has none.

    srun prints the line 0.1 s after the fault. Its exit code comes much later and is 137 or 143 for any cause.
    """
    line = plain(line)
    if match := _CANCELLED.search(line):
        words = match["why"] or ""
        if words == "TASK FAILURE":  # --kill-on-bad-exit: another line tells of that task
            return None
        by_hand = not words or words.startswith("SIGNAL ")  # which names the signal since Slurm 25.05
        cause = next((c for words_, c in _DUE_TO.items() if words_ in words), Cause.CANCELLED)
        error = f"Slurm cancelled the step{' (scancel)' if by_hand else ' due to ' + words.lower()}"
        return Evidence(None, match["node"], cause=cause, node_lost=cause is Cause.NODE_LOST, error=error)
    if match := _STUCK.search(line):
        error = f"Slurm gave up the step on {match['node']}: {match['why'].lower()}"
        return Evidence(None, match["node"], error=error, cause=Cause.UNKNOWN, stuck=True)
    if match := _TASK_NO_LAUNCH.search(line):
        error = f"Slurm cannot start task {match['task']}: {match['why'].strip()}"
        return Evidence(int(match["task"]), None, error=error, started=False)
    if _OUT_OF_MEMORY.search(line):
        return Evidence(out_of_memory=True, error=line.strip())
    if match := _IO_ERROR.search(line):
        says = frozenset({Says.ABORT, Says.ECHO})
        return Evidence(error=f"srun aborts the step: {match[0]}", says=says)
    if match := _NO_LAUNCH.search(line):
        error = f"Slurm cannot start a step on {match['node']}: {match['why'].strip()}"
        lost = any(words in match["why"] for words in _SILENT)
        return Evidence(None, match["node"], node_lost=lost, error=error, started=False)
    if match := _NODE_LINE.search(line):
        try:
            first = next(iter(expand_hosts(match["nodes"])), None)
        except ValueError:
            return None
        return Evidence(None, first, node_lost=True, error=line.strip()) if is_node(first) else None
    match = _TASK_LINE.search(line)
    if match is None:
        return None
    task, what = int(match["task"]), match["what"].strip()
    if code := re.match(r"Exited with exit code ([0-9]{1,3})\b", what):
        return Evidence(task, match["node"], code=int(code[1]))
    if what.startswith("Out Of Memory"):
        return Evidence(task, match["node"], out_of_memory=True, error=what)
    for words, number in _SIGNALS.items():
        if what.startswith(words):
            return Evidence(task, match["node"], signal=int(number))
    return Evidence(task, match["node"], error=what)


# What srun says of a step that is cancelled because its job ends, as squeue will say it of the job a moment later.
_JOB_ENDS = {"TIME LIMIT": ("TIMEOUT", 0, ""), "JOB REQUEUE": ("REQUEUED", 1, "")}


def job_ends(line: str, job: str) -> tuple[str, int, str] | None:
    """Return for `asked_by_slurm` why an srun line says that this job ends; Slurm signals the job shortly after."""
    match = _CANCELLED.search(line)
    return _JOB_ENDS.get(match["why"] or "") if match and match["step"].partition(".")[0] == job else None


# srun's errors if the node, not slurmctld, prevents the start of a step.
_UNREACHABLE = ("failed on node", "Requested node configuration is not available", "Required node not available")


def read_probe(node: str, text: str) -> Looked:
    """Parse the output of a probe (ftslurm.guard.probe, started through srun).

    A probe whose program could not run has nevertheless reached the node.
    """
    for line in text.splitlines():
        steps = (read_object(line) or {}).get("steps") if line.startswith("{") else None
        if isinstance(steps, dict):
            return Looked(node, True, tuple((step, str(states)) for step, states in steps.items()))
    if any(words in text for words in _UNREACHABLE):
        return Looked(node, False)
    return Looked(node, True) if _TASK_LINE.search(text) else Looked(node, False, refused=True)


# The errors of Slurm's commands if a job has ended in which a step is to start, or that is to be changed or cancelled.
# A credential that has expired is no such error: a clock is wrong. Nor is "Expired or invalid job": srun says that too
# if it cannot reach slurmctld.
_NO_JOB = re.compile("Invalid job id|[Jj]ob [^ ]+ has expired|already complet|node configuration is not available")


def no_job(text: str) -> bool:
    """Return whether one of Slurm's commands says that a job has ended."""
    return _NO_JOB.search(text) is not None


_DOWN = ("down", "*", "not_responding", "fail", "power")
# Words of a state. One without any of them is of a newer Slurm, and changes nothing.
_DRAINS = re.compile(r"\b(drain|maint|reboot)")
_SERVES = re.compile(r"\b(idle|mix|alloc|comp|reserved|planned)")


def node_fate(node: str, state: str, reason: str = "") -> NodeFate:
    """Return what a node's state means.

    Args:
        state: in Slurm's words, as MIXED+DRAIN.
        reason: an administrator's, with name and time.
    """
    state = state.lower()
    drained = True if _DRAINS.search(state) else False if _SERVES.search(state) else None
    why = f"Slurm says {state}" + (f": {reason}" if reason else "")
    return NodeFate(node, any(word in state for word in _DOWN), drained, why)


# --- jobs -------------------------------------------------------------------------------------------------------------


def asked_by_slurm(
    seen: tuple[str, int, str], config: Config, restarts: int = 0, batch: bool = False, by: Requester = SLURM
) -> list[StopAsked]:
    """Return why Slurm ends the run, from squeue's output for the job; empty if that does not show the cause.

    Args:
        seen: the job's state, how often it has been requeued, and Slurm's reason. While the job ends, its state is only
            COMPLETING; the reason has the cause.
        restarts: how often it had been requeued when this controller began.
        batch: as in asked_by_signal.
        by: the source of this.
    """
    if seen[1] > restarts:
        reason = "Slurm has requeued the job: the run goes on from the newest checkpoint when it starts again"
        return [StopAsked(reason, SLURM, Cause.PREEMPTED, RunOutcome.REQUEUED)]
    if "PREEMPTED" in seen:
        reason = (
            "Slurm has preempted the job for another one: ask for a partition or QOS that is not (cluster.sbatch.qos)"
        )
        outcome = RunOutcome.GOES_ON if seen[0] == "RUNNING" and outlives_job(config, batch) else RunOutcome.STOPPED
        return [StopAsked(reason, SLURM, Cause.PREEMPTED, outcome)]
    if "TIMEOUT" in seen or "TimeLimit" in seen:
        reason = f"the time limit of the Slurm job is over (cluster.time={config.cluster.time or 'the default'})"
        outcome = RunOutcome.GOES_ON if outlives_job(config, batch) else RunOutcome.STOPPED
        return [StopAsked(reason, by, Cause.TIME_LIMIT, outcome)]
    return []


def outlives_job(config: Config, batch: bool) -> bool:
    """Return whether the run goes on in the job's next start. `batch`: as in asked_by_signal."""
    return batch and config.cluster.requeue and config.cluster.kind == "slurm"


def time_of(text: str) -> float | None:
    """Convert Slurm's time, which is local, to Unix time; None if the text is no time."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None
