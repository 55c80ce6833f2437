"""The report on a training without a first step has the last words of the ranks."""

from __future__ import annotations

from pathlib import Path

from ftslurm.protocol.records import NoFirstStep
from ftslurm.run.directory import RunDir
from ftslurm.run.first_step_report import with_last_lines


def test_the_journal_gets_the_line_of_rank_0_of_the_attempt_that_runs(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    log = run.rank_log("group-0001", 2, 0)
    log.parent.mkdir(parents=True)
    log.write_text("RuntimeError: boom\n")
    record = NoFirstStep(seconds=120.0, reason="why", groups=({"group": 1, "attempt": 2, "stage": 1},))
    (group,) = with_last_lines(record, run).groups
    assert group == {"group": 1, "attempt": 2, "stage": 1, "last": "RuntimeError: boom"}
