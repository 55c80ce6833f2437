"""The rows of `ftslurm list`: many runs, one line each."""

from __future__ import annotations

import io
import json
import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import example_journal as ex
import pytest
from closed import closed
from programs import Programs
from rich.console import Console

from ftslurm.api import listing
from ftslurm.api.brief import Brief, brief
from ftslurm.cli.list_table import cells_of, render
from ftslurm.cli.main import main
from ftslurm.errors import RunNotFound
from ftslurm.run.directory import RunDir, replace_text
from ftslurm.run.entries import Entry, entry_of
from ftslurm.run.facts import Queue
from ftslurm.slurm.parse import QueuedJob, read_jobs


def new_run(root: Path, name: str, *lines: ex.Line, age_s: float = 0.0, alive: bool = False) -> RunDir:
    run = RunDir(root / name)
    run.create()
    run.config.write_text("")
    moment = time.time() - age_s
    os.utime(run.config, (moment, moment))
    if alive:
        run.alive.touch()
    return ex.write(run, lines) if lines else run


def on_slurm(job: str = "81") -> ex.Line:
    return ex.started() | {"cluster": "slurm", "mode": "steps", "job_id": job}


def entry(run: RunDir) -> Entry:
    found = entry_of(run.root)
    assert found is not None
    return found


def queued(run: RunDir, state: str = "RUNNING", name: str = "81", reason: str = "") -> QueuedJob:
    return QueuedJob(name, name, state, reason, entry(run).user, run.mark(), str(run.submitit / "x.sh"))


def squeue(run: RunDir, *jobs: QueuedJob) -> Queue:
    return Queue(frozenset({entry(run).user}), jobs)


def test_a_run_that_is_over_is_told_by_its_last_line(tmp_path: Path) -> None:
    run = new_run(tmp_path, "a", ex.started(), ex.joined(2, 0, 1), ex.finished(60, "failed", reason="no group is left"))
    row = brief(entry(run))
    assert (row.state, row.groups, row.finished, row.note) == ("failed", 3, ex.START + 60, "no group is left")
    ex.write(run, [ex.finished(61, "failed", reason="no group is left", failure="ValueError: x")])
    assert brief(entry(run)).note == "ValueError: x"


def test_a_run_that_trains_has_its_step_rate_and_groups_at_work(tmp_path: Path) -> None:
    begun = [on_slurm(), *(line for n in range(3) for line in (ex.launched(1, n), ex.ready(2, n)))]
    now = time.time() - ex.START
    steps = [ex.progress(now - 8 + t, n, 40 + 2 * t) for t in range(8) for n in range(2)]
    run = new_run(tmp_path, "a", *begun, *(ex.joined(now - 9, n, 39) for n in range(2)), *steps, alive=True)
    row = brief(entry(run), squeue(run, queued(run)))
    assert (row.state, row.step, row.groups_at_work, row.groups) == ("running", 54, 2, 3)
    assert row.steps_per_s == pytest.approx(2.0, rel=0.2)


@pytest.mark.parametrize(
    ("state", "alive", "expected", "note"),
    [
        ("RUNNING", True, "running", None),
        ("RUNNING", False, "silent", "its controller on n1 is not heard; ftslurm stop cancels Slurm job 81"),
        (None, True, "lost", "its controller is gone: Slurm job 81 is unknown to Slurm"),
        ("CANCELLED", True, "lost", "its controller is gone: Slurm job 81 is CANCELLED"),
        ("PENDING", True, "running", None),  # it may have been asked before the job began
        ("PENDING", False, "waiting", "Slurm job 81 is waiting in the queue (Resources)"),
    ],
)
def test_what_squeue_says_decides_how_an_open_run_stands(
    tmp_path: Path, state: str | None, alive: bool, expected: str, note: str | None
) -> None:
    run = new_run(tmp_path, "a", on_slurm(), alive=alive)
    jobs = [] if state is None else [queued(run, state, reason="Resources")]
    row = brief(entry(run), squeue(run, *jobs))
    assert (row.state, row.note) == (expected, note)


@pytest.mark.parametrize("reason", ["job requeued in held state", "launch failed requeued held"])
def test_a_job_that_is_held_after_a_requeue_is_shown_with_its_release(tmp_path: Path, reason: str) -> None:
    run = new_run(tmp_path, "a", on_slurm())
    row = brief(entry(run), squeue(run, queued(run, "PENDING", reason=reason)))
    assert row.note == f"Slurm job 81 is waiting in the queue ({reason}); release it with: scontrol release 81"


def test_without_an_answer_of_slurm_no_run_is_lost(tmp_path: Path) -> None:
    assert brief(entry(new_run(tmp_path, "a", on_slurm(), alive=True))).state == "running"
    assert brief(entry(new_run(tmp_path, "b", on_slurm()))).state == "silent"


