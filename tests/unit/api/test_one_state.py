"""What a run is, every reader says alike; and who only reads a run writes nothing into its directory."""

from __future__ import annotations

import io
import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import example_journal as ex
import pytest
from json_schema import check_report, check_status
from programs import Programs

from ftslurm.api.answers import Conversation
from ftslurm.api.run import Run
from ftslurm.cli.main import main
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.errors import EnvironmentProblem, FtslurmError
from ftslurm.monitor import table
from ftslurm.protocol.run_states import GOING, OVER, STATES
from ftslurm.run.directory import RunDir, replace_text

GONE = 2**22 + 1  # no process can have this id
ROW = "{name}|{name}|{state}|None|{user}|{run}/submitit/x.sh|{mark}|"


def a_run(root: Path, kind: str, mode: str, began: bool, job: str | None, alive: bool, *lines: ex.Line) -> RunDir:
    """Make a run; `job` is the controller's Slurm job, or its process."""
    run = RunDir(root / "runs" / "a")
    run.create()
    config = Config()
    config.job.script, config.run.name, config.groups.count = __file__, "a", 3
    config.cluster.kind = "array" if mode == "array" else kind
    run.config.write_text(compose.dump(config))
    os.utime(run.config, (ex.START, ex.START))
    if job is not None and not job.startswith("alloc"):
        replace_text(run.job_id, job)
    if alive:
        run.alive.touch()
    begun = ex.started() | {
        "cluster": config.cluster.kind,
        "mode": "array" if mode == "array" else "steps" if kind == "slurm" else "local",
    }
    begun |= {"job_id": (job or "").removeprefix("alloc") or None, "host": platform.node(), "pid": GONE}
    begun |= {"host": "elsewhere"} if job == "alloc1" else {}
    end = [ex.finished(9, mode)] if mode in OVER else []
    return ex.write(run, [begun, ex.launched(1, 0), ex.ready(2, 0), *lines, *end]) if began else run


# kind, mode, has begun, job or process, was heard just now, jobs in squeue (None: no answer), what it is
Case = tuple[str, str, bool, str | None, bool, dict[str, str] | None, str]
CASES: dict[str, Case] = {
    "local": ("local", "steps", True, str(os.getpid()), True, {}, "running"),
    "local, killed": ("local", "steps", True, str(GONE), True, {}, "lost"),
    "local, killed long ago": ("local", "steps", True, str(GONE), False, {}, "lost"),
    "local, starts": ("local", "steps", False, str(os.getpid()), False, {}, "waiting"),
    "local, killed at its start": ("local", "steps", False, str(GONE), False, {}, "failed"),
    "local, never submitted": ("local", "steps", False, None, False, {}, "lost"),
    "local, on another machine": ("local", "steps", True, "alloc1", True, {}, "running"),
    "local, on another machine and silent": ("local", "steps", True, "alloc1", False, {}, "silent"),
    "trains": ("slurm", "steps", True, "81", True, {"81": "RUNNING"}, "running"),
    "silent": ("slurm", "steps", True, "81", False, {"81": "RUNNING"}, "silent"),
    "cancelled": ("slurm", "steps", True, "81", True, {"81": "CANCELLED"}, "lost"),
    "forgotten": ("slurm", "steps", True, "81", False, {}, "lost"),
    "its pilots outlive it": ("slurm", "steps", True, "81", True, {"81": "FAILED", "82": "RUNNING"}, "lost"),
    "nobody answers": ("slurm", "steps", True, "81", False, None, "silent"),
    "waits": ("slurm", "steps", False, "81", False, {"81": "PENDING"}, "waiting"),
    "begins": ("slurm", "steps", False, "81", False, {"81": "RUNNING"}, "waiting"),
    "cancelled in the queue": ("slurm", "steps", False, "81", False, {"81": "CANCELLED"}, "stopped"),
    "requeued": ("slurm", "steps", True, "81", False, {"81": "PENDING"}, "waiting"),
    "in an allocation": ("slurm", "steps", True, "alloc81", True, {"81": "RUNNING"}, "running"),
    "in an allocation that is gone": ("slurm", "steps", True, "alloc81", False, {}, "lost"),
    "nobody says whether it waits": ("slurm", "steps", False, "81", False, None, "unknown"),
    "its state is in no list": ("slurm", "steps", False, "81", False, {"81": "HIBERNATING"}, "unknown"),
    "trains in a state that is in no list": ("slurm", "steps", True, "81", True, {"81": "HIBERNATING"}, "running"),
    "held after a requeue": ("slurm", "steps", True, "81", False, {"81": "REQUEUE_HOLD"}, "waiting"),
    **{f"{end}": ("slurm", end, True, "81", True, {"81": "RUNNING"}, end) for end in OVER},
    **{f"local, {end}": ("local", end, True, str(GONE), False, {}, end) for end in OVER},
    "array": ("slurm", "array", True, "81", False, {"81": "FAILED", "82": "RUNNING"}, "silent"),
    "array, another leads": ("slurm", "array", True, "81", True, {"82": "RUNNING"}, "running"),
    "array, all gone": ("slurm", "array", True, "81", False, {"81": "FAILED", "82": "CANCELLED"}, "lost"),
    "array by hand": ("slurm", "array", True, "alloc81_0", False, {"81_1": "RUNNING"}, "silent"),
    "array by hand, all gone": ("slurm", "array", True, "alloc81_0", False, {"81_1": "FAILED"}, "lost"),
}


