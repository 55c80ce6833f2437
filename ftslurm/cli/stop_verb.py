"""`ftslurm stop`: end a run, or all runs of a sweep."""

from __future__ import annotations

from pathlib import Path

from ftslurm.api import sweeps
from ftslurm.cli.run_argument import find_run, parser_for


def main(words: list[str]) -> int:
    """End a run, or all runs of a sweep."""
    parser = parser_for("stop", "End a run: SIGTERM to the scripts, SIGKILL after stop.grace_s.")
    parser.add_argument("--sweep", metavar="NAME", help="end all runs of this sweep instead")
    parser.add_argument("--save", action="store_true", help="save a checkpoint before; if that fails, the run goes on")
    args = parser.parse_args(words)
    if args.sweep is None:
        print(find_run(args).stop(args.save))
        return 0
    if args.run is not None:
        parser.error(f"RUN ({args.run}) and --sweep: name one of them")
    for line in sweeps.stop(Path(args.root), args.sweep, args.save):
        print(line, flush=True)
    return 0
