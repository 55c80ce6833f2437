"""`ftslurm resume`: start a new run with the configuration of one that is over, from its newest checkpoint."""

from __future__ import annotations

import argparse
import os
import sys

from ftslurm.api import resuming
from ftslurm.cli import run_verb
from ftslurm.cli.run_argument import find_run
from ftslurm.code import provenance


def main(args: argparse.Namespace) -> int:
    """Start the run and follow it, as `ftslurm run` does. Return its exit code."""
    if args.run is not None and "=" in args.run and not os.path.exists(args.run):
        args.run, args.overrides = None, [args.run, *args.overrides]
    parent = find_run(args)
    resumption = resuming.resume(parent.files, args.overrides, args.from_scratch, args.new_code)
    code = "its copy of the code (--new-code takes the code as it is now)"
    if resumption.code is None:
        code = "the code as it is now"
    print(f"ftslurm: resuming {parent.id} from {resumption.begins}, with {code}", file=sys.stderr)
    run_verb.tell(provenance.changed(parent.files.root, resumption.config))
    return run_verb.start(resumption.config, create=resumption.create, judge=resumption.code is None)
