"""`ftslurm report`: where the time of a run went."""

from __future__ import annotations

import json

from ftslurm.api.reporting import read_report
from ftslurm.cli.run_argument import find_run, parser_for
from ftslurm.monitor import table
from ftslurm.report import report_text


def main(words: list[str]) -> int:
    """Print the report as text or JSON."""
    parser = parser_for("report", "Print where the time of a run went; also while it goes on.")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    args = parser.parse_args(words)
    run = find_run(args)
    report = read_report(run.config, run.files)
    if args.json:
        print(json.dumps(report.json, indent=2))
        return 0
    console = table.console()
    text = report_text.render(report.history, report.accounts, report.weight)
    console.print(text, width=min(console.width, report_text.WIDTH))
    return 0
