"""`ftslurm events`: what has happened in a run, a line for each event."""

from __future__ import annotations

from ftslurm.cli.logs_verb import since
from ftslurm.cli.run_argument import find_run, parser_for
from ftslurm.monitor import table
from ftslurm.run.journal import number

HELP = """\
example
  ftslurm events --since 22:00          what happened last night
  ftslurm events -f | grep 'group 3'    what happens, until the run is over

The lines are those of the job's output file: failures with their causes, restarts, moves, checkpoints, and how far the
run is once a minute. RUN/events.jsonl has every event with all its fields.
"""


def main(words: list[str]) -> int:
    """Print the events."""
    parser = parser_for("events", "Print what has happened in a run, a line for each event.", HELP)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run is over")
    about = "only what has happened since: 10m, 14:30, 2026-11-23T14:30"
    parser.add_argument("--since", type=since, default=0.0, metavar="TIME", help=about)
    args = parser.parse_args(words)
    lines = table.Lines(table.console())
    for event in find_run(args).lines(args.follow):
        lines.tell(event, shown=(number(event, "time") or 0.0) >= args.since)
    return 0
