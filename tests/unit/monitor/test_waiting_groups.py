"""What `status` tells of a group that starts or waits: for what, since when, how long it may, what it printed last."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import example_journal as ex
import pytest
from folded import fold
from rich.console import Console

from ftslurm.core.groups.reports import SILENT
from ftslurm.monitor import sentences
from ftslurm.monitor.status import RunStatus
from ftslurm.monitor.status_json import to_json
from ftslurm.monitor.table import follow

LIMITS = {"start": 600.0, "join": 1800.0, "first_step": 120.0}


def status_of(*lines: ex.Line) -> RunStatus:
    return fold(RunStatus(), *[ex.started(2, limits=LIMITS), ex.launched(1, 0), *lines])


def starting(time: float, stage: str, **fields: Any) -> ex.Line:
    known = {"unit": "group-0000", "group": 0, "attempt": 0, "stage": stage, "since": ex.START + 1, "tasks": 4}
    return ex.event(time, "step_starting", **(known | fields))


def words(status: RunStatus, now: float = 13) -> str | None:
    return sentences.waits(status.groups[0], status, ex.START + now)


@pytest.mark.parametrize(
    ("stage", "fields", "said"),
    [
        ("launch", {"lacks": 3, "missing": [1, 2, 3]}, "3 of 4 ranks: launch, 12 s of 600 s (health.start_timeout_s)"),
        (
            "launch",
            {"lacks": 4, "missing": [0, 1, 2, 3]},
            f"4 of 4 ranks: launch; {SILENT}, 12 s of 600 s (health.start_timeout_s)",
        ),
        ("import", {"lacks": 1, "missing": [2]}, "rank 2: imports, 12 s of 600 s (health.start_timeout_s)"),
        ("lighthouse", {}, "the Lighthouse, 12 s"),
        ("store", {}, "the store of rank 0, 12 s of 600 s (health.start_timeout_s)"),
        ("others", {"other": 7}, "group 7: all begin together, 12 s"),
        ("script", {}, "its script to begin training, 12 s, a warning at 120 s (job.longest_step_s)"),
        ("quorum", {}, "a quorum, or heals, 12 s, a warning at 120 s (job.longest_step_s)"),
        ("step", {}, "its first step, 12 s, a warning at 120 s (job.longest_step_s)"),
        ("of another version", {}, "of another version, 12 s"),
    ],
)
def test_a_group_that_starts_says_what_it_waits_for_and_its_limit(stage: str, fields: Any, said: str) -> None:
    assert words(status_of(starting(6, stage, **fields))) == f"waits for {said}"


def test_before_the_first_report_it_waits_for_its_workers() -> None:
    assert words(status_of(), 4) == "waits for workers, 3 s of 600 s (health.start_timeout_s)"


def test_a_group_that_comes_back_to_a_run_that_steps_has_the_limit_of_joining() -> None:
    begun = ex.event(2, "script_begun", unit="group-0000", group=0, attempt=0)
    status = status_of(begun, ex.launched(2, 1), ex.joined(3, 1, 1))
    assert words(status) == "waits for its script to begin training, 11 s of 1800 s (job.longest_step_s)"
    status = fold(status, ex.joined(14, 0, 2))
    assert words(status, 15) is None


def test_a_group_without_a_node_says_so_also_in_json() -> None:
    down = [ex.exited(2, 0), ex.event(2, "restart_scheduled", group=0, attempt=1, due=ex.START + 6, reason="")]
    assert words(status_of(*down), 3) == "waits for its next launch, 1 s of 4 s (restart.backoff_s)"
    waits = ex.event(6, "group_waits", group=0, reason="a free node", allocation=None)
    status = status_of(*down, waits)
    assert words(status) == "waits for a free node, 7 s"
    group = to_json(status, ex.START + 13)["groups"][0]
    known = {"waits_for": "a free node", "since": ex.START + 6, "limit_s": None, "setting": None}
    assert known.items() <= group.items()


def test_each_report_has_its_own_words() -> None:
    second = starting(6, "script") | {"unit": "group-0001", "group": 1}
    one = status_of(ex.launched(1, 1), first := starting(6, "script"))
    assert sentences.describe(first, one) == "group 0 waits for its script to begin training"
    assert sentences.describe(second, fold(one, second)) == "group 1 waits for its script to begin training"


def test_a_followed_run_has_a_line_for_each_report_where_no_table_shows_it(tmp_path: Path) -> None:
    reports = [starting(6, "script") | {"unit": f"group-{n:04d}", "group": n} for n in range(3)]
    run = ex.new_run(tmp_path, [ex.started(3, limits=LIMITS), *(ex.launched(1, n) for n in range(3)), *reports])
    pipe, terminal = io.StringIO(), io.StringIO()
    follow(run, console=Console(file=pipe, width=300), until=lambda: True)
    follow(run, console=Console(file=terminal, width=300, force_terminal=True), until=lambda: True)
    said = [f"group {n} waits for its script to begin training" for n in range(3)]
    assert [line.partition(" ")[2] for line in pipe.getvalue().splitlines() if " waits " in line] == said
    assert not any(line in terminal.getvalue() for line in said)
    assert "waits for its script to begin training" in terminal.getvalue()
