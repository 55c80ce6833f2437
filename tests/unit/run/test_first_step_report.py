"""The report on a training without a first step: the ranks' last lines, from arbitrary logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftslurm.protocol.records import NoFirstStep
from ftslurm.run.directory import RunDir
from ftslurm.run.first_step_report import LONGEST, last_line, with_last_lines


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (b"", ""),
        (b"loading\nstep 0\n\n", "step 0"),
        (b"Traceback ...\n  File x\nValueError: boom\nwill wait for others\n", "ValueError: boom"),
        (b"torch.distributed.DistBackendError: a\nKeyboardInterrupt\n", "KeyboardInterrupt"),
        (b"no ErrorLog here\n 10%\r 20%\r", "20%"),
        (b"\x1b]0;mine\x07evil\n", "\\x1b]0;mine\\x07evil"),
        (b"\xff\xfe\n", "\ufffd\ufffd"),
        (b"x" * 500, "x" * (LONGEST - 3) + "..."),
        (b"\x1b" * 500, "\\x1b" * (LONGEST // 4)),
        (b"RuntimeError: too long ago\n" + b"more\n" * 10_000, "more"),
    ],
)
def test_the_newest_error_is_told_else_the_last_line(log: bytes, line: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(log)
    assert last_line(tmp_path / "log") == line


def test_what_is_no_log_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to("secret")
    (tmp_path / "folder").mkdir()
    assert [last_line(tmp_path / name) for name in ("pipe", "link", "folder", "none")] == [""] * 4


def test_the_journal_gets_the_line_of_rank_0_of_the_attempt_that_runs(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    log = run.rank_log("group-0001", 2, 0)
    log.parent.mkdir(parents=True)
    log.write_text("RuntimeError: boom\n")
    record = NoFirstStep(seconds=120.0, reason="why", groups=({"group": 1, "attempt": 2, "stage": 1},))
    (group,) = with_last_lines(record, run).groups
    assert group == {"group": 1, "attempt": 2, "stage": 1, "last": "RuntimeError: boom"}
