"""Slurm's text, in and out: command lines as argument lists, and what Slurm prints as values. Nothing is run here.

The facts behind each choice were measured on Slurm 22.05.8 and 24.11.5.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ftslurm.core.state.events import Looked, NodeFate
from ftslurm.core.state.model import Cause, Evidence, Job
from ftslurm.protocol.exit_codes import ExitCode
from ftslurm.security.json_text import read_object
from ftslurm.security.names import NODE, is_node

BUSY = ("Unable to contact", "Socket timed out", "temporarily", "Connection refused")  # slurmctld, for a moment

# Left in the environment, these change what a nested srun does: SLURM_MEM_PER_NODE blocks the second step,
# SLURM_NTASKS doubles the tasks, SLURM_CPUS_PER_TASK refuses the step on 24.11. So srun starts from a clean slate.
_MOST_HOSTS = 1 << 16  # a list of more is nobody's cluster
_LONGEST_NAME = 255
_HOSTS = re.compile(r"([^\[\],\s]|\[[0-9]{1,18}(-[0-9]{1,18})?(,[0-9]{1,18}(-[0-9]{1,18})?)*\])*")
_SCRUBBED = ("SLURM_", "SRUN_", "SBATCH_", "SLURMD_", "SUBMITIT_")
_SCRUBBED_NAMES = frozenset({"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"})
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER"})


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what an enclosing Slurm job, srun or submitit left in it."""
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT or not (name.startswith(_SCRUBBED) or name in _SCRUBBED_NAMES)
    }


def srun_command(
    *, job: str, name: str, nodes: Sequence[str], tasks_per_node: int, gpus: bool, chdir: str, extra: Sequence[str]
) -> list[str]:
    """The srun line of one step, without the program it runs.

    Every step overlaps and asks for no CPUs or memory of its own, because the controller, not Slurm, places the
    groups: an --exact step can block for ever after a node has died. --kill-on-bad-exit=0 because the controller is
    quicker (0.1 s against KillWait, 30 s, if a task ignores SIGTERM). --wait=0 overrides a site's WaitTime, which
    would kill the ranks that take longer to finish than the first.

    Args:
        job: id of the Slurm job whose nodes are used.
        gpus: False hides the job's GPUs; True shows all of the job's on each node, and the worker takes its share.
        extra: further arguments of the user's (cluster.srun).
    """
    return [
        "srun",
        f"--jobid={job}",
        "--overlap",
        "--mem=0",
        "--cpu-bind=none",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--distribution=block",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes) * tasks_per_node}",
        f"--ntasks-per-node={tasks_per_node}",
        f"--nodelist={','.join(nodes)}",
        *([] if gpus else ["--gres=none"]),
        f"--job-name={name}",
        f"--chdir={chdir}",
        *extra,
    ]


