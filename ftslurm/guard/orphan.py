"""What an orphaned worker owes its cluster: a job without its controller would hold its nodes until the time limit.

The job was submitted with --no-kill, so Slurm keeps it when the controller's node is lost, and no batch process is
left to end it. A guard cannot know by itself whether the controller has died or only this node is cut off. The file
`alive` tells: a living controller touches it with every heartbeat, on a file system that all nodes see.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from ftslurm.run.directory import RunDir
from ftslurm.run.journal import last_event
from ftslurm.run.liveness import Watch
from ftslurm.slurm import client, commands

CANCEL_S = 60.0  # slurmctld may be as busy as it likes: Slurm ends us long before


def end_job(environ: Mapping[str, str], after_s: float) -> bool:
    """Cancel the Slurm job this process runs in, once it has seen its controller's file unchanged for `after_s`.

    Returns:
        Whether Slurm was asked to; not if the controller is heard meanwhile.
    """
    job, run = environ.get("SLURM_JOB_ID"), environ.get("FTSLURM_RUN_DIR")
    if not job or not run:
        return False
    alive, watch = RunDir(Path(run)).alive, Watch()
    silent_s = watch.silent_s(alive)
    while silent_s is not None and silent_s < after_s:
        if last_event(RunDir(Path(run)).events) in ("run_finished", "run_requeued"):
            return False  # nobody touches it any more, and the job ends as well
        time.sleep(min(0.5, after_s - silent_s))
        silent_s = watch.silent_s(alive) or None  # 0.0: it was touched
    if silent_s is None:
        return False
    return client.call(commands.cancel(job), CANCEL_S).failure is not client.Failure.NOT_STARTED
