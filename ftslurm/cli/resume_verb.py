"""`ftslurm resume`: start a new run with the configuration of one that is over, from its newest checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

from ftslurm.api import resuming
from ftslurm.cli import run_verb
from ftslurm.cli.run_argument import find_run, parser_for

HELP = """\
examples
  ftslurm resume                                 the newest run, as it was
  ftslurm resume ddp-20260801-1200-ab job.args.lr=0.001 cluster.time=4:00:00
                                                 with other values
  ftslurm resume RUN faults=none                 a preset replaces its section

An optimizer's state brings its learning rate back: job.args.lr counts only in a script that keeps its own, as the
examples do (`ftslurm help checkpoints`).

The new run has its own directory and id, and names its parent. It is given the parent's checkpoints as hard links and
saves into its own folder, so the parent can be resumed again, or deleted. Where checkpoint.dir was set, or the script
saves in a format of its own, both use the same folder. A run that goes on by itself after its time limit is not over:
it needs no resume. The code is the copy that the parent was submitted with (job.snapshot); after a correction take the
present code with --new-code. Drills of faults.plan that the parent has done are not repeated.
"""


def main(words: list[str]) -> int:
    """Start the run and follow it, as `ftslurm run` does. Return its exit code."""
    about = "Start a new run with the configuration of one that is over, from its newest checkpoint."
    parser = parser_for("resume", about, HELP)
    parser.takes_settings = True
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="changes, as for ftslurm run")
    parser.add_argument("--from-scratch", action="store_true", help="begin at step 0, whatever has been saved")
    parser.add_argument("--new-code", action="store_true", help="take the code as it is now, not the run's own copy")
    args = parser.parse_intermixed_args(words)
    if args.run is not None and "=" in args.run and not Path(args.run).exists():
        args.run, args.overrides = None, [args.run, *args.overrides]
    run_verb.warn_of_exposed_secrets(args.overrides)
    parent = find_run(args)
    resumption = resuming.resume(parent.files, args.overrides, args.from_scratch, args.new_code)
    print(f"ftslurm: resuming {parent.id} from {resumption.begins}, with {resumption.code.says}", file=sys.stderr)
    return run_verb.start(resumption.config, create=resumption.create, judge=not resumption.code.kept)
