"""Run a Slurm command, wait for its answer with a time-out, and tell how it has failed.

No function here raises: an `Answer` has the output and, if the command failed, the reason. The controller must not
block and does not use this module during the run; it runs the same commands in the background
(launchers/background.py).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftslurm.slurm import commands, sbatch_variables
from ftslurm.slurm.parse import (
    UNKNOWN_STATE,
    Partition,
    is_busy,
    plain,
    read_gpus_of_job,
    read_partitions,
    read_state,
    read_topology,
)

ANSWER_S = 60.0  # Slurm's programs time out by themselves long before
TOPOLOGY_S = 5.0  # a controller that takes over must not wait for long
PARTITIONS_S = 20.0  # a busy slurmctld answers slowly; if it is down sinfo tries for about ten seconds
SHOWS_NONE = "sinfo shows no partition"  # Slurm answers, but hides them (PrivateData)
PATIENCE_S, AGAIN_S = 10.0, 1.0  # slurmctld is away for seconds when it is restarted
PROGRAMS = ("sbatch", "srun", "sinfo")
# The user's defaults for interactive use: they would filter our results or make scancel ask for confirmation.
DEFAULTS = ("SQUEUE_", "SINFO_", "SCANCEL_", "SCONTROL_", "SLURM_TOPO_LEN", sbatch_variables.PREFIX)


class Answer(NamedTuple):
    """The output of a command, and how it has failed."""

    out: str = ""
    err: str = ""
    ok: bool = False
    transient: bool = False  # a retry may succeed; without an answer, or ended by a signal, it may be done nevertheless
    started: bool = True  # False: the program is missing, or the machine has no memory for it

    @property
    def text(self) -> str:
        """Return the whole output, for messages."""
        return (self.out + self.err).strip()


def call(
    command: Sequence[str], timeout_s: float | None = ANSWER_S, environ: Mapping[str, str] | None = None
) -> Answer:
    """Run a Slurm command and wait for it, at most timeout_s seconds.

    Args:
        environ: its whole environment; None: that of this process, without the user's defaults.
    """
    environ = environ or {name: value for name, value in os.environ.items() if not name.startswith(DEFAULTS)}
    try:
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            start_new_session=True,  # no signal to our process group; Slurm's SIGTERM at a job's end reaches it anyway
        )
    except subprocess.TimeoutExpired:
        return Answer(err=f"{command[0]} has not answered within {timeout_s:g} s", transient=True)
    except OSError as error:
        return Answer(err=f"{command[0]} cannot be started: {error.strerror}", started=False)
    code, text = done.returncode, done.stdout + done.stderr
    err = f"{command[0]}: exit code {code}" if code and not text.strip() else plain(done.stderr)
    return Answer(plain(done.stdout), err, code == 0, code < 0 or (code > 0 and is_busy(text)))


def cancel(*jobs: str, pending_only: bool = False, timeout_s: float = ANSWER_S) -> bool:
    """Cancel jobs or steps; return whether Slurm has accepted it (also if there is nothing to cancel)."""
    return not jobs or call(commands.cancel(*jobs, pending_only=pending_only), timeout_s).ok


def job_state(job: str) -> tuple[str, str]:
    """Return a job's state and reason: ("", "") if Slurm does not know it, (UNKNOWN_STATE, "") without an answer."""
    answer = call(commands.job_state(job), 30.0)
    if not answer.ok:
        return ("" if "Invalid job id" in answer.err else UNKNOWN_STATE), ""
    state, _, reason = read_state(answer.out)
    return state, reason


def job_gpus(job: str) -> float:
    """Return how many GPUs a job has on each of its nodes, at least. It may be UNKNOWN."""
    return read_gpus_of_job(call(commands.job_record(job), PARTITIONS_S).out)


def kill_wait_s() -> float | None:
    """Return how long Slurm waits between SIGTERM and SIGKILL when it ends a job; None: it does not say."""
    found = re.search(r"^KillWait\s*=\s*([0-9]{1,9})\b", call(commands.SETTINGS, PARTITIONS_S).out, re.MULTILINE)
    return None if found is None else float(found[1])


def leaves() -> dict[str, str]:
    """Return the leaf switch or block of each node; empty if Slurm has no topology, or does not answer at once."""
    answer = call(commands.TOPOLOGY, TOPOLOGY_S)
    return read_topology(answer.out) if answer.ok else {}


def installed() -> bool:
    """Return whether this machine belongs to a cluster, as far as the PATH tells: it has one of Slurm's programs."""
    return any(map(shutil.which, PROGRAMS))


def partitions() -> tuple[list[Partition], str]:
    """Return the cluster's partitions, or none and the reason after some seconds in which Slurm does not answer."""
    for program in PROGRAMS:
        if shutil.which(program) is None:
            return [], f"{program} is not on PATH"
    conf = os.environ.get("SLURM_CONF")
    if conf and not os.path.exists(conf):  # sinfo would try for long
        return [], f"there is no file SLURM_CONF={conf}"
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = call(commands.PARTITIONS, PARTITIONS_S)
        rows = read_partitions(answer.out)
        if rows or time.monotonic() >= deadline:
            return rows, answer.text.rpartition("\n")[2] or SHOWS_NONE
        time.sleep(AGAIN_S)
