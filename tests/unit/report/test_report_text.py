"""The report as text and as JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import example_journal as ex
import pytest
from folded import fold
from json_schema import check_report
from rich.console import Console

from ftslurm.cli import main as cli
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.monitor.status import RunStatus
from ftslurm.report.accounting import account
from ftslurm.report.history_fold import fold_history
from ftslurm.report.run_report import Report
from ftslurm.run.directory import RunDir

WIDTH = 80


def report_of(lines: list[ex.Line]) -> Report:
    history = fold_history(lines)
    return Report(fold(RunStatus(), *lines), history, account(history))


def text(lines: list[ex.Line]) -> str:
    console = Console(width=WIDTH, file=io.StringIO(), record=True)
    console.print(report_of(lines).text())
    return console.export_text()


def run_of(folder: Path, lines: list[ex.Line]) -> RunDir:
    run = ex.new_run(folder, lines)
    run.config.write_text(compose.dump(Config()))
    return run


@pytest.mark.parametrize("lines", [[], ex.one_kill(), ex.lost_node(), ex.old(ex.one_kill())])
def test_the_text_fits_a_terminal_of_80_columns(lines: list[ex.Line]) -> None:
    assert max(len(line.rstrip()) for line in text(lines).splitlines()) <= WIDTH


def test_the_log_of_a_failure_is_named_to_its_end() -> None:
    assert "logs/group-0001/attempt-000/rank-0.log" in "".join(map(str.strip, text(ex.one_kill()).splitlines()))


def test_the_text_says_what_failed_where_and_how_long_the_recovery_took() -> None:
    shown = " ".join(text(ex.one_kill()).split())
    assert "run ddp-0930-k3 succeeded" in shown
    assert "killed (signal 9) on n2 (drill: kill)" in shown
    assert "group 1 attempt 0" in shown
    assert "2.1 s" in shown
    assert "import 0.9 s" in shown


@pytest.mark.parametrize("lines", [[], ex.one_kill(), ex.lost_node(), ex.old(ex.one_kill())])
def test_the_json_fits_its_schema(lines: list[ex.Line]) -> None:
    for cut in (0, 1, 20, len(lines)):
        check_report(json.loads(json.dumps(report_of(lines[:cut]).json)))


def test_the_verb_prints_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, ex.one_kill())
    assert cli.main(["report", str(run.root)]) == 0
    assert "Lost time by cause" in capsys.readouterr().out
    assert cli.main(["report", str(run.root), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["outcome"], report["steps"], len(report["failures"])) == ("succeeded", 120, 1)


def test_control_characters_of_a_script_are_written_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, [*ex.one_kill()[:-1], ex.finished(28, "failed", reason="\x1b]0;owned\x07")])
    assert cli.main(["report", str(run.root)]) == 0
    assert "\x1b" not in capsys.readouterr().out
