"""`python -m ftslurm.entry ROLE RUN`: the process that a job runs: a controller, or a pilot.

The name of this module stays as it is: Slurm keeps the command of a job, also when ftslurm is upgraded.

Who runs this: Slurm, as the batch process of a job that submit.py (controller) or pilot_jobs.py (pilot) has
submitted; submit.py, for the controller of a local run; `ftslurm run` in a job of the user's own, whose process becomes
this one. The run directory is all it is told; that directory and its
configuration must belong to this user alone. Nothing is unpickled here.

    steps, controller              keeper.keep -> controller_process.py -> controller/loop.py
    controller, local run          controller_process.control -> controller/loop.py
    pilot                          pilots.hold, with a lead.Candidate that may start controller_process.py, too
    task                           array_task.stay, which does the same
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ftslurm.errors import FtslurmError, complain
from ftslurm.launchers.job_command import JobRole
from ftslurm.run import full_disk
from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files


def main(words: Sequence[str]) -> int:
    """Run a role; returns the exit code: the run's, or 2 if nothing could be begun (the output says why)."""
    role, run = JobRole(words[0]), RunDir(Path(words[1]))
    full_disk.outlive()
    try:
        if role is JobRole.PILOT:
            from ftslurm.submission import pilots

            return pilots.hold(run)
        if role is JobRole.TASK:
            from ftslurm.submission import array_task

            return array_task.stay(run)
        if role is JobRole.CONTROLLER:
            return lead_run(run)
        from ftslurm.submission import keeper

        # The controller reads the configuration: each import here delays it.
        owned_files.check_own(run.acted_on())
        return keeper.keep(run)
    except FtslurmError as error:
        complain(error)
        return 2


def lead_run(run: RunDir) -> int:
    """Lead a run from the controller's job. If Slurm has requeued the job the run goes on where it was.

    Returns:
        The exit code: if the run does not succeed, neither does the job.

    Raises:
        FtslurmError: the run directory cannot be read, or belongs to somebody else.
    """
    from ftslurm.run import configuration

    config = configuration.of_run(run)
    if config.local:  # its workers end with the controller: a keeper could save nothing
        from ftslurm.security import process_title
        from ftslurm.submission.controller_process import control  # pilots, which run this module too, stay small

        process_title.of_run("controller", run.root.name)
        return control(config, run)
    from ftslurm.submission import keeper

    return keeper.keep(run, config if config.job_per_group else None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
