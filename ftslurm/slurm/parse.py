"""Parse what Slurm says of a cluster, and of jobs of any users, into values. Pure; commands are in slurm/commands.py.

Malformed lines are skipped. The texts were recorded on Slurm 22.05.8 and 24.11.5. What Slurm says of a run's own steps,
nodes and jobs is parsed in slurm/evidence.py; a submission does without the core that it needs, and is faster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from ftslurm.security.names import NODE
from ftslurm.slurm.commands import FINDING_FIELDS
from ftslurm.slurm.hosts import expand_hosts

_BUSY = ("Unable to contact", "Socket timed out", "temporarily", "Connection refused")


def is_busy(text: str) -> bool:
    """Return whether an error says that slurmctld cannot be reached at the moment, so that a retry may succeed."""
    return any(words in text for words in _BUSY)


_JOB_ID = re.compile(r"^\s*([0-9]{1,10})(?:;[\w.-]+)?\s*$|Submitted batch job ([0-9]{1,10})\b", re.MULTILINE)


def read_job_id(text: str) -> str | None:
    """Parse sbatch's answer: 81 or 81;CLUSTER (--parsable), or its sentence; None: it names no job."""
    found = [number or words for number, words in _JOB_ID.findall(text)]
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


@dataclass(frozen=True)
class QueuedJob:
    """A job of any user as squeue shows it, with what leads to its run."""

    name: str  # 81, or 81_2 for a task of an array
    id: str  # of a task too it is one number
    state: str
    reason: str  # why it waits; empty if it does not
    user: str
    mark: str | None  # of its run (RunDir.mark); None: it is no job of ftslurm, or the site removes comments
    script: str  # the batch script; of a run's jobs it lies in RUN/submitit


def read_jobs(text: str) -> list[QueuedJob]:
    """Parse the output of `commands.jobs_of_users` and `commands.job_found`."""
    out = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.strip().split("|", len(FINDING_FIELDS) - 1)]
        if len(fields) != len(FINDING_FIELDS):
            continue
        name, job, state, reason, user, script, comment = fields
        comment = comment.removesuffix("|")
        mark = re.sub(":[0-9]{1,9}$", "", comment) if comment.startswith("ftslurm:") else None
        out.append(QueuedJob(name, job, state, reason if state == "PENDING" else "", user, mark, script))
    return out


@dataclass(frozen=True)
class Partition:
    """One row of sinfo: the nodes of one kind in a partition."""

    name: str
    default: bool
    up: bool
    nodes: int
    cpus: int
    gpus: int


def read_partitions(text: str) -> list[Partition]:
    """Parse the output of `commands.partitions`. A partition with several kinds of nodes has several rows."""
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
    """Count the GPUs in Slurm's generic-resource notation: "gpu:a100:4(S:0-1),nvme:1" -> 4."""
    total = 0
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        words = part.split(":")
        if words[0] == "gpu":
            total += int(words[-1]) if re.fullmatch("[0-9]{1,9}", words[-1]) else 1
    return total


def partition_names(rows: Iterable[Partition]) -> str:
    """Return the names of the partitions, for error messages."""
    return ", ".join(dict.fromkeys(row.name for row in rows)) or "none"
