"""`python -m ftslurm.observer RUN [--leader N]`: tells hooks, callbacks and Prometheus what the journal says.

Who runs this: the controller's process (submission/observing.py), if the run has hooks, callbacks or metrics. It ends
when its standard input is closed and all is told: a run that is over gets its last event in any case, what else waits
is for the next observer. What each receiver has got is in RUN/observer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ftslurm.errors import FtslurmError, complain
from ftslurm.observer.observer import Observer
from ftslurm.run.directory import RunDir


def main() -> int:
    """Observe a run until told to end."""
    parser = argparse.ArgumentParser(prog="python -m ftslurm.observer", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--leader", type=int, help="the controller's number; the observer ends when another one leads")
    args = parser.parse_args()
    try:
        Observer(RunDir(args.run), args.leader).run()
    except FtslurmError as error:
        complain(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