def expand_hosts(text: str) -> list[str]:
    """Slurm's host list, written out: "n[01-03,7],m1" -> n01 n02 n03 n7 m1.

    Raises:
        ValueError: brackets that do not match, a range that is none, or more names than any cluster has.
    """
    out: list[str] = []
    for part in re.split(r",(?![^\[\]]*\])", text.strip()):
        if not _HOSTS.fullmatch(part):
            raise ValueError(f"not a host list: {text!r:.80}")
        names = [""]
        for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\[\]]+)\]", part):
            ends = [literal] if literal else _numbers(ranges, _MOST_HOSTS // len(names))
            names = [name + end for name in names for end in ends]
            if len(names[0]) > _LONGEST_NAME:
                raise ValueError(f"not a host list: {text!r:.80}")
        out += names if part else []
        if len(out) > _MOST_HOSTS:
            raise ValueError(f"too many hosts: {text!r:.80}")
    return out


def _numbers(ranges: str, most: int) -> list[str]:
    out = list[str]()
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        span = range(int(low), int(high or low) + 1)
        if not span:
            raise ValueError(f"not a range of hosts: {part!r}")
        if len(out) + len(span) > most:
            raise ValueError(f"too many hosts: {ranges!r:.60}")
        out += [str(n).zfill(len(low)) for n in span]
    return out


_TASK_LINE = re.compile(
    rf"srun: error: (?P<node>{NODE}): tasks? (?P<task>[0-9]{{1,9}})(?:[,\-][0-9,\-]*)?: (?P<what>.+)"
)
_NODE_LINE = re.compile(r"srun: error: Node failure on (?P<nodes>\S+)")
_NO_LAUNCH = re.compile(rf"srun: error: Task launch for \S+ failed on node (?P<node>{NODE}): (?P<why>.+)")
_SILENT = ("ommunication", "timed out", "refused", "No route", "Unable to connect")
_CANCELLED = re.compile(
    rf"\*\*\* (?:STEP|JOB) (?P<step>\S+) ON (?P<node>{NODE}) CANCELLED AT \S+(?: DUE TO (?P<why>[^*]+?))? \*\*\*"
)
_DUE_TO = {
    "TIME LIMIT": Cause.TIME_LIMIT,
    "PREEMPTION": Cause.PREEMPTED,
    "JOB REQUEUE": Cause.PREEMPTED,
    "NODE FAILURE": Cause.NODE_LOST,
}
_WORDS = {
    "Killed": signal.SIGKILL,
    "Terminated": signal.SIGTERM,
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
    "Interrupt": signal.SIGINT,
    "Hangup": signal.SIGHUP,
}


def read_srun(line: str) -> Evidence | None:
    """What a line of srun's stderr says about a task or node; None if it says nothing of the kind.

    srun prints it 0.1 s after the fault, its exit code comes much later and says 137 or 143 whatever happened.
    """
    if match := _CANCELLED.search(line):
        words = match["why"] or ""
        cause = next((c for words_, c in _DUE_TO.items() if words_ in words), Cause.CANCELLED)
        error = f"Slurm cancelled the step{' due to ' + words.lower() if words else ' (scancel)'}"
        return Evidence(None, match["node"], cause=cause, node_lost=cause is Cause.NODE_LOST, error=error)
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
    for words, number in _WORDS.items():
        if what.startswith(words):
            return Evidence(task, match["node"], signal=int(number))
    return Evidence(task, match["node"], error=what)


def out_of_time(line: str, job: str) -> bool:
    """Whether srun says that a step has ended because the time of this job is over: a moment before the job is told."""
    match = _CANCELLED.search(line)
    over = match is not None and (match["why"] or "").strip() == "TIME LIMIT"
    return over and match is not None and match["step"].partition(".")[0] == job


def not_adopted(evidence: Evidence) -> Evidence | None:
    """The same sign from an srun that only leads to the step of an earlier controller: what it says of the step."""
    if evidence.code == ExitCode.NO_GUARD:
        error = "the step has not outlived its controller, or cannot be reached: see its step.log"
        return replace(evidence, code=None, cause=Cause.UNKNOWN, error=error, doubtful=True)
    if evidence.code == ExitCode.END_REPORTED:
        return None
    if evidence.code == ExitCode.DETACHED:
        return replace(evidence, code=None, signal=int(signal.SIGKILL), error="its guard has been killed")
    return evidence


# What srun says when it is the node, and not slurmctld, that does not let a step start.
_UNREACHABLE = ("failed on node", "Requested node configuration is not available", "Required node not available")


def read_look(node: str, text: str) -> Looked:
    """What a probe (ftslurm.guard.probe, started through srun) has brought back.

    A probe that could not run its program has reached the node all the same.
    """
    for line in text.splitlines():
        steps = (read_object(line) or {}).get("steps") if line.startswith("{") else None
        if isinstance(steps, dict):
            return Looked(node, True, tuple((step, str(states)) for step, states in steps.items()))
    if any(words in text for words in _UNREACHABLE):
        return Looked(node, False)
    return Looked(node, True) if _TASK_LINE.search(text) else Looked(node, False, refused=True)


def node_state(node: str) -> list[str]:
    """The command that asks for one node's state and the reason an administrator gave."""
    return ["sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%T|%E"]


def node_fate(node: str) -> list[str]:
    """The command that asks for all that is known of one node, in one line."""
    return ["scontrol", "--oneliner", "show", "node", node]


def read_fate(node: str, text: str) -> NodeFate | None:
    """Whether a node is down or silent, and when it or its slurmd was last started; None: Slurm has said nothing."""
    words = dict(word.partition("=")[::2] for word in text.split())
    state = words.get("State")
    if state is None:
        return None
    starts = [_unix(words.get(name, "")) for name in ("BootTime", "SlurmdStartTime")]
    down = any(word in state for word in ("DOWN", "*", "NOT_RESPONDING", "FAIL"))
    return NodeFate(node, down, max((start for start in starts if start is not None), default=None))


def job_state(job: str) -> list[str]:
    """The command that asks for a job's state, how often it has been requeued, and why it is in that state."""
    return ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--Format=State:20,RestartCnt:10,Reason:40"]


def is_batch(environ: Mapping[str, str]) -> bool:
    """Whether a process runs in a batch job, which Slurm can start again, and not in an allocation of salloc's."""
    return "SLURM_JOB_ID" in environ and environ.get("ENVIRONMENT") == "BATCH"


_FIELDS = (
    "JobArrayID", "JobID", "State", "Reason", "NodeList", "StartTime", "EndTime", "PreemptTime", "ArrayJobID",
    "Comment",
)  # fmt: skip
# All jobs of the user, because a request for one job, or for all, costs slurmctld more than one for a user's.
QUEUE = [
    "squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}",
    "--Format=" + ",".join(f"{field}:|" for field in _FIELDS),
]  # fmt: skip


def read_queue(text: str, run_mark: str, array: str | None, known: Mapping[str, int]) -> list[Job]:
    """The jobs of one run that give groups their nodes, among all that QUEUE has printed.

    Other runs' jobs, and everybody's who calls a job as we do, are told apart by the comment, which has the run's id.
    That a job is preempted shows in PreemptTime alone if it has no time limit: squeue then hides its new, near end.

    Args:
        run_mark: what the comment of its jobs begins with (RunDir.mark).
        array: a job array that was submitted by hand, whose tasks are this run's.
        known: the pool of each job that we have submitted ourselves, by name.

    Raises:
        ValueError: what it says of one of these jobs makes no sense.
    """
    out = []
    for line in text.splitlines():
        fields = line.strip().split("|", len(_FIELDS) - 1)
        if len(fields) != len(_FIELDS):
            continue
        name, job, state, reason, nodes, began, ends, cut, base, comment = (field.strip() for field in fields)
        mark, _, pool = comment.removesuffix("|").rpartition(":")
        if mark == run_mark and re.fullmatch("[0-9]{1,9}", pool):
            number = int(pool)
        elif name in known or (array is not None and base == array and name != base):
            number = known.get(name, 0)
        else:
            continue
        state = "RUNNING" if state == "SIGNALING" else state  # its batch process is being sent a signal
        runs = state == "RUNNING"
        hosts = tuple(expand_hosts(nodes)) if runs and nodes else ()
        if not all(is_node(host) for host in hosts):
            raise ValueError(f"not the nodes of job {name}: {nodes!r:.80}")
        waits = reason if state == "PENDING" else ""
        start, end, told = (_unix(began), _unix(ends), _unix(cut)) if runs else (None, None, None)
        preempted = start is not None and told is not None and told >= start  # else: before it was requeued
        job = job if runs else ""
        out.append(Job(name, number, state, job, hosts, waits, began=start, ends=end, preempted=preempted))
    return out


def _unix(text: str) -> float | None:
    """Slurm's time, which is local, in seconds of unix time; None: it is none."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True)
class Partition:
    """One row of sinfo: nodes of a partition that are alike."""

    name: str
    default: bool
    up: bool
    nodes: int
    cpus: int
    gpus: int


SINFO = ["sinfo", "--all", "--noheader", "--format=%P|%a|%D|%c|%G"]


def read_sinfo(text: str) -> list[Partition]:
    """The rows that SINFO prints. A partition with nodes of several kinds has several."""
    out = []
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 5:
            continue
        name, state, nodes, cpus, gres = fields
        if (count := re.fullmatch("[0-9]{1,9}", nodes)) is None:
            continue
        per_node = int(re.sub("[^0-9]", "", cpus)[:9] or 0)
        up, default = state == "up", name.endswith("*")
        out.append(Partition(name.rstrip("*"), default, up, int(count[0]), per_node, read_gpus(gres)))
    return out


def read_gpus(gres: str) -> int:
    """GPUs in Slurm's generic-resource notation: "gpu:a100:4(S:0-1),nvme:1" -> 4."""
    total = 0
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        words = part.split(":")
        if words[0] == "gpu":
            total += int(words[-1]) if re.fullmatch("[0-9]{1,9}", words[-1]) else 1
    return total


def partition_names(rows: Iterable[Partition]) -> str:
    """The partitions there are, for error messages."""
    return ", ".join(dict.fromkeys(row.name for row in rows)) or "none"
