"""`python -m ftslurm.submission.controller_process RUN NUMBER PID [...]`: the controller as a child process.

Its parent (keeper.py, or a pilot) has this PID, and has taken the lead for it under that NUMBER.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ftslurm.controller.signals import SIGNALS
from ftslurm.errors import FtslurmError
from ftslurm.guard.processes import PR_SET_PDEATHSIG, prctl
from ftslurm.run import configuration
from ftslurm.run.directory import RunDir
from ftslurm.submission.keeper import BAD_INPUT


def main(words: Sequence[str]) -> int:
    """Run the controller to its end, or until another one goes on; the exit code is `keeper.control`'s."""
    parser = argparse.ArgumentParser(prog="python -m ftslurm.submission.controller_process", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("number", type=int)
    parser.add_argument("pid", type=int)
    parser.add_argument("--signals", type=int, help="the pipe through which the keeper passes on its signals")
    parser.add_argument("--after", default="", help="how the controller before has crashed")
    parser.add_argument("--pilot", action="store_true", help="the keeper is a pilot that may be told to requeue itself")
    told = parser.parse_args(words)
    if told.signals is None:  # what Slurm sends to the job is for the pilot, which tells us when we are to make way
        for number in (*SIGNALS, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    from ftslurm.controller.slurm_requests import PILOT
    from ftslurm.monitor import summary, table
    from ftslurm.run.journal import last_event
    from ftslurm.submission import submit
    from ftslurm.submission.keeper import control

    run = RunDir(told.run)
    if os.getppid() != told.pid:
        return 1  # the keeper died before the line above took effect
    if told.pilot:
        os.environ[PILOT] = str(told.pid)
    try:
        config, console = configuration.of_run(run), table.console()
        lines, again = table.Lines(console), partial(submit.submit, config, run)
        code = control(config, run, again, lines.tell, lines.know, told.number, told.signals, told.after)
    except FtslurmError as error:
        print(f"ftslurm: {error}", file=sys.stderr)
        return BAD_INPUT
    if last_event(run.events) == "run_finished":
        console.print(summary.summary(lines.status, run))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
