"""`ftslurm restart`: have one group of a running run start again."""

from __future__ import annotations

from ftslurm.cli.run_argument import find_run, parser_for

HELP = """\
example
  ftslurm restart --group 1             group 1 gets SIGTERM, and SIGKILL after stop.grace_s; then it starts again
  ftslurm restart 3f2a --group 1 --rank 3   the same in another run; the journal names rank 3 and its node

A group starts again as a whole: its ranks share collectives, so no rank can leave alone. The others train on, and the
group heals from them. A warm standby takes over if there is one. It counts against no budget (restart.max_per_group)
and is done also with restart=never. It is refused if no other group holds the training's state.
To have it start on another node: ftslurm drain.
Exit code: 0 it is done, 1 the controller refuses or does not answer, 2 the run is over or has no controller.
"""


def main(words: list[str]) -> int:
    """Restart one group."""
    parser = parser_for("restart", "Have one group leave politely and start again. The others train on.", HELP)
    parser.add_argument("--group", type=int, required=True, metavar="N", help="this group")
    parser.add_argument("--rank", type=int, metavar="R", help="for the sake of this rank, which is told with its node")
    args = parser.parse_args(words)
    print(find_run(args).restart(args.group, args.rank))
    return 0
