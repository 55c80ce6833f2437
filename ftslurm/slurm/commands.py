"""Build the argument lists of Slurm's programs and the environment they run in. Pure: nothing is run here.

Every Slurm command of the package is built here. slurm/client.py runs one and waits for it, slurm/parse.py reads its
output; what the controller asks in the background is in launchers/slurm_requests.py. The facts behind each choice were
measured on Slurm 22.05.8, 24.11.5 and 26.05.5.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ftslurm.security import programs

# These variables change what a nested srun does: SLURM_MEM_PER_NODE blocks the second step, SLURM_NTASKS doubles the
# tasks, SLURM_CPUS_PER_TASK refuses the step on 24.11.
# PYXIS_CONTAINER_IMAGE would put the probes into a container, too: cluster.container_image says which steps run in one.
_SCRUBBED = ("SLURM_", "SRUN_", "SBATCH_", "SLURMD_", "SUBMITIT_", "PYXIS_")
# The variables in which Slurm names a step's GPUs: for NVIDIA, AMD, Intel and OpenCL. Many sites set all of them.
GPU_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "GPU_DEVICE_ORDINAL",
)
BATCH_PROCESS = "SLURM_TASK_PID"  # in a batch script; in a step it is the task's
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER"})


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables of an enclosing Slurm job, srun or submitit."""
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT or not (name.startswith(_SCRUBBED) or name in GPU_VARIABLES)
    }


