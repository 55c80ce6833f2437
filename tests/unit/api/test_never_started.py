"""A run whose job has left the queue before its controller began, one that waits, and one whose journal is empty."""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path

import commands_left
import example_journal as ex
import pytest
from json_schema import check_report, check_status
from programs import Programs

from ftslurm.api import listing
from ftslurm.api.run import Run
from ftslurm.api.state import no_verdict
from ftslurm.cli.main import main
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.run import facts
from ftslurm.run.directory import RunDir, replace_text
from ftslurm.run.standing import Standing

CANCELLED = "Slurm job 81 was cancelled before it started"
FORGOTTEN = (
    "Slurm does not know job 81 any more, and it has left no log: it was cancelled, or its node cannot write into "
    "run.root"
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run of job 81, whose controller has not begun."""
    run = RunDir(tmp_path / "runs" / "wait-1")
    run.create()
    config = Config()
    config.job.script, config.run.name = __file__, "wait"
    config.cluster.kind = "slurm"
    config.run.root = str(tmp_path / "runs")
    run.config.write_text(compose.dump(config))
    replace_text(run.job_id, "81")
    return run


def slurm_says(programs: Programs, run: RunDir, state: str | None, reason: str = "None") -> None:
    """Let squeue show job 81 in this state; None: it does not know the job any more."""
    row = f"81|81|{state}|{reason}|{run.root.owner()}|{run.submitit}/submission_file_1.sh|{run.mark()}|"
    gone = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    one = gone if state is None else f"echo {shlex.quote(f'{state}|0|{reason}|')}"
    every = "exit 0" if state is None else f"echo {shlex.quote(row)}"
    programs.add("squeue", body=f'case "$*" in *--jobs=*) {one};; *) {every};; esac')
    programs.add("scancel")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(list(words))
    shown = capsys.readouterr()
    return code, shown.out + shown.err


@pytest.mark.parametrize(
    ("state", "why", "empty"),
    [("CANCELLED", CANCELLED, False), (None, FORGOTTEN, True)],
    ids=["no journal", "an empty journal"],
)
def test_all_verbs_say_that_a_run_cancelled_in_the_queue_never_started(
    state: str | None, why: str, empty: bool, run: RunDir, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm_says(programs, run, state)
    if empty:
        run.events.touch()
    name, note = str(run.root), f"never started: {why}"
    (row,) = listing.under(run.root.parent)
    assert (row.state, row.note) == ("stopped", note)
    again = f"ftslurm resume {name} --from-scratch"
    assert said(capsys, "status", name) == (
        0,
        f"wait-1: {note}\ncontinue with: ftslurm resume {name} (--from-scratch if it has saved no checkpoint)\n",
    )
    assert said(capsys, "status", "-w", name)[1].startswith(f"wait-1: {note}\n")
    status = json.loads(said(capsys, "status", name, "--json")[1])
    check_status(status)
    assert (status["outcome"], status["reason"], status["note"]) == ("stopped", why, note)
    assert said(capsys, "resume", name) == (
        2,
        f"ftslurm: wait-1 never started ({why}), so nothing is lost; "
        f"this begins the same training at step 0: {again}\n",
    )
    for words in ([], ["--controller"], ["--lighthouse"], ["--group", "1"], ["--follow"], ["--failure"]):
        code, text = said(capsys, "logs", name, *words)
        assert (code, text) == (2, f"ftslurm: run wait-1 has no logs, it never started: {why}\n")
    assert no_verdict(compose.load(run.config), run) == f"wait-1 {note}"
    assert said(capsys, "save", name)[1] == f"ftslurm: wait-1 {note}\n"


def test_the_report_of_a_run_that_never_started_is_one_line(
    run: RunDir, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm_says(programs, run, "CANCELLED")
    code, text = said(capsys, "report", str(run.root))
    assert (code, text) == (0, f"run wait-1 never started: {CANCELLED}\n\npage: {run.report}\n")
    report = json.loads(said(capsys, "report", str(run.root), "--json")[1])
    check_report(report)
    assert (report["run_id"], report["outcome"], report["reason"]) == ("wait-1", "stopped", CANCELLED)
    assert time.time() - 600 < report["begin"] <= report["end"]
    assert "<title>wait-1: ftslurm report</title>" in run.report.read_text()


def test_a_run_that_waits_may_still_start(run: RunDir, programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    slurm_says(programs, run, "PENDING", "Resources")
    name, waits = str(run.root), "Slurm job 81 is waiting in the queue (Resources)"
    assert said(capsys, "status", name) == (0, f"wait-1: {waits}\n")
    assert [(row.state, row.note) for row in listing.under(run.root.parent)] == [("waiting", waits)]
    assert said(capsys, "report", name)[1].startswith(f"run wait-1 has not started yet: {waits}\n")
    report = json.loads(said(capsys, "report", name, "--json")[1])
    assert (report["outcome"], report["reason"]) == ("running", waits)
    assert time.time() - 600 < report["begin"] <= report["end"]
    assert "has no log of a worker" in said(capsys, "logs", name)[1]
    assert "has no controller.log" in said(capsys, "logs", name, "--controller")[1]
    assert "is not over" in said(capsys, "resume", name)[1]


def test_nothing_is_concluded_while_slurm_does_not_answer(
    run: RunDir, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.add("squeue", body="echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    name = str(run.root)
    assert said(capsys, "status", name) == (0, "wait-1: Slurm does not answer how job 81 stands\n")
    assert [row.state for row in listing.under(run.root.parent)] == ["unknown"]
    assert said(capsys, "report", name)[1].startswith("run wait-1 has not started yet: Slurm does not answer")


def test_a_job_that_was_submitted_after_squeue_was_asked_has_not_left_the_queue(
    run: RunDir, programs: Programs
) -> None:
    slurm_says(programs, run, None)
    later = time.time() + 60
    os.utime(run.job_id, (later, later))
    assert [row.state for row in listing.under(run.root.parent)] == ["unknown"]


@pytest.mark.parametrize("state", ["FAILED", None])
def test_a_job_that_ended_before_its_controller_began_was_not_cancelled_in_the_queue(
    state: str | None, run: RunDir, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.submitit / "81_0_log.out").write_text("python: command not found\n")
    slurm_says(programs, run, state)
    reason = f"Slurm job 81 ended before its controller began (python: command not found); see {run.submitit}"
    assert [(row.state, row.note) for row in listing.under(run.root.parent)] == [("failed", f"never started: {reason}")]
    assert f"wait-1: never started: {reason}\n" in said(capsys, "status", str(run.root))[1]


def test_a_local_run_whose_controller_ended_at_once_never_started(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    config = compose.load(run.config)
    config.cluster.kind = "local"
    run.config.write_text(compose.dump(config))
    replace_text(run.job_id, str(2**22 + 1))  # no process can have this id
    note = f"never started: its controller ended; see {run.submitit}"
    assert said(capsys, "status", str(run.root))[1].startswith(f"wait-1: {note}\n")
    assert [(row.state, row.note) for row in listing.under(run.root.parent)] == [("failed", note)]
    replace_text(run.job_id, str(os.getpid()))
    assert said(capsys, "report", str(run.root))[1].startswith(
        "run wait-1 has not started yet: its controller starts\n"
    )


def test_a_run_that_has_begun_and_lost_its_job_has_started(run: RunDir, programs: Programs) -> None:
    slurm_says(programs, run, "CANCELLED")
    config = compose.load(run.config)
    assert facts.look(config, run).never
    run.events.write_text("damaged\n")
    ex.write(run, [ex.launched(1, 0)])
    assert facts.look(config, run) == Standing("lost", "its controller is gone: Slurm job 81 is CANCELLED")


def test_stop_writes_the_end_that_is_missing(
    run: RunDir, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm_says(programs, run, None)
    assert Run(run.root).stop() == f"wait-1 never started: {FORGOTTEN}"
    assert commands_left.take(run.inbox)  # a job that another Slurm has stops as soon as it starts
    assert Run(run.root).stop() == "wait-1 is over already: stopped"
    assert [(row.state, row.note) for row in listing.under(run.root.parent)] == [("stopped", FORGOTTEN)]
    assert said(capsys, "report", str(run.root))[1].startswith(f"run wait-1 never started: {FORGOTTEN}\n")


def test_a_run_that_slurm_starts_after_its_end_was_written_has_started(run: RunDir, programs: Programs) -> None:
    """As after `scontrol requeue` of a job that was cancelled."""
    slurm_says(programs, run, "CANCELLED")
    Run(run.root).stop()
    ex.write(run, [ex.started() | {"cluster": "slurm", "mode": "steps", "job_id": "81"}])
    slurm_says(programs, run, "RUNNING")
    assert not facts.look(compose.load(run.config), run).never


def test_stop_ends_a_local_run_that_never_started(run: RunDir) -> None:
    config = compose.load(run.config)
    config.cluster.kind = "local"
    run.config.write_text(compose.dump(config))
    replace_text(run.job_id, str(2**22 + 1))
    assert Run(run.root).stop() == f"wait-1 never started: its controller ended; see {run.submitit}"
    assert Run(run.root).stop() == "wait-1 is over already: failed"


def test_logs_that_are_followed_say_that_the_run_was_cancelled_meanwhile(
    run: RunDir, programs: Programs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_says(programs, run, "PENDING", "Resources")

    def cancelled(*_: object, **__: object) -> int:
        slurm_says(programs, run, "CANCELLED")
        return 0

    monkeypatch.setattr("ftslurm.api.state.logs.show", cancelled)
    assert said(capsys, "logs", str(run.root), "-f") == (
        2,
        f"ftslurm: run wait-1 has no logs, it never started: {CANCELLED}\n",
    )