def test_a_local_run_whose_process_is_gone_is_lost(tmp_path: Path) -> None:
    here = ex.started() | {"host": os.uname().nodename}
    run = new_run(tmp_path, "a", here, alive=True)
    replace_text(run.job_id, "2000000000")
    assert brief(entry(run)).state == "lost"
    replace_text(run.job_id, str(os.getpid()))
    assert brief(entry(run)).state == "running"


def test_runs_are_listed_newest_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new_run(tmp_path, "old", ex.started(), ex.finished(9), age_s=7200)
    new_run(tmp_path, "new", ex.started(), ex.finished(9, "failed"))
    (tmp_path / "notes").mkdir()
    assert main(["list", "--root", str(tmp_path), "--json"]) == 0
    assert [row["id"] for row in json.loads(capsys.readouterr().out)["runs"]] == ["new", "old"]
    assert main(["list", "--root", str(tmp_path)]) == 0
    assert "2 h" in capsys.readouterr().out
    assert main(["list", "--root", str(tmp_path), "--sweep", "nope"]) == 0
    assert f"there is no run of the sweep nope under {tmp_path}" in capsys.readouterr().out


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    with closed(tmp_path), pytest.raises(RunNotFound, match="cannot be listed: Permission denied"):
        listing.under(tmp_path)


def test_the_table_fits_into_80_columns_and_keeps_every_id_whole(tmp_path: Path) -> None:
    name = "ddp-20261121-231403-a1b2"
    new_run(tmp_path, name, ex.started(), ex.finished(9, steps=120_000, restarts=12))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(listing.under(tmp_path), 80))
    text = console.export_text()
    assert name in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("width", [60, 80, 125])
def test_nothing_in_a_table_is_cut_off(width: int) -> None:
    name, made = "script-lr_0.003-20261127-202249-e216", time.time() - 1740
    row = Brief(name, "/a", "me", "succeeded", made, step=1532, total_steps=100_000, groups=1, restarts=0, job="81234")
    row = replace(row, sweep="sweep-20261127-202248-7510", note="all groups finished")
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(render([row], width))
    names, cells = cells_of([row], width)
    said = "".join((*names, *(cell.plain for cell in cells[row.dir])))
    assert Counter("".join(console.export_text().split())) == Counter("".join(said.split()))
    assert ("sweep" in names) == ("note" in names) == (width == 125)


@pytest.mark.parametrize("waits", [False, True])
def test_the_process_of_a_local_run_is_not_shown_as_a_slurm_job(tmp_path: Path, waits: bool) -> None:
    run = new_run(tmp_path, "a", *([] if waits else [ex.started()]))
    run.config.write_text("cluster: {kind: local}")
    replace_text(run.job_id, "4711")
    for width in (80, 160):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(render(listing.under(tmp_path), width))
        shown = console.export_text()
        assert "local" in shown
        assert "4711" not in shown


def test_a_local_run_has_no_job_and_a_run_on_slurm_its_own(tmp_path: Path) -> None:
    new_run(tmp_path, "a", ex.started(), ex.finished(9))
    new_run(tmp_path, "b", on_slurm("8123"), ex.finished(9))
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(render(listing.under(tmp_path), 160))
    text = console.export_text()
    assert "8123" in text
    assert "local" in text


def test_runs_of_a_user_are_found_from_the_jobs_in_squeue(
    tmp_path: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path / "far", "ddp-1", on_slurm(), alive=True)
    rows = [
        f"81|81|RUNNING|None|alice|{run.submitit}/submission_file_1.sh|{run.mark()}|",
        "82_3|90|PENDING|Priority|alice|/gone/ddp-2/submitit/submission_file_2.sh|ftslurm:ddp-2-aa:0|",
        "83|83|RUNNING|None|alice|/home/alice/mine.sh|my comment|",
    ]
    programs.add("squeue", body="\n".join(["cat <<'END'", *rows, "END"]))
    found = {row.id: row for row in listing.of_user("alice")}
    assert found.keys() == {"ddp-1", "ddp-2"}
    assert found["ddp-1"].state == "running"
    assert found["ddp-2"].note == "its folder is not here; Slurm says PENDING"
    assert main(["list", "--user", "alice"]) == 0
    assert "unreadable" in capsys.readouterr().out


def test_rows_of_squeue_that_are_no_rows_are_skipped() -> None:
    assert read_jobs("81|81|RUNNING\n\nslurm_load_jobs error") == ([], False)
    ((job,), whole) = read_jobs("81_2 |85 |PENDING |Priority |bob |/r/ddp/submitit/s.sh |ftslurm:ddp-a1:3|")
    assert whole
    assert (job.name, job.id, job.reason, job.mark) == ("81_2", "85", "Priority", "ftslurm:ddp-a1")
