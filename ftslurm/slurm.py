"""Slurm's text, in and out: command lines as argument lists, and what Slurm prints as values. Nothing is run here.

The facts behind each choice were measured on Slurm 22.05.8 and 24.11.5.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ftslurm.core.model import Evidence

SRUN_FAILED = 78  # what srun itself exits with when it, not a task, fails (SLURM_EXIT_ERROR)

# Left in the environment, these change what a nested srun does: SLURM_MEM_PER_NODE blocks the second step,
# SLURM_NTASKS doubles the tasks, SLURM_CPUS_PER_TASK refuses the step on 24.11. So srun starts from a clean slate.
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
        ValueError: brackets that do not close, or a range that is none.
    """
    out: list[str] = []
    for part in _split_outside_brackets(text):
        names = [""]
        for literal, ranges in re.findall(r"([^\[\]]*)(?:\[([^\[\]]*)\])?", part):
            if literal:
                names = [n + literal for n in names]
            if ranges:
                names = [n + number for n in names for number in _numbers(ranges)]
        out += names
    return out


def _split_outside_brackets(text: str) -> list[str]:
    if text.count("[") != text.count("]"):
        raise ValueError(f"not a host list: {text!r}")
    return [part for part in re.split(r",(?![^\[]*\])", text.strip()) if part]


def _numbers(ranges: str) -> list[str]:
    out = []
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        out += [str(n).zfill(len(low)) for n in range(int(low), int(high or low) + 1)]
    return out


_TASK_LINE = re.compile(r"srun: error: (?P<node>\S+): tasks? (?P<tasks>[\d,\-]+): (?P<what>.+)")
_NODE_LINE = re.compile(r"srun: error: Node failure on (?P<nodes>\S+)")
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
    if match := _NODE_LINE.search(line):
        return Evidence(None, expand_hosts(match["nodes"])[0], node_lost=True, error=line.strip())
    match = _TASK_LINE.search(line)
    if match is None:
        return None
    task, what = int(re.split(r"[,\-]", match["tasks"])[0]), match["what"].strip()
    if code := re.match(r"Exited with exit code (\d+)", what):
        return Evidence(task, match["node"], code=int(code[1]))
    if what.startswith("Out Of Memory"):
        return Evidence(task, match["node"], out_of_memory=True, error=what)
    for words, number in _WORDS.items():
        if what.startswith(words):
            return Evidence(task, match["node"], signal=int(number))
    return Evidence(task, match["node"], error=what)


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
        count = int(re.sub(r"\D", "", cpus) or 0)
        out.append(Partition(name.rstrip("*"), name.endswith("*"), state == "up", int(nodes), count, read_gpus(gres)))
    return out


def read_gpus(gres: str) -> int:
    """GPUs in Slurm's generic-resource notation: "gpu:a100:4(S:0-1),nvme:1" -> 4."""
    total = 0
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        words = part.split(":")
        if words[0] == "gpu":
            total += int(words[-1]) if words[-1].isdigit() else 1
    return total


def partition_names(rows: Iterable[Partition]) -> str:
    """The partitions there are, for error messages."""
    return ", ".join(dict.fromkeys(row.name for row in rows)) or "none"
