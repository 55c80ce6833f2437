"""Cancels the Slurm job of a run whose controller is gone; it would hold its nodes until the time limit.

The job is submitted with --no-kill, so Slurm keeps it when the controller's node is lost, and no batch process is left
to end it. A guard cannot know whether the controller has died or only its own node is cut off, but the file `alive` in
the run directory shows it: a controller touches it with every heartbeat, on a file system that all nodes share.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from ftslurm.run.directory import RunDir
from ftslurm.run.journal import last_event
from ftslurm.run.liveness import Watch
from ftslurm.slurm import client, commands

CANCEL_S = 60.0  # for a busy slurmctld; Slurm ends this process earlier


def end_job(environ: Mapping[str, str], after_s: float) -> None:
    """Cancel the Slurm job of this process once the file `alive` has not changed for `after_s` seconds.

    It is not cancelled if the file changes meanwhile.
    """
    job, run = environ.get("SLURM_JOB_ID"), environ.get("FTSLURM_RUN_DIR")
    if not job or not run:
        return
    alive, watch = RunDir(Path(run)).alive, Watch()
    silent_s = watch.silent_s(alive)
    while silent_s is not None and silent_s < after_s:
        if last_event(RunDir(Path(run)).events) in ("run_finished", "run_requeued"):
            return  # the run is over: the job ends anyway
        time.sleep(min(0.5, after_s - silent_s))
        silent_s = watch.silent_s(alive) or None  # 0.0: it was touched
    if silent_s is not None:
        client.call(commands.cancel(job), CANCEL_S)
