"""A log that is too large is cut in place while it is written, and says what is missing."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ftslurm.config.schema import Config
from ftslurm.core.state.model import StepId
from ftslurm.guard.processes import PR_SET_CHILD_SUBREAPER, prctl
from ftslurm.launchers.local import ThisMachine
from ftslurm.launchers.scheduler import Command
from ftslurm.launchers.step_processes import Children, StepEnded
from ftslurm.run import log_cap
from ftslurm.run.directory import RunDir
from ftslurm.run.log_cap import HEAD, MB, Gap, cut, read_gap

NOTICE = re.compile(rb"^ftslurm: (\d+) bytes of this log were dropped here \(logs\.max_mb=1\)\n", re.MULTILINE)


def line(number: int) -> bytes:
    return b"line %07d %s\n" % (number, b"x" * 50)


def lines(first: int, count: int) -> bytes:
    return b"".join(line(number) for number in range(first, first + count))


LINE = len(line(0))
TOO_MANY = 2 * MB // LINE


def test_the_beginning_and_the_end_stay_and_a_line_says_what_was_dropped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(lines(0, TOO_MANY))
    assert cut(log, 1) is not None
    text = log.read_bytes()
    assert len(text) < MB
    (found,) = NOTICE.finditer(text)
    head, tail = text[: found.start()], text[found.end() :]
    assert HEAD - LINE < len(head) <= HEAD
    assert head == lines(0, len(head) // LINE)
    assert MB // 4 - LINE <= len(tail) <= MB // 4
    assert tail == lines(TOO_MANY - len(tail) // LINE, len(tail) // LINE)
    assert int(found[1]) == TOO_MANY * LINE - len(head) - len(tail)


def test_cut_again_and_again_it_still_says_how_much_is_missing_in_all(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for part in range(5):
        with log.open("ab") as file:
            file.write(lines(part * TOO_MANY, TOO_MANY))
        assert cut(log, 1) is not None
    text = log.read_bytes()
    (found,) = NOTICE.finditer(text)
    assert text.endswith(line(5 * TOO_MANY - 1))
    assert int(found[1]) == 5 * TOO_MANY * LINE - found.start() - len(text[found.end() :])


@pytest.mark.parametrize("max_mb", [0, 2])
def test_one_that_is_not_too_large_and_one_without_a_cap_are_left_alone(max_mb: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(lines(0, TOO_MANY))
    assert cut(log, max_mb) is None
    assert log.read_bytes() == lines(0, TOO_MANY)


def test_what_cannot_be_cut_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("log")
    (tmp_path / "log").write_bytes(b"x" * 2 * MB)
    for path in (tmp_path / "none", tmp_path / "link", Path("/dev/zero")):
        assert cut(path, 1) is None
    assert (tmp_path / "log").stat().st_size == 2 * MB


def test_a_line_longer_than_all_that_is_kept_has_its_end_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 2 * MB + b"end\n")
    cut(log, 1)
    text = log.read_bytes()
    assert NOTICE.match(text)
    assert text.endswith(b"xend\n")


@pytest.mark.parametrize(("width", "count"), [(50, 60_000), (20_000, 2_000), (150_000, 300)])
def test_lines_of_who_writes_all_the_time_stay_whole_and_in_order(width: int, count: int, tmp_path: Path) -> None:
    log, length = tmp_path / "log", len(line(0)) - 50 + width
    code = f"import os\nfor n in range({count}): os.write(1, b'line %07d ' % n + b'x' * {width} + b'\\n')"
    with log.open("ab") as out:
        writer = subprocess.Popen([sys.executable, "-c", code], stdout=out)
    cuts = 0
    while writer.poll() is None:
        cuts += cut(log, 1) is not None
    cuts += cut(log, 1) is not None
    assert cuts > 0
    text = log.read_bytes()
    numbers = [int(n) for n in re.findall(rb"^line (\d+) x+$", text, re.MULTILINE)]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 0
    said = sum(int(found[1]) for found in NOTICE.finditer(text))
    assert len(NOTICE.sub(b"", text)) == len(numbers) * length
    assert said + len(numbers) * length <= count * length + 100 * cuts  # the line that reports it may be dropped too


def test_positions_follow_the_lines() -> None:
    before, after = Gap(100), Gap(100, 50, 1000)
    assert [after.offset(before.stream(n)) for n in (0, 99, 100, 500, 1099)] == [0, 99, 100, 100, 100]
    assert [after.offset(before.stream(n)) for n in (1100, 1200)] == [150, 250]
    later = Gap(100, 50, 3000)
    assert later.offset(after.stream(150 + 1999)) == 100
    assert later.offset(after.stream(150 + 2000)) == 150


def test_where_it_was_cut_is_found_again(tmp_path: Path) -> None:
    said = b"ftslurm: 77 bytes of this log were dropped here (logs.max_mb=1)\n"
    for text, found in ((b"", Gap(0)), (b"a\nb\nhalf", Gap(4)), (b"a\n" + said + b"b\n", Gap(2, len(said), 77))):
        (tmp_path / "log").write_bytes(text)
        with (tmp_path / "log").open("rb") as log:
            assert read_gap(log.fileno()) == read_gap(log.fileno(), found.start) == found


def test_the_log_of_the_controller_is_kept_below_the_cap(tmp_path: Path) -> None:
    logger = logging.Logger("of a controller")
    log_cap.log_to(logger, tmp_path / "controller.log", 1)
    for number in range(3000):
        logger.info("%d %s", number, "x" * 1000)
    logger.handlers[0].close()
    text = (tmp_path / "controller.log").read_bytes()
    assert len(text) <= MB + 2000
    assert NOTICE.search(text)
    assert b" INFO 0 x" in text[:50]
    assert b" INFO 2999 x" in text.splitlines()[-1]


def test_what_a_step_says_is_kept_below_the_cap(tmp_path: Path) -> None:
    flood, children = "x" * 54 + "flood", Children(tmp_path, ThisMachine(Config(), RunDir(tmp_path)), log_max_mb=1)
    try:
        command = Command(["/bin/sh", "-c", f"yes {flood} | head -c 2400000 >&2; echo end >&2"], dict(os.environ))
        assert children.launch(StepId("group-0000", 0), [command], tmp_path / "step.log") is None
        while not any(isinstance(one, StepEnded) for one in list(children.listen(0.1))):
            pass
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)
    text = (tmp_path / "step.log").read_bytes()
    assert len(text) <= MB + 65536
    assert NOTICE.search(text)
    assert text.endswith(b"flood\nend\n")
