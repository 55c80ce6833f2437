"""`ftslurm wait`: wait until a run is over."""

from __future__ import annotations

from ftslurm.cli.run_argument import find_run, parser_for
from ftslurm.errors import NotDone
from ftslurm.monitor import sentences

HELP = """\
example
  ftslurm wait && ftslurm report        when the newest run has succeeded
  ftslurm wait 3f2a --timeout 3600      no longer than an hour

Exit code: 0 the run has succeeded, 1 it has failed, was stopped or is not over in time, 2 there is none, or it is lost.
"""


def main(words: list[str]) -> int:
    """Wait for the end of a run.

    Raises:
        NotDone: it is not over in time.
    """
    parser = parser_for("wait", "Wait until a run is over, and return its exit code.", HELP)
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="wait no longer (default: for ever)")
    args = parser.parse_args(words)
    run = find_run(args)
    try:
        status = run.wait(args.timeout)
    except TimeoutError as error:
        raise NotDone(str(error)) from None
    print(f"{run.id} {sentences.ended(status['outcome'])}: {status['reason'] or 'no reason given'}")
    return 0 if status["outcome"] == "succeeded" else 1
