"""Build the command lines of ftslurm's own processes in Slurm jobs; ftslurm/submission has the modules they start."""

from __future__ import annotations

import sys
from enum import Enum

from ftslurm.run.directory import RunDir
from ftslurm.security import programs

KEEPER = "FTSLURM_KEEPER"  # PID of the process that restarts the controller; the Lighthouse ends with it


class JobRole(Enum):
    """The role of a process in a job of the run (ftslurm.entry)."""

    STEPS = "steps"  # the controller of a run whose groups are all in its own job; needs no config.yaml to begin
    CONTROLLER = "controller"
    PILOT = "pilot"  # holds the nodes of its job for a group
    TASK = "task"  # the same for a task of an array that was submitted by hand


def job_command(run: RunDir, role: JobRole) -> list[str]:
    """Return the command of a job, or of a process beside the steps of a job."""
    command = (role.value, str(run.root))
    return programs.module("ftslurm.entry", *command, python=[sys.executable, "-u"], archive=str(run.package))
