"""`python -m ftslurm.submission.entry WHAT RUN`: what a submitted job runs: a controller, its successor, or a pilot.

All it is told is the run directory; that, and the configuration in it, must be ours alone to be acted on. Nothing is
unpickled here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ftslurm.errors import FtslurmError
from ftslurm.run import configuration
from ftslurm.run.directory import RunDir
from ftslurm.submission import keeper, pilots, submit


def main(words: Sequence[str]) -> int:
    """The exit code is the run's; 2: nothing could be begun, and the job's output says why."""
    what, run = words[0], RunDir(Path(words[1]))
    try:
        if what in (submit.PILOT, submit.PILOT_AGAIN):
            return pilots.hold(run, batch=what == submit.PILOT)
        return lead_run(run, hand_over=what == submit.SUCCESSOR)
    except FtslurmError as error:
        print(f"ftslurm: {error}", file=sys.stderr)
        return 2


def lead_run(run: RunDir, hand_over: bool) -> int:
    """What the controller's job runs. When Slurm has requeued the job this is the run's second life, or a later one.

    Args:
        hand_over: there is an earlier controller (array mode), which is to make way.

    Returns:
        The exit code: if the run does not succeed, neither does the job.

    Raises:
        FtslurmError: the run directory cannot be read, or may be somebody else's work.
    """
    config = configuration.of_run(run)
    if config.cluster.kind == "local":  # workers end with the controller: nobody could adopt them
        return keeper.control(config, run, partial(submit.submit, config, run))
    return keeper.keep(config, run, hand_over)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
