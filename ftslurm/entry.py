"""`python -m ftslurm.entry WHAT RUN`: what a submitted job runs: a controller, its successor, or a pilot.

All it is told is the run directory; that, and the configuration in it, must be ours alone to be acted on. Nothing is
unpickled here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ftslurm import pilots, submit
from ftslurm.errors import FtslurmError
from ftslurm.rundir import RunDir


def main(words: Sequence[str]) -> int:
    """The exit code is the run's; 2: nothing could be begun, and the job's output says why."""
    what, run = words[0], RunDir(Path(words[1]))
    try:
        if what == submit.PILOT:
            return pilots.hold(run)
        return submit.main(run, hand_over=what == submit.SUCCESSOR)
    except FtslurmError as error:
        print(f"ftslurm: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
