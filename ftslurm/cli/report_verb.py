"""`ftslurm report`: where the time of a run went."""

from __future__ import annotations

import argparse
import json
import sys

from ftslurm.api import state
from ftslurm.cli.run_argument import find_run
from ftslurm.errors import EnvironmentProblem
from ftslurm.monitor import table


def main(args: argparse.Namespace) -> int:
    """Print the report as text or JSON; with the text, write report.html."""
    run = find_run(args)
    report = state.report(run.config, run.files)
    if args.json:
        print(json.dumps(report.json, indent=2))
        return 0
    console = table.console()
    console.print(report.text(), soft_wrap=not report.history.groups)
    try:
        report.write_page(run.files.report)
        print(f"\npage: {run.files.report}")
    except EnvironmentProblem as error:
        print(f"ftslurm: {error}", file=sys.stderr)  # the run of another user
    return 0
