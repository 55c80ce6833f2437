"""Parse what Slurm says of a cluster, and of jobs of any users, into values. Pure; commands are in slurm/commands.py.

Malformed lines are skipped. The texts were recorded on Slurm 22.05.8 and 24.11.5. What Slurm says of a run's own steps,
nodes and jobs is parsed in slurm/evidence.py; a submission does without the core that it needs, and is faster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress

from ftslurm.protocol.job_states import TABLE
from ftslurm.protocol.value_class import Value
from ftslurm.security.names import NODE, is_job
from ftslurm.slurm.commands import FINDING_FIELDS
from ftslurm.slurm.hosts import expand_hosts

STATES = re.compile("|".join(TABLE))
UNKNOWN_STATE = "UNKNOWN"
# Reasons of a job whose node could not make its output file: of Slurm 22.05, and since 24.11.
NO_OUTPUT = ("JobLaunchFailure", "RaisedSignal:53")


def running(state: str) -> str:
    """Return the state of a job, RUNNING also while Slurm is signalling its processes."""
    return "RUNNING" if state == "SIGNALING" else state


# Colours, control characters, and the heading of each cluster if SLURM_CLUSTERS is set.
_COLOUR = r"\x1b\[[0-9;?]*[A-Za-z]"
_NOISE = re.compile(rf"^(?:{_COLOUR})*CLUSTER: .*\n?|{_COLOUR}|[\x00-\x08\x0b-\x1f\x7f]", re.MULTILINE)
_DAMAGED = re.compile(r"[^|]+\|.*|\|.+\|.+|[0-9_]+", re.DOTALL)

_BUSY = (
    "Unable to contact",
    "Socket timed out",
    "temporarily",
    "Connection refused",
    "establish a configuration source",  # it comes from slurmctld, or a file server
    "process configuration file",
)


def is_busy(text: str) -> bool:
    """Return whether an error says that slurmctld cannot be reached at the moment, so that a retry may succeed."""
    return any(words in text for words in _BUSY)


def plain(text: str) -> str:
    """Return the output of a command without colours, control characters and headings of clusters."""
    return _NOISE.sub("", text)


def read_rows(text: str, columns: int, begins: Callable[[str], object] = bool) -> tuple[list[list[str]], list[str]]:
    """Return the rows of a table with | between its columns, and the lines that may be damaged rows.

    A site's wrapper, a plugin or a warning may have printed lines around the rows: these are neither.

    Args:
        begins: whether a row may begin with such a cell.
    """
    rows, damaged = list[list[str]](), list[str]()
    for line in plain(text).split("\n"):
        cells = [cell.strip() for cell in line.split("|", columns - 1)]
        if len(cells) == columns and begins(cells[0]):
            rows.append(cells)
        elif _DAMAGED.fullmatch(line.strip()):
            damaged.append(line)
    return rows, damaged


_STATE = re.compile(
    rf"^({STATES.pattern})\|([0-9]{{1,9}})\|([^|\n]*)\|(?:([0-9][^|\n]*)\|([0-9][^|\n]*)\|)?", re.MULTILINE
)


def read_state(text: str) -> tuple[str, int, str]:
    """Parse the output of `commands.job_state`: the state, how often the job was requeued, and the reason.

    The reason of a running job that Slurm preempts is "PREEMPTED". ("", 0, "") if nothing is shown, UNKNOWN_STATE if
    what is shown cannot be read.
    """
    if (found := _STATE.search(plain(text))) is not None:
        state = running(found[1])
        preempted = state == "RUNNING" and found[4] is not None and found[4] <= found[5]  # else: before a requeue
        return state, int(found[2]), "PREEMPTED" if preempted else found[3]
    return UNKNOWN_STATE if text.strip() else "", 0, ""


_JOB_ID = re.compile(r"^[ \t]*([0-9]{1,10})(?:;[\w.-]+)?\s*$|Submitted batch job ([0-9]{1,10})\b", re.MULTILINE)


def read_job_id(text: str) -> str | None:
    """Parse sbatch's answer: 81 or 81;CLUSTER (--parsable), or its sentence; None: it names no job."""
    found = [number or words for number, words in _JOB_ID.findall(plain(text))]
    return found[-1] if found else None


