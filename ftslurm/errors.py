"""What can be wrong, told to the person who can mend it."""

import sys
from contextlib import suppress


class FtslurmError(Exception):
    """Base of every error ftslurm raises on purpose; never raised itself.

    The message is one paragraph for a person: what is wrong, where, and which setting to change. The command line
    prints it without a traceback and exits with 2.
    """


class ConfigError(FtslurmError):
    """A setting has no meaning, does not exist, or contradicts another; the message names the keys."""


class EnvironmentProblem(FtslurmError):
    """This machine or cluster cannot do what was asked: no Slurm, no such partition, too few nodes, sbatch refused."""


class RunNotFound(FtslurmError):
    """The run named on the command line is not there."""


class Distrusted(FtslurmError):
    """A file or folder that was to be acted on may be somebody else's work."""


class NotDone(FtslurmError):
    """The controller of a run refuses a command, or does not answer. The command line exits with 1."""


def complain(words: object) -> None:
    """Write a line to the log of this process, its stderr. Never raises, whatever a script has put in its place."""
    with suppress(Exception):
        print(f"ftslurm: {words}", file=sys.stderr, flush=True)