def test_every_state_has_its_case() -> None:
    assert {case[-1] for case in CASES.values()} == set(STATES) - {"unreadable"}


def squeue(programs: Programs, run: RunDir, jobs: dict[str, str] | None) -> None:
    rows = [
        ROW.format(name=name, state=state, user=run.root.owner(), run=run.root, mark=f"{run.mark()}:0")
        for name, state in (jobs or {}).items()
    ]
    one = next(iter((jobs or {}).values()), "")
    body = "\n".join(["case $* in *--jobs=*)", f"  echo '{one} None'; exit;; esac", "cat <<'END'", *rows, "END"])
    programs.add("squeue", body="echo Unable to contact slurm controller >&2; exit 1" if jobs is None else body)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_reader_says_the_same(
    case: Case, tmp_path: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    *where, jobs, state = case
    run = a_run(tmp_path, *where)  # type: ignore[arg-type]
    squeue(programs, run, jobs)
    assert main(["list", "--root", str(run.root.parent), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert row["state"] == state
    outcome = "running" if state in GOING else state
    assert main(["status", str(run.root), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    check_status(status)
    assert (status["state"], status["outcome"]) == (state, outcome)
    if outcome == "running" or state == "lost":
        assert status["note"] == row["note"]
    assert main(["report", str(run.root), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    check_report(report)
    assert report["outcome"] == outcome
    assert Run(run.root).status()["outcome"] == outcome
    if outcome == "running":
        with pytest.raises(TimeoutError):
            Run(run.root).wait(0)
    elif state == "lost":
        assert status["reason"]
        assert status["reason"] in report["reason"]
        assert status["reason"] in row["note"]
        with pytest.raises(EnvironmentProblem, match=r"does not run|has not started"):
            Conversation(run).check()
        for words in (["status", str(run.root)], ["report", str(run.root)]):
            assert main(words) == 0
            said = capsys.readouterr().out
            assert f"is lost: {status['reason']}" in " ".join(said.split()) or not status["started"]


def test_a_program_that_polls_ends(tmp_path: Path) -> None:
    """While the outcome is "running" it asks again: the controller is killed meanwhile."""
    run = a_run(tmp_path, "local", "steps", True, str(os.getpid()), True)
    asked = 0
    while Run(run.root).status()["outcome"] == "running" and asked < 3:
        asked += 1
        replace_text(run.job_id, str(GONE))
    assert asked == 1


def files(root: Path) -> dict[str, tuple[int, int, int]]:
    found = {str(path): path.lstat() for path in [root, *root.rglob("*")]}
    return {name: (stat.st_mode, stat.st_mtime_ns, stat.st_size) for name, stat in found.items()}


def followed(run: RunDir) -> None:
    table.follow(run, console=table.console(), until=lambda: True, poll_s=0.01)


READ: dict[str, Callable[[RunDir], object]] = {
    "status": lambda run: main(["status", str(run.root)]),
    "status --json": lambda run: main(["status", str(run.root), "--json"]),
    "status, live": followed,
    "list": lambda run: main(["list", "--root", str(run.root.parent)]),
    "logs": lambda run: main(["logs", str(run.root)]),
    "logs --failure": lambda run: main(["logs", str(run.root), "--failure"]),
    "attach": lambda run: main(["attach", str(run.root), "--group", "0", "--print"]),
    "report --json": lambda run: main(["report", str(run.root), "--json"]),
    "events": lambda run: list(Run(run.root).events()),
    "report()": lambda run: Run(run.root).report(),
    "logs()": lambda run: Run(run.root).logs(),
    "value()": lambda run: Run(run.root).value(),
    "attach()": lambda run: Run(run.root).attach(0),
    "repr": lambda run: repr(Run(run.root)),
}


@pytest.mark.parametrize("is_over", [False, True], ids=["goes on", "is over"])
@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_who_reads_a_run_writes_nothing(
    read: Callable[[RunDir], object],
    is_over: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    end = [ex.finished(50)] if is_over else []
    run = a_run(
        tmp_path, "local", "steps", True, str(os.getpid()), True, ex.joined(3, 0, 1), ex.progress(9, 0, 7), *end
    )
    monkeypatch.setattr("sys.stdin", io.StringIO())
    before = files(run.root)
    time.sleep(0.01)
    with suppress(FtslurmError):
        read(run)
    capsys.readouterr()
    assert files(run.root) == before
