"""`ftslurm drain`: have a running run leave a node."""

from __future__ import annotations

from ftslurm.cli.run_argument import find_run, parser_for

HELP = """\
example
  ftslurm drain n3                      what the run has on n3 moves away, one group at a time; n3 gets nothing more
  ftslurm undrain n3                    n3 may be used again

Groups, warm standbys and the Lighthouse move to free nodes of the run. If none is free, the group stays there until one
is; with cluster.requeue (the default) a Slurm job is asked for. The answer names what is there. A move
counts against no budget (restart.max_per_group). Slurm knows nothing of it: other runs may use the node, and this run
keeps it in its allocation; in array mode the group's old job is given back. `ftslurm status` names drained nodes.
Exit code: 0 it is done, 1 the controller refuses or does not answer, 2 the run is over or has no controller.
"""


def main(words: list[str]) -> int:
    """Drain a node."""
    parser = parser_for("drain", "Leave a node out of a running run: what runs there moves away politely.", HELP)
    parser.add_argument("node", metavar="NODE", help="as squeue and `ftslurm status` name it")
    args = parser.parse_intermixed_args(words)
    print(find_run(args).drain(args.node))
    return 0
