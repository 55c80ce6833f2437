"""`python -m ftslurm.observer RUN [LEADER]`: tells hooks, callbacks and Prometheus what the journal says.

Who runs this: the controller's process (submission/observing.py), if the run has hooks, callbacks or metrics. It ends
when its standard input is closed and all is told: a run that is over gets its last event in any case, what else waits
is for the next observer. LEADER is the controller's number: the observer also ends when another one leads. What each
receiver has got is in RUN/observer.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ftslurm.errors import FtslurmError, complain
from ftslurm.observer.observer import Observer
from ftslurm.run.directory import RunDir


def main(run: str, leader: str | None = None) -> int:
    """Observe a run until told to end."""
    try:
        Observer(RunDir(Path(run)), int(leader) if leader else None).run()
    except FtslurmError as error:
        complain(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
