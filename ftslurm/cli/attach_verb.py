"""`ftslurm attach`: a shell beside a rank, on its node and with its environment."""

from __future__ import annotations

import os
import sys

from ftslurm.cli.run_argument import find_run, parser_for
from ftslurm.errors import EnvironmentProblem
from ftslurm.slurm import commands

HELP = """\
example
  ftslurm attach --group 1 --rank 3     a shell on the node of rank 3 of group 1: nvidia-smi, py-spy top, ls, ...
  ftslurm attach --group 1 --print      the command that this runs, without running it

The shell has the variables that the rank's script began with (RANK, MASTER_ADDR, CUDA_VISIBLE_DEVICES, secrets, ...)
and its working directory. On Slurm it is a step of its own in the same job (srun --overlap --pty); it takes no
resources from the rank. When the rank ends, the shell says so and goes on; it ends with the job. It is in the
rank's container, if it may be entered.
Exit code: that of the shell; 1 the group does not run, 2 there is no such group or rank, or the run is over.
"""


def main(words: list[str]) -> int:
    """Start a shell beside a rank.

    Raises:
        EnvironmentProblem: this is no terminal, or srun is not there.
    """
    parser = parser_for("attach", "Start a shell beside a rank of a running run, with its environment.", HELP)
    parser.add_argument("--group", type=int, required=True, metavar="N", help="of this group")
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="this rank of the group (default: 0)")
    parser.add_argument("--print", action="store_true", help="print the command instead of running it")
    args = parser.parse_args(words)
    command = find_run(args).attach(args.group, args.rank)
    if args.print:
        import shlex

        print(shlex.join(command))
        return 0
    if not sys.stdin.isatty():
        raise EnvironmentProblem("attach needs a terminal: the standard input is none (--print shows the command)")
    try:
        os.execvpe(command[0], command, commands.scrubbed(os.environ))  # noqa: S606 an argument list
    except OSError as error:
        raise EnvironmentProblem(f"{command[0]} cannot be started: {error.strerror}") from error