def for_sbatch(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of sbatch, and of the job: nothing of a job or run in which this process may be."""
    clusters = {name: value for name, value in environ.items() if name == "SLURM_CLUSTERS"}
    return programs.of_a_new_run(scrubbed(environ)) | clusters


def is_batch(environ: Mapping[str, str]) -> bool:
    """Return whether this process belongs to the batch script of a job, which Slurm can requeue for its sake.

    It does not in a shell of salloc, nor in a terminal, notebook or step within somebody's job: these have sessions of
    their own, and the job is theirs. (BATCH_PROCESS is the script's process; 0: this one.)
    """
    in_script = environ.get("SLURM_STEP_ID") in (None, "-5")  # the latter since Slurm 26.05
    batch = environ.get("ENVIRONMENT") == "BATCH" and "SLURM_JOB_ID" in environ and in_script
    with suppress(ValueError, OSError):
        return batch and os.getsid(int(environ.get(BATCH_PROCESS, ""))) == os.getsid(0)
    return False


def job_name(environ: Mapping[str, str]) -> str:
    """Return the name by which squeue shows the job of this process: 81, or 81_2 for a task of an array.

    The id of a task (SLURM_JOB_ID) is another number, and for one of the tasks it is the id of the whole array.

    Raises:
        KeyError: this process runs in no job.
    """
    array_job, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array_job}_{task}" if array_job and task else environ["SLURM_JOB_ID"]


def srun_command(
    job: str,
    name: str,
    nodes: Sequence[str],
    tasks_per_node: int = 1,
    gpus: bool = False,
    extra: Sequence[str] = (),
    chdir: str | None = None,
) -> list[str]:
    """Return the srun command line of one step, without the program it runs.

    Every step overlaps and requests no CPUs or memory of its own, because the controller, not Slurm, places the
    groups: an --exact step can block for ever after a node has died. --kill-on-bad-exit=0 because the controller is
    faster (0.1 s against KillWait, 30 s, if a task ignores SIGTERM). --wait=0 overrides a site's WaitTime, which
    would kill the ranks that finish later than the first.

    Args:
        job: id of the Slurm job whose nodes are used.
        gpus: False hides the job's GPUs; True shows all of them on each node, and the worker takes its share.
        extra: the user's additional arguments (cluster.srun). One for memory replaces --mem=0, which some sites refuse.
    """
    return [
        "srun",
        f"--jobid={job}",
        "--overlap",
        *([] if memory_of(extra) else ["--mem=0"]),
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
        f"--chdir={chdir or Path.cwd()}",
        *extra,
    ]


def memory_of(extra: Sequence[str]) -> list[str]:
    """Return srun's arguments for memory among others."""
    return [word for word in extra if word.startswith("--mem")]


def srun_alone(partition: str, node: str, gpu: bool, extra: Sequence[str]) -> list[str]:
    """Return the srun command line of doctor's job, with one short task, without the program it runs.

    Args:
        partition, node: "": any.
        gpu: ask for one, unless `extra` asks: Slurm 26.05 refuses --gres and --gpus-per-node together.
        extra: further arguments.
    """
    asks = any(word.startswith(("--gres", "--gpus", "--tres-per-", "-G")) for word in extra)
    return [
        "srun",
        "--job-name=ftslurm-doctor",
        "--nodes=1",
        "--ntasks=1",
        "--time=5",
        "--unbuffered",
        *([f"--partition={partition}"] if partition else []),
        *([f"--nodelist={node}"] if node else []),
        *(["--gpus-per-node=1"] if gpu and not asks else []),
        *extra,
    ]


# --- questions -------------------------------------------------------------------------------------------------------

# --all: a partition may be hidden, also with jobs of one's own in it. --local: one RPC less, about a federation.
_SQUEUE, _SINFO = ("squeue", "--all", "--local", "--noheader"), ("sinfo", "--all", "--noheader")

QUEUE_FIELDS = (
    "JobArrayID", "JobID", "State", "Reason", "NodeList", "StartTime", "EndTime", "PreemptTime", "ArrayJobID",
    "Comment",
)  # fmt: skip


def queue() -> list[str]:
    """Ask for all jobs of this user: cheaper for slurmctld than one job or all jobs."""
    return [*_SQUEUE, "--array", "--states=all", f"--user={os.getuid()}", _columns(QUEUE_FIELDS)]


def _columns(fields: Sequence[str]) -> str:
    return f"--Format={','.join(f'{field}:|' for field in fields)}"


FINDING_FIELDS = ("JobArrayID", "JobID", "State", "Reason", "UserName", "Command", "Comment")


def jobs_of_users(*users: str) -> list[str]:
    """Ask for all jobs of some users, with what leads from a job to its run."""
    return [*_finding(), f"--user={','.join(users)}"]


def job_found(job: str) -> list[str]:
    """Ask for one job, or the tasks of one array, of any user."""
    return [*_finding(), f"--jobs={job}"]


def _finding() -> list[str]:
    return [*_SQUEUE, "--array", "--states=all", _columns(FINDING_FIELDS)]


def job_state(job: str) -> list[str]:
    """Ask for a job's state, how often it has been requeued, the reason of the state, and whether it is preempted."""
    return [
        *_SQUEUE,
        "--states=all",
        f"--jobs={job}",
        "--Format=State:|,RestartCnt:|,Reason:|,StartTime:|,PreemptTime:|",
    ]


def job_nodes(job: str) -> list[str]:
    """Ask for the present nodes of a job, as a host list."""
    return [*_SQUEUE, f"--jobs={job}", "--format=%i|%N|%T"]


def job_record(job: str) -> list[str]:
    """Ask for the full record of a job, with what it has on each node."""
    return ["scontrol", "--details", "--oneliner", "show", "job", job]


# Ask srun for its options, with those of the site's plugins.
SRUN_OPTIONS = ["srun", "--help"]
# Ask for the state of each node, one line per node.
NODE_STATES = [*_SINFO, "--Node", "--format=%T"]


def slurmds(nodes: Iterable[str]) -> list[str]:
    """Ask for the addresses and ports of nodes' slurmds, one line for each partition of a node."""
    return [*_SINFO, "--Node", f"--nodes={','.join(nodes)}", _columns(("NodeList", "NodeAddr", "Port"))]


def node_records(nodes: Iterable[str]) -> list[str]:
    """Ask for the full records of nodes, a line for each."""
    return ["scontrol", "--oneliner", "show", "node", ",".join(nodes)]


# Print slurmctld's own settings, one on each line.
SETTINGS = ["scontrol", "show", "config"]
# Ask for the partitions, one line per kind of node (--exact: also by its CPUs).
PARTITIONS = [*_SINFO, "--exact", "--format=%P|%a|%D|%c|%G"]


def records(*what: str) -> list[str]:
    """Ask for the full record of a partition, or those of all reservations, one on each line."""
    return ["scontrol", "--all", "--oneliner", "show", *what]


# Ask what the partitions have and allow, in words, one line per kind of node.
OFFERS = [*_SINFO, "--format=%P has %D nodes of %c CPUs, %m MB, %G, features %f, time limit %l"]
# Ask for the switches or blocks of the cluster, one line each.
TOPOLOGY = ["scontrol", "--oneliner", "show", "topology"]


def try_submission(*words: str) -> list[str]:
    """Ask whether Slurm would accept a batch script, or a job with these options."""
    return ["sbatch", "--test-only", *words]


# --- orders ----------------------------------------------------------------------------------------------------------


def submit(script: str) -> list[str]:
    """Submit a batch script; the answer is the job's id."""
    return ["sbatch", "--parsable", script]


def cancel(*jobs: str, pending_only: bool = False) -> list[str]:
    """Cancel jobs or steps. With `pending_only`, jobs that have started meanwhile continue."""
    return ["scancel", *(["--state=PENDING"] if pending_only else []), *jobs]


def requeue(job: str) -> list[str]:
    """Requeue a running job."""
    return ["scontrol", "requeue", job]


def start_now(job: str) -> list[str]:
    """Skip the two minutes for which Slurm delays a requeued job."""
    return ["scontrol", "update", f"jobid={job}", "starttime=now"]


def exclude_nodes(job: str, nodes: str) -> list[str]:
    """Set the nodes that a pending job must not get."""
    return ["scontrol", "update", f"jobid={job}", f"excnodelist={nodes}"]
