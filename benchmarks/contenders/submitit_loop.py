"""Keep one submitit job alive that runs all ranks: submit it again, whole, whenever a rank has failed.

submitit_loop.py FOLDER RANKS FIELD=VALUE...     the fields of training.Settings
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import fields
from typing import Any

import submitit
from training import Settings, train_plain

POLL_S = 1.0  # submitit's own interval of looking for results
ASK_SLURM_S = 3.0


def work(settings: Settings) -> None:
    """Train as one rank; on a node."""
    submitit.helpers.TorchDistributedEnvironment().export()
    os.environ["MASTER_ADDR"] = "127.0.0.1"  # the names of this throwaway Slurm's nodes are in no DNS
    train_plain(settings)


def wait_for_failure(job: Any, ranks: int) -> str:
    """Return why the job has ended: the first result of a rank is an error, for no rank ends by itself."""
    asked = time.monotonic()
    while True:
        for rank in range(ranks):
            if job.task(rank).paths.result_pickle.exists():
                return f"rank {rank} has failed"
        if time.monotonic() - asked > ASK_SLURM_S:
            asked = time.monotonic()
            listed = subprocess.run(["squeue", "--noheader", f"--jobs={job.job_id}"], capture_output=True, text=True)
            if not listed.stdout.strip():
                return "the job has left the queue"
        time.sleep(POLL_S)


def main() -> None:
    folder, ranks, *words = sys.argv[1:]
    values = dict(word.split("=", 1) for word in words)
    kinds = {"str": str, "float": float, "int": int}
    settings = Settings(**{f.name: kinds[str(f.type)](values[f.name]) for f in fields(Settings)})
    executor = submitit.SlurmExecutor(folder=folder)
    executor.update_parameters(
        job_name="plain", nodes=int(ranks), ntasks_per_node=1, cpus_per_task=1, time=1440,
        srun_args=["--kill-on-bad-exit=1"],
    )  # fmt: skip
    while True:
        job = executor.submit(work, settings)
        print(f"job {job.job_id} submitted", flush=True)
        print(f"job {job.job_id}: {wait_for_failure(job, int(ranks))}", flush=True)
        job.cancel()  # the ranks that still wait for the dead one


if __name__ == "__main__":
    main()
