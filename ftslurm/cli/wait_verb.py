"""`ftslurm wait`: wait until a run is over."""

from __future__ import annotations

import argparse

from ftslurm.cli.run_argument import find_run
from ftslurm.errors import NotDone
from ftslurm.monitor import sentences
from ftslurm.protocol.run_states import exit_code


def main(args: argparse.Namespace) -> int:
    """Wait for the end of a run.

    Raises:
        NotDone: it is not over in time.
    """
    run = find_run(args)
    try:
        status = run.wait(args.timeout)
    except TimeoutError as error:
        raise NotDone(str(error)) from None
    print(f"{run.id} {sentences.ended(status['outcome'])}: {status['reason'] or 'no reason given'}")
    return exit_code(status["outcome"], status["missing"])