_LEAF = re.compile(rf"(?:SwitchName=(?P<switch>{NODE}) Level=0|BlockName=(?P<block>{NODE})) .*?\bNodes=(?P<nodes>\S+)")


def read_topology(text: str) -> dict[str, str]:
    """Parse the cluster's topology into the leaf switch (topology/tree) or block (topology/block) of each node.

    A node in several leaves, as with several networks, is in the first.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        if (match := _LEAF.match(line.strip())) is None:
            continue
        with suppress(ValueError):
            for node in expand_hosts(match["nodes"]):
                found.setdefault(node, match["switch"] or match["block"])
    return found


class QueuedJob(Value):
    """A job of any user as squeue shows it, with what leads to its run."""

    name: str  # 81, or 81_2 for a task of an array
    id: str  # of a task too it is one number
    state: str
    reason: str  # why it waits, or how it ended
    user: str
    mark: str | None  # of its run (RunDir.mark); None: it is no job of ftslurm, or the site removes comments
    script: str  # the batch script; of a run's jobs it lies in RUN/submitit


# The user's own comment (cluster.sbatch.comment) stands before ours.
_MARK = re.compile(r"(?:.*\s)?(ftslurm:.*?)(?::(-1|[0-9]{1,9}))?\|?", re.DOTALL)


def read_mark(comment: str) -> tuple[str | None, int | None]:
    """Return the run that a job's comment names (RunDir.mark), and the pool that a group's job is for."""
    found = _MARK.fullmatch(comment)
    return (found[1], None if found[2] is None else int(found[2])) if found else (None, None)


def read_jobs(text: str) -> tuple[list[QueuedJob], bool]:
    """Parse the output of `commands.jobs_of_users` and `commands.job_found`. Return also whether all of it was read."""
    (rows, damaged), out = read_rows(text, len(FINDING_FIELDS), is_job), list[QueuedJob]()
    for name, job, state, reason, user, script, comment in rows:
        out.append(QueuedJob(name, job, state, reason, user, read_mark(comment)[0], script))
    return out, not damaged


UNKNOWN = math.inf  # a count that Slurm does not say, or not to this user


class Partition(Value):
    """One row of sinfo: the nodes of one kind in a partition."""

    name: str
    default: bool
    gpus: float  # of a node; it may be UNKNOWN


_ROW = re.compile(r"([\w.+-]+)(\*?)\|[^|]*(?:\|([^|]*))?(?:\|[^|]*)?(?:\|(.*))?")


def read_partitions(text: str) -> list[Partition]:
    """Parse the output of `commands.PARTITIONS`. A partition with several kinds of nodes has several rows."""
    out = []
    for row in filter(None, map(_ROW.fullmatch, map(str.strip, text.splitlines()))):
        name, star, nodes, gres = row.groups(default="")
        shown = re.fullmatch("[1-9][0-9]{0,4}", nodes) and gres.lower() not in ("", "n/a")  # 0: hidden (PrivateData)
        out.append(Partition(name, bool(star), read_gpus(gres) if shown else UNKNOWN))
    return out


def read_gpus(gres: str) -> float:
    """Count the GPUs in Slurm's generic-resource notation: "gpu:a100:4(S:0-1),nvme:1" -> 4. It may be UNKNOWN."""
    total = 0
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        found = re.fullmatch(r"gpu(?::[\w.-]*[a-zA-Z][\w.-]*)*(?::([0-9]{1,5}))?", part)
        if found is not None:
            total += int(found[1] or 1)
        elif part.partition(":")[0] == "gpu":
            return UNKNOWN
    return total


def read_gpus_of_job(text: str) -> float:
    """Read from `commands.job_record` how many GPUs each node of the job has at least. It may be UNKNOWN."""
    return min(map(read_gpus, re.findall(r"\bCPU_IDs=\S* Mem=\S* GRES=(\S*)", text)), default=UNKNOWN)


def partition_names(rows: Iterable[Partition]) -> str:
    """Return the names of the partitions, for error messages."""
    return ", ".join(dict.fromkeys(row.name for row in rows)) or "none"
