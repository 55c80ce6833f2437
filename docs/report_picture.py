"""Draw docs/report.png, the picture of report.html in docs/goodput.md: python docs/report_picture.py runs/RUN

Needs Chromium (apt install chromium).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from ftslurm.report.run_report import read_report
from ftslurm.run import configuration
from ftslurm.run.directory import RunDir

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "helpers"))

from browser import browser  # noqa: E402


def main(words: list[str]) -> None:
    run, out = RunDir(Path(words[0]).absolute()), Path(words[1]) if len(words) > 1 else HERE / "report.png"
    with tempfile.TemporaryDirectory() as folder, browser() as tab:
        page = Path(folder) / "report.html"
        read_report(configuration.of_run(run), run).write_page(page)
        tab.look(width=1100, height=1000)
        tab.open(page)
        out.write_bytes(tab.picture(whole=False))


if __name__ == "__main__":
    main(sys.argv[1:])
