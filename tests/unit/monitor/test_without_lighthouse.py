"""The output for a run without a Lighthouse: roles, and no missing parts."""

from __future__ import annotations

from functools import reduce
from io import StringIO
from pathlib import Path

import example_journal as ex
import pytest
from folded import fold
from rich.console import Console, RenderableType

from ftslurm.core.state.model import Phase
from ftslurm.monitor.sentences import describe
from ftslurm.monitor.starting import wait_of
from ftslurm.monitor.status import RunStatus
from ftslurm.monitor.status_json import to_json
from ftslurm.monitor.summary import summary
from ftslurm.monitor.table import render
from ftslurm.run.directory import RunDir

URL = "http://n1:4711/new_session"
ROLES = {"server": 1, "worker": 2}
DONE = "all groups finished, those that only serve are stopped (groups.serve)"


def serving(time: float, attempt: int = 0, **times: object) -> ex.Line:
    known = {"unit": "group-0000", "group": 0, "attempt": attempt, "url": URL, "seconds": 1.5, "recovery_s": None}
    return ex.event(time, "serving", **(known | times))


def opened(time: float, group: int, attempt: int = 0, **times: object) -> ex.Line:
    return ex.event(time, "session_opened", group=group, attempt=attempt, **times)


def served(time: float, step: int, attempt: int = 0) -> ex.Line:
    return ex.event(time, "progress", group=0, attempt=attempt, step=step)


def journal() -> list[ex.Line]:
    """Return a journal of a server and two workers; a worker dies, then the server."""
    return [
        ex.started(3, 400, roles=ROLES, lighthouse="none"),
        *(ex.launched(1, group) for group in range(3)),
        *(ex.ready(2, group) for group in range(3)),
        serving(3),
        *(opened(3.5, group, seconds=2.5, recovery_s=None) for group in (1, 2)),
        served(4, 0),
        served(10, 120),
        ex.exited(11, 1),
        ex.launched(11.1, 1, 1),
        ex.ready(13, 1, 1),
        opened(13, 1, 1, seconds=1.9, recovery_s=2.0, phases=ex.PHASES),
        served(14, 180),
        ex.exited(15, 0, step=180),
        ex.launched(15.1, 0, 1),
        ex.ready(16, 0, 1),
        serving(17, 1, recovery_s=2.0, phases=ex.PHASES),
        served(18, 150, attempt=1),
    ]


def at(time: float) -> RunStatus:
    return fold(RunStatus(), *(line for line in journal() if line["time"] <= ex.START + time))


def drawn(what: RenderableType, width: int = 100) -> str:
    console = Console(file=StringIO(), width=width, _environ={})
    console.print(what)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_it_reads_like_a_story() -> None:
    status, said = RunStatus(), []
    for line in journal():
        status = fold(status, line)
        said.append(describe(line, status))
    log = "logs/group-000{}/attempt-000/rank-0.log"
    assert [words for words in said if words] == [
        "run ddp-0930-k3 starts: 3 groups of 1 worker, on this machine",
        "all 3 groups launched on n1, n2, n3",
        f"group 0 (server) serves at {URL}, 1.5 s after its launch",
        "group 1 (worker) has a session with a server, 2.5 s after its launch",
        "group 2 (worker) has a session with a server, 2.5 s after its launch",
        f"group 1 (worker) attempt 0 died: killed (signal 9) on n2 - log: {log.format(1)}",
        "group 1 (worker) relaunched as attempt 1 on n2, 0.1 s after attempt 0 failed",
        "group 1 (worker) is back: it has a session with a server, 2.0 s after it died",
        f"group 0 (server) attempt 0 died at step 180: killed (signal 9) on n1 - log: {log.format(0)}",
        "group 0 (server) relaunched as attempt 1 on n1, 0.1 s after attempt 0 failed",
        f"group 0 (server) is back: it serves at {URL}, 2.0 s after it died",
    ]


def test_the_table_shows_roles_and_no_lighthouse() -> None:
    text = drawn(render(at(10), ex.START + 10, 100))
    assert "3 of 3 groups running" in text
    assert "step 120/400  20.0 steps/s" in text
    header, server, worker = (
        line.split() for line in text.splitlines() if line.split()[:1] in (["group"], ["0"], ["1"])
    )
    assert header == ["group", "role", "phase", "step", "attempt", "restarts", "steps/s", "node"]
    assert server == ["0", "server", "RUNNING", "120", "0", "0", "20.0", "n1"]
    assert worker == ["1", "worker", "RUNNING", "-", "0", "0", "-", "n2"]
    assert "Lighthouse" not in text
    assert "quorum" not in text


def test_the_json_has_roles() -> None:
    told = to_json(at(18), ex.START + 18)
    assert told["lighthouse"] is None
    assert told["step"] == 150  # the server went back, and the run with it
    groups = told["groups"]
    assert isinstance(groups, list)
    assert [(g["role"], g["waits_for"]) for g in groups] == [("server", None), ("worker", None), ("worker", None)]


def test_the_summary_says_what_the_restarts_cost(tmp_path: Path) -> None:
    lines = [ex.exited(19, 1, 1, "ok"), ex.exited(19, 2, 0, "ok"), ex.exited(20, 0, 1, "cancelled")]
    end = ex.event(20, "run_finished", outcome="succeeded", reason=DONE, steps=400, restarts=2)
    text = drawn(summary(reduce(fold, [*lines, end], at(18)), RunDir(tmp_path)))
    assert DONE in text
    assert "2.0 s" in text
    assert "not back" not in text


def test_groups_that_tell_nothing_run_all_the_same() -> None:
    lines = [
        ex.started(2, None, lighthouse="none"),
        ex.launched(1, 0),
        ex.launched(1, 1),
        ex.ready(2, 0),
        ex.ready(2, 1),
    ]
    lines += [ex.exited(9, 1), ex.launched(9.1, 1, 1, standby="standby-000/0")]
    status = fold(RunStatus(), *lines)
    assert [(g.phase, wait_of(g, status), g.role) for g in status.groups] == [(Phase.RUNNING, None, None)] * 2
    text = drawn(render(status, ex.START + 10, 100))
    assert "2 of 2 groups running" in text
    assert "role" not in text
    assert "group 1 attempt 1: killed" in drawn(summary(status, RunDir(Path("/run"))))  # it is back, at an unknown time


def test_a_server_that_stands_still_is_seen() -> None:
    status = at(18)
    for n in range(6):
        status = fold(status, served(18 + n, 150 + n, attempt=1))
    assert "still for 1 min" not in drawn(render(status, ex.START + 25, 100))
    assert "still for" in drawn(render(status, ex.START + 60, 100))


@pytest.mark.parametrize("field", ["roles", "lighthouse", "url"])
def test_what_another_version_writes_does_no_harm(field: str) -> None:
    lines = [{**line, field: 7} if field in line else line for line in journal()]
    status = fold(RunStatus(), *lines)
    assert len(status.groups) == 3
    for line in lines:
        describe(line, status)
