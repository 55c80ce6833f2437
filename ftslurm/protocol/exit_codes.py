"""The exit codes of our own processes in a step.

A script may exit with the same numbers: a code says who it came from only together with what else is known.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Why a worker, its guard or the process that attaches to it has ended. Most are BSD's sysexits."""

    ORPHANED = 75  # guard, attach: the controller is gone; nothing is wrong with the script (EX_TEMPFAIL)
    NO_GUARD = 76  # attach: no guard to attach to (EX_PROTOCOL)
    END_REPORTED = 77  # attach: the controller has been told how the task ended; that counts, not this code
    SRUN_FAILED = 78  # srun: it, and not a task, has failed (we set SLURM_EXIT_ERROR to this)
    DETACHED = 79  # attach: another controller has attached, or the guard was killed
    CUT_OFF = 80  # worker, to its guard: the script has succeeded, and closed descriptors that are not its own
    KILLED_BY_ORDER = 137  # guard: the controller has ordered `kill`; 128 + SIGKILL, as a shell reports it
