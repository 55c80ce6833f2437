"""`ftslurm scale`: ask the controller for more groups, or fewer, and print its answer."""

from __future__ import annotations

from ftslurm.cli import answers
from ftslurm.cli.run_argument import find_run, parser_for
from ftslurm.core.jobs.scale import refused
from ftslurm.errors import EnvironmentProblem
from ftslurm.protocol.records import JournalEvent, Scaled, ScaleRefused
from ftslurm.run import configuration, inbox
from ftslurm.run.journal import JournalReader

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
    """Change the number of groups.

    Raises:
        EnvironmentProblem: the run can never have so many groups, or has no controller.
    """
    about = "Give a running run more groups, or fewer. The others train on meanwhile."
    parser = parser_for("scale", about, HELP)
    parser.add_argument("groups", type=int, metavar="N", help="how many groups the run is to have from now on")
    args = parser.parse_intermixed_args(words)
    run = find_run(args)
    config, reader = configuration.of_run(run), JournalReader(run.events)
    why_not = refused(args.groups, config)
    if why_not is not None:
        raise EnvironmentProblem(f"{run.root.name} cannot have {args.groups} groups: {why_not}")
    status = answers.status_of_running(config, run, reader, "it cannot become larger or smaller")
    inbox.put(run.inbox, "scale", groups=args.groups)

    def is_answer(record: JournalEvent) -> bool:
        return isinstance(record, (Scaled, ScaleRefused)) and record.groups == args.groups and answers.is_mine(record)

    return answers.print_answer(run, reader, status, is_answer, done=Scaled)
