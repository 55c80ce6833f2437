"""`status` as a person sees it: through a real pseudo-terminal; and what a pipe gets."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import example_journal as ex
import pytest
from screen import Screen

from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.run.directory import RunDir

LIMITS = {"start": 600.0, "join": 1800.0, "first_step": 120.0}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run without a controller that began a minute ago: 0 steps, 1 imports, 2 is given up, 3 waits for a node."""
    began = time.time() - 60 - ex.START
    node = "gpu-node-{:03d}.cluster"
    lines = [ex.started(4, limits=LIMITS), *ex.lighthouse(0.2)]
    lines += [ex.launched(1, g, node=node.format(g)) for g in range(4)]
    lines += [ex.ready(2, 0), ex.joined(3, 0, 1)]
    known = {"unit": "group-0001", "group": 1, "attempt": 0, "since": ex.START + 1 + began}
    lines += [ex.event(6, "step_starting", **known, stage="import", tasks=4, missing=[2], lacks=1)]
    lines += [ex.exited(7, 2), ex.event(7, "group_given_up", group=2, reason="6 failures (restart.max_per_group=5)")]
    lines += [ex.exited(8, 3), ex.event(8, "restart_scheduled", group=3, attempt=1, due=ex.START + 8, reason="")]
    lines += [ex.event(8, "group_waits", group=3, reason="a free node", allocation=None)]
    lines += [ex.progress(t, 0, 1 + t) for t in range(9, 60)]
    run = ex.new_run(tmp_path, [{**line, "time": line["time"] + began} for line in lines])
    config = Config()
    config.job.script, config.run.name = "train.py", "ddp"
    config.cluster.kind, config.groups.count, config.groups.workers = "local", 4, 4
    run.config.write_text(compose.dump(config))
    for group, rank, text in ((0, 0, "step 59"), (1, 2, "loading \x1b]0;x\x07the model"), (2, 0, "ValueError: x")):
        log = run.rank_log(f"group-{group:04d}", 0, rank)
        log.parent.mkdir(parents=True)
        log.write_text("".join(f"line {n}\n" for n in range(300)) + f"{text}\n")
    return run


@pytest.fixture
def status(run: RunDir) -> Iterator[Callable[..., Screen]]:
    """A function that starts `ftslurm status` in a terminal and waits for the table."""
    screens: list[Screen] = []

    def start(columns: int = 80, lines: int = 30) -> Screen:
        screens.append(Screen(["status", "-w", str(run.root)], columns, lines))
        screens[-1].shows("Lighthouse RUNNING")
        return screens[-1]

    yield start
    for screen in screens:
        screen.close()


def groups(screen: Screen) -> list[str]:
    """Return the numbers of the groups, in the order on the screen."""
    rows = (re.match(r" +(\d) +[A-Z]{6}", row) for row in screen.rows)
    return [row[1] for row in rows if row]


@pytest.mark.parametrize("columns", [80, 140])
def test_a_group_that_starts_is_told_in_full_on_a_screen(columns: int, status: Callable[..., Screen]) -> None:
    screen = status(columns)
    words = " ".join(screen.text.split())
    assert re.search(r"waits for rank 2: imports, (59|6\d) s of 600 s \(health.start_timeout_s\)", words)
    assert re.search(r"waits for a free node, 5\d s", words)
    assert "6 failures (restart.max_per_group=5)" in words
    assert all(f"gpu-node-00{n}.cluster" in words for n in range(4))
    assert "…" not in screen.text
    header = next(row for row in screen.rows if row.startswith("group "))
    assert " groups " in header
    assert "quorum" not in header


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_terminal_is_as_before_after_a_signal(number: int, status: Callable[..., Screen]) -> None:
    screen = status()
    os.kill(screen.process.pid, number)
    screen.until(lambda: screen.process.poll() is not None, "the end")
    assert screen.process.returncode == 130
    assert screen.restored()
    screen.read()
    assert "Traceback" not in screen.text
    assert not screen.screen.cursor.hidden


def test_a_low_screen_tells_of_the_failed_group_first(status: Callable[..., Screen]) -> None:
    screen = status(lines=12)
    assert groups(screen)[0] == "2"
    assert "6 failures (restart.max_per_group=5)" in screen.text
    assert re.search("more (RUNNING|STARTING|PENDING)", screen.text)


def test_a_pipe_gets_plain_lines_without_padding_or_cuts(run: RunDir) -> None:
    words = [sys.executable, "-m", "ftslurm", "status", str(run.root)]
    told = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"COLUMNS": "40"}, check=True).stdout
    lines = told.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert not set("\x1b…━") & set(told)
    (row,) = [line for line in lines if re.match(" +1 +STARTING", line)]
    waits = r" gpu-node-001.cluster waits for rank 2: imports, \d+ s of 600 s \(health.start_timeout_s\)"
    assert re.search(waits + "$", row)


def test_without_w_a_terminal_gets_what_a_pipe_gets_once(run: RunDir) -> None:
    for words in (["status", str(run.root)], ["list", "--root", str(run.root.parent)]):
        screen = Screen(words, 120)
        try:
            screen.until(lambda screen=screen: screen.process.poll() is not None, "the end")
            assert screen.process.returncode == 0
        finally:
            screen.close()


def test_all_runs_into_a_pipe_are_plain_lines(run: RunDir) -> None:
    words = [sys.executable, "-m", "ftslurm", "list", "--root", str(run.root.parent)]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert re.search(r"^ddp-0930-k3 +silent +60/120 ", told, re.MULTILINE)
    assert [line for line in told.splitlines() if line != line.rstrip()] == []
