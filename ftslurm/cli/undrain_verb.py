"""`ftslurm undrain`: have a running run use a drained node again."""

from __future__ import annotations

from ftslurm.cli.run_argument import find_run, parser_for

HELP = """\
example
  ftslurm undrain n3                    n3, which `ftslurm drain n3` has left out, may be used again

A node that has failed its check (health.preflight) may be used again, and is checked before.
Groups that have moved away stay where they are; one that waits for a node starts at once.
Exit code: 0 it is done, 1 the controller refuses or does not answer, 2 the run is over or has no controller.
"""


def main(words: list[str]) -> int:
    """Take back the drain of a node."""
    parser = parser_for("undrain", "Let a running run use a drained node again.", HELP)
    about = "a node that was drained with `ftslurm drain`, or has failed its check"
    parser.add_argument("node", metavar="NODE", help=about)
    args = parser.parse_intermixed_args(words)
    print(find_run(args).undrain(args.node))
    return 0
