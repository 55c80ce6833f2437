"""`ftslurm scale`: ask the controller for more groups, or fewer, and print its answer."""

from __future__ import annotations

from ftslurm.cli.run_argument import find_run, parser_for

HELP = """\
example
  ftslurm run groups.count=2 groups.max=4 ...    start with two groups; up to four may be asked for later
  ftslurm scale 4                                two more: each gets its nodes, starts, and heals from a live group
  ftslurm scale 2                                groups 3 and 2 are told to stop (stop.grace_s), their nodes are free

Groups are numbered 0 to groups.max - 1 for the whole run, which scripts see as NUM_REPLICA_GROUPS; so groups.max is set
when the run starts. The last groups leave first, and never so many that fewer than groups.min are left.
Exit code: 0 it is done, 1 the controller refuses or does not answer, 2 this run can never have so many groups.
"""


def main(words: list[str]) -> int:
    """Change the number of groups."""
    about = "Give a running run more groups, or fewer. The others train on meanwhile."
    parser = parser_for("scale", about, HELP)
    parser.add_argument("groups", type=int, metavar="N", help="how many groups the run is to have from now on")
    args = parser.parse_intermixed_args(words)
    print(find_run(args).scale(args.groups))
    return 0
