"""`python -m ftslurm.beside RUN NUMBER PID [alone]`: the controller as a process beside a pilot.

The pilot has taken the lead for it, and has this PID.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ftslurm.errors import FtslurmError
from ftslurm.rundir import RunDir
from ftslurm.worker.processes import PR_SET_PDEATHSIG, prctl


def main(words: Sequence[str]) -> int:
    """Run the controller to its end, or until another one goes on; the exit code is `submit.control`'s.

    What Slurm sends to the job is for the pilot, which tells us when we are to make way.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    from ftslurm import compose, submit, summary, view
    from ftslurm.jobs import PILOT
    from ftslurm.journal import last_event

    run = RunDir(Path(words[0]))
    if os.getppid() != int(words[2]):
        return 1  # the pilot died before the line above took effect
    if "alone" not in words[3:]:
        os.environ[PILOT] = words[2]
    try:
        config, console = compose.of_run(run), view.console()
    except FtslurmError as error:
        print(f"ftslurm: {error}", file=sys.stderr)
        return 2
    lines = view.Lines(console)
    code = submit.control(config, run, lines.tell, lines.know, number=int(words[1]))
    if last_event(run.events) == "run_finished":
        console.print(summary.summary(lines.status, run))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
