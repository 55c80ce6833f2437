"""Submits the jobs that give groups their nodes: their options, a trial before the run, and the submission itself.

In array mode these jobs are the pilots, tasks of a job array; in steps mode they replace lost nodes. Every job runs
`ftslurm.entry pilot`; the controller starts a group's step in it with `srun --jobid`.

The controller runs `python -m ftslurm.submission.pilot_jobs` in the background, because sbatch may be slow;
`ftslurm run` and `ftslurm plan` call `try_out` in the user's process.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

from ftslurm.config.schema import CONTROLLER, Config
from ftslurm.errors import EnvironmentProblem, FtslurmError
from ftslurm.launchers.job_command import JobRole
from ftslurm.protocol.records import CONTROLLER_POOL
from ftslurm.run import configuration
from ftslurm.run.directory import RunDir
from ftslurm.slurm import client, commands
from ftslurm.submission import submitit_adapter
from ftslurm.submission.submit import (
    NOT_AVAILABLE,
    explained,
    job_options,
    submit_batch,
    undelayed,
    without,
)

UP = ("idle", "mixed", "allocated", "completing", "planned", "reserved")
PLACE = re.compile("(?i)not allowed|not permitted|denied|disabled|unable to submit")
FROM_A_NODE = "; if jobs cannot be submitted from nodes here (ftslurm doctor tries it), set cluster=slurm"


def options(config: Config, run: RunDir, pool: int, exclude: Sequence[str] = ()) -> dict[str, Any]:
    """Return sbatch's options for the jobs of one pool.

    They have no --no-kill: a job that has lost a node is useless, and Slurm requeues it by itself (measured on 22.05:
    with --no-kill it stays, and a node that returns is not given back to it).
    """
    told = job_options(config, run, pool != CONTROLLER_POOL, max(pool, 0))
    return without(exclude, undelayed(told))


def submit(
    config: Config, run: RunDir, pool: int, count: int, exclude: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Submit jobs of one pool as one array: all, or as many as Slurm accepts at once.

    Returns:
        Their names, as squeue shows them, and the nodes of cluster.exclude_file that they do not get.

    Raises:
        EnvironmentProblem: sbatch refused all of them; its message is passed on.
    """
    told = options(config, run, pool, exclude)
    try:
        role = JobRole.CONTROLLER if pool == CONTROLLER_POOL else JobRole.PILOT
        job, noted = submit_batch(config, run, role, told, count)
    except submitit_adapter.SbatchRefused as error:
        if count == 1:
            raise EnvironmentProblem(f"sbatch refused a job for a group: {explained(error, told)}") from error
        # As many as the site's MaxArraySize, or what is left of a limit of jobs, allows: found by trying. The rest is
        # requested again.
        return submit(config, run, pool, count // 2, exclude)
    return ([f"{job}_{task}" for task in range(count)] if count > 1 else [job]), noted


def try_out(config: Config, run: RunDir, lead: bool, refuses: str = "would refuse") -> None:
    """Ask Slurm whether it would accept the jobs of a run and could ever start them, before anything is submitted.

    Args:
        lead: also the controller's; in array mode `ftslurm run` submits it at once.
        refuses: what the message says that sbatch does.

    Raises:
        EnvironmentProblem: Slurm would refuse some of them.
    """
    jobs = [("the job", job_options(config, run))] if lead else []
    pools = [0, *(i + 1 for i, one in enumerate(config.cluster.ranges) if one.groups != CONTROLLER)]
    for pool in pools if config.job_per_group else ():
        where = f" of cluster.ranges[{pool - 1}]" if pool else ""
        jobs.append((f"the jobs for groups{where}", options(config, run, pool)))
    for what, told in jobs:
        text = submitit_adapter.sbatch_script(config, run, JobRole.PILOT, told)
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
            script.write(text)
            script.flush()
            answer = client.call(commands.try_submission(script.name))
        if answer.ok or answer.transient or not answer.started:
            continue
        said = submitit_adapter.message(answer.err)
        # Busy or drained nodes are no reason to refuse the run: its jobs wait for them.
        waits = "currently not available" in said.lower() or (NOT_AVAILABLE in said and _some_nodes_are_down())
        if not waits or told["nodes"] > _most_nodes(told.get("partition")):
            raise EnvironmentProblem(f"sbatch {refuses} {what}: {explained(said, told)}")


def _some_nodes_are_down() -> bool:
    """Return whether some nodes cannot start a job now but may later: sbatch --test-only ignores such nodes."""
    return any(state.strip() not in UP for state in client.call(commands.NODE_STATES).out.splitlines())


def _most_nodes(partition: str | None) -> float:
    """Return the most nodes that a job can ever get in one of these partitions, or the default one."""
    most = list[float]()
    for words in client.call(commands.records("partition")).out.splitlines():
        row = dict(word.partition("=")[::2] for word in words.split())
        if row.get("PartitionName") in str(partition).split(",") or (partition is None and row.get("Default") == "YES"):
            limits = (row.get("TotalNodes", ""), row.get("MaxNodes", ""))  # the latter may be UNLIMITED
            most.append(min((int(limit) for limit in limits if limit.isdecimal()), default=inf))
    return max(most, default=inf)


def main(words: Sequence[str]) -> int:
    """Submit jobs and print, as JSON, their names and the nodes of cluster.exclude_file that they do not get; or an
    error.

    Args:
        words: RUN POOL COUNT NODE,NODE,... submits jobs that avoid these nodes.
    """
    run = RunDir(Path(words[0]))
    try:
        bad = [node for node in words[3].split(",") if node]
        names, noted = submit(configuration.of_run(run), run, int(words[1]), int(words[2]), bad)
        run.remember(names, int(words[1]))
    except FtslurmError as error:
        print(f"{error}{FROM_A_NODE if PLACE.search(str(error)) else ''}")
        return 2
    print(json.dumps([names, noted]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
