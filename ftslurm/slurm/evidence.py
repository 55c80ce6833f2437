"""Parse what Slurm says of a run's own steps, nodes and jobs into the core's evidence, events and jobs. Pure.

Malformed lines are skipped or raise, as each function states: no output can harm the controller. The texts were
recorded on Slurm 22.05.8 and 24.11.5. What Slurm says of a cluster is in slurm/parse.py.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping
from dataclasses import replace

from ftslurm.core.state.events import SRUN_ABORTS, Looked, NodeFate, NodeResult, NodesChecked
from ftslurm.core.state.model import Evidence, Job
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.exit_codes import ExitCode
from ftslurm.security.json_text import is_finite, read_object
from ftslurm.security.names import NODE, is_job, is_node
from ftslurm.slurm.commands import QUEUE_FIELDS
from ftslurm.slurm.hosts import expand_hosts
from ftslurm.slurm.parse import NO_OUTPUT, STATES, plain, read_rows, running

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
        return Evidence(None, None, out_of_memory=True, error=line.strip())
    if match := _IO_ERROR.search(line):
        return Evidence(None, None, error=f"{SRUN_ABORTS}: {match[0]}")
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


def out_of_time(line: str, job: str) -> bool:
    """Return whether an srun line says that this job's time limit ended a step; Slurm signals the job shortly after."""
    match = _CANCELLED.search(line)
    return match is not None and match["why"] == "TIME LIMIT" and match["step"].partition(".")[0] == job


def read_attach(evidence: Evidence) -> Evidence | None:
    """Convert the failure of an attaching srun to evidence about the step it attaches to; None: it is none."""
    if evidence.code == ExitCode.NO_GUARD:
        error = "the step has not outlived its controller, or cannot be reached: see its step.log"
        return replace(evidence, code=None, cause=Cause.UNKNOWN, error=error)
    if evidence.code == ExitCode.END_REPORTED:
        return None
    if evidence.code == ExitCode.DETACHED:
        return replace(evidence, code=None, signal=int(signal.SIGKILL), error="its guard has been killed")
    return evidence


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


def read_node_checks(nodes: tuple[str, ...], text: str, one_machine: bool) -> NodesChecked:
    """Parse the output of node checks (ftslurm.guard.node_check, started through srun).

    Args:
        one_machine: all nodes are this machine, so that the first result is that of all.
    """
    results = dict[str, NodeResult]()
    for line in text.splitlines():
        found = (read_object(line) or {}) if line.startswith("{") else {}
        node, seconds, log, reason = (found.get(key) for key in ("node", "seconds", "log", "reason"))
        if found.get("type") != "node_check" or node not in nodes or not isinstance(log, str):
            continue
        said = reason is None or (isinstance(reason, str) and reason != "")
        if said and isinstance(seconds, (int, float)) and is_finite(seconds):
            for name in nodes if one_machine else (str(node),):
                results[name] = NodeResult(name, seconds, log, reason)
    if len(results) == len(nodes):
        return NodesChecked(nodes, tuple(results.values()))
    words = [line.removeprefix("srun: error: ").strip() for line in text.splitlines() if line.startswith("srun: error")]
    probe = read_probe(nodes[0], text)
    refused = probe.refused and not results and bool(words)
    unreachable = not probe.reachable and not probe.refused
    return NodesChecked(nodes, tuple(results.values()), "; ".join(words[-2:])[:500], refused, unreachable)


# --- scontrol and squeue ---------------------------------------------------------------------------------------------


def read_node_fates(text: str) -> list[NodeFate]:
    """Parse the output of `commands.node_records`; a line that is no record is skipped."""
    fates = []
    for line in text.splitlines():
        words = dict(word.partition("=")[::2] for word in reversed(line.split()))  # reversed: the first of two counts
        node, state = words.get("NodeName", ""), words.get("State", "")
        down = any(word in state for word in ("DOWN", "*", "NOT_RESPONDING", "FAIL", "POWER"))
        why = re.match(r"(.*?) \[([^\s@]+)@(\S+)\]", line.partition(" Reason=")[2])
        reason = f"{why[1]} ({why[2]}, {why[3]})" if why else ""
        fates += [NodeFate(node, down, state.lower(), reason)] if state and is_node(node) else []
    return fates


def read_queue(text: str, run_mark: str, array: str | None, known: Mapping[str, int]) -> tuple[list[Job], list[str]]:
    """Parse the output of `commands.queue` into the jobs that provide one run's groups with nodes.

    Return also the lines that cannot be read and may be of such a job: no job is gone because it is not shown then.

    The run's id in a job's comment identifies the run's jobs. If a job has no time limit, only PreemptTime shows that
    it is preempted: squeue then hides its new, near end.

    Args:
        run_mark: the beginning of the comment of the run's jobs (RunDir.mark).
        array: a job array that was submitted by hand and whose tasks belong to this run.
        known: the pool of each job that the run has submitted, by name.
    """
    out = list[Job]()
    rows, unread = read_rows(text, len(QUEUE_FIELDS), is_job)
    for row in rows:
        name, job, state, reason, nodes, began, ends, cut, base, comment = row
        mark, _, pool = comment.removesuffix("|").rpartition(":")
        if mark == run_mark and re.fullmatch("[0-9]{1,9}", pool):
            number = int(pool)
        elif name in known or (array is not None and base == array and name != base):
            number = known.get(name, 0)
        else:
            continue
        state = running(state)
        runs, unwritten = state == "RUNNING", state == "FAILED" and reason.startswith(NO_OUTPUT)
        try:
            hosts = tuple(expand_hosts(nodes)) if runs or unwritten else ()
        except ValueError:
            hosts = ()
        if not STATES.fullmatch(state) or not is_job(job) or runs > bool(hosts) or not all(map(is_node, hosts)):
            unread.append("|".join(row))
            continue
        waits = reason if state == "PENDING" else ""
        start, end, told = (_unix(began), _unix(ends), _unix(cut)) if runs else (None, None, None)
        preempted = start is not None and told is not None and told >= start  # else: before it was requeued
        job = job if runs else ""
        out.append(Job(name, number, state, job, hosts, waits, began=start, ends=end, preempted=preempted))
    return out, unread


def _unix(text: str) -> float | None:
    """Convert Slurm's time, which is local, to Unix time; None if the text is no time."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None
