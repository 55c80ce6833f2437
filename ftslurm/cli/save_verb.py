"""`ftslurm save`: have a running run save a checkpoint now."""

from __future__ import annotations

from ftslurm.cli.run_argument import find_run, parser_for

HELP = """\
example
  ftslurm save                          save: checkpoint of step 1204: /.../checkpoints/step-00001204.json

The training goes on meanwhile. The checkpoint is that of the next committed step, whatever checkpoint.every is; the
command returns when it is complete. Only scripts with an ftslurm.checkpoint.Checkpointer can be asked to save
(`ftslurm help checkpoints`); Ctrl-C ends the wait, not the save.
Exit code: 0 it is saved, 1 it cannot be, 2 the run is over or has no controller.
"""


def main(words: list[str]) -> int:
    """Save a checkpoint."""
    args = parser_for("save", "Save a checkpoint of a running run now, and wait until it is complete.", HELP)
    print(find_run(args.parse_args(words)).save())
    return 0
