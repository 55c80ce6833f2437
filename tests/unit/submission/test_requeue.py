"""A run goes on in another job: one request to Slurm, with the right job id, and the job finds its run again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from programs import Programs
from raw_record import RawRecord

from ftslurm.config.schema import Config
from ftslurm.run.directory import RunDir, replace_text
from ftslurm.run.journal_writer import Journal
from ftslurm.submission import requeue, submit

BATCH = {"SLURM_JOB_ID": "77", "ENVIRONMENT": "BATCH", "SLURM_TASK_PID": "0"}


@pytest.fixture
def slurm(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Fakes: squeue prints $STATE; scontrol succeeds, or fails with $REFUSAL."""
    programs.add("squeue", body='echo "$STATE"')
    programs.add("scontrol", body='test -z "$REFUSAL" || { echo "$REFUSAL" >&2; exit 1; }')
    monkeypatch.setattr(requeue, "WAIT_S", 0.0)
    return programs


@pytest.mark.parametrize(
    ("state", "more", "asked"),
    [
        ("RUNNING|0|None|", {}, "77"),
        ("RUNNING|2|None|", {"SLURM_RESTART_COUNT": "2"}, "77"),
        ("COMPLETING|0|TimeLimit|", {}, "77"),
        ("RUNNING|0|None|", {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3"}, "70_3"),
        ("", {}, "77"),  # squeue does not know the job
        ("COMPLETING|1|None|", {}, None),  # by Slurm, which preempts it
        ("COMPLETING|0|None|", {}, "cancelled"),
        ("CANCELLED|0|None|", {}, "cancelled"),
    ],
)
def test_the_job_is_requeued_unless_slurm_has_done_so_or_somebody_has_cancelled_it(
    state: str, more: dict[str, str], asked: str | None, slurm: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE", state)
    why = requeue.requeue(BATCH | more)
    requeued = slurm.calls("scontrol")
    if asked == "cancelled":
        assert "cancelled" in str(why)
        assert requeued == []
    else:
        assert why is None
        assert requeued == ([] if asked is None else [f"scontrol requeue {asked}"])


@pytest.mark.parametrize(
    ("refusal", "times"), [("Unable to contact slurm controller (connect failure)", requeue.TRIES), ("disabled", 1)]
)
def test_a_busy_slurmctld_is_asked_again_and_a_refusal_is_passed_on(
    refusal: str, times: int, slurm: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE", "RUNNING|0|None|")
    monkeypatch.setenv("REFUSAL", refusal)
    assert requeue.requeue(BATCH) == refusal
    assert slurm.calls().count("scontrol requeue 77") == times


PENDING = "echo 'Job is pending execution for job 77' >&2; exit 1"


@pytest.mark.parametrize(
    ("answer", "looks"),
    [
        ("kill $$; sleep 60", 1),  # by Slurm, which ends the job: see tests/slurm/test_requeue_on_slurm.py
        ("kill $$; sleep 60", 2),
        ("echo 'Socket timed out on send/recv operation' >&2; exit 1", 2),
        (PENDING, 1),
    ],
)
def test_a_request_that_is_carried_out_is_no_refusal_whatever_scontrol_says(
    answer: str, looks: int, tmp_path: Path, slurm: Programs
) -> None:
    """The first request is carried out, a second one is refused; squeue shows it at the `looks`-th time."""
    asked, seen = tmp_path / "asked", tmp_path / "seen"
    slurm.add("scontrol", body=f"echo >> {asked}; test $(wc -l < {asked}) -lt 2 || {{ {PENDING}; }}\n{answer}")
    shown = f"echo >> {seen}; test $(wc -l < {seen}) -lt {looks} && kill $$; echo 'COMPLETING|1|None|'"
    slurm.add("squeue", body=f"test -e {asked} || {{ echo 'RUNNING|0|None|'; exit; }}\n{shown}")
    assert requeue.requeue(BATCH) is None


def test_where_there_is_no_scontrol_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert requeue.requeue(BATCH) == "scontrol cannot be started: No such file or directory"


def begun(config: Config, job: str, outcome: str | None = None) -> RunDir:
    """Return a run that a job has begun."""
    config.run.dir = None
    run = submit.create(config)
    config.run.dir = None
    replace_text(run.job_id, job)
    with closing(Journal(run)) as journal:
        journal.append(RawRecord("run_started"))
        if outcome is not None:
            journal.append(RawRecord("run_finished", outcome=outcome))
    return run


def settings(tmp_path: Path, script: str = "a.py") -> Config:
    config = Config()
    config.job.script, config.run.name, config.run.root = script, "test", str(tmp_path / "runs")
    return config


def test_a_job_that_is_started_again_finds_its_run_and_no_other(tmp_path: Path) -> None:
    started_again = BATCH | {"SLURM_RESTART_COUNT": "1"}
    here = settings(tmp_path)
    assert requeue.of_this_job(here, started_again) is None  # there is no run at all
    begun(here, "78")
    assert requeue.of_this_job(here, started_again) is None
    mine, _ = begun(here, "77"), begun(settings(tmp_path, "b.py"), "77")
    assert requeue.of_this_job(here, started_again) == mine
    assert requeue.of_this_job(here, BATCH) is None  # the first start
    assert requeue.of_this_job(here, {**started_again, "ENVIRONMENT": "INTERACTIVE"}) is None


def test_a_script_of_several_runs_goes_on_with_the_one_that_is_not_over(tmp_path: Path) -> None:
    started_again = BATCH | {"SLURM_RESTART_COUNT": "1"}
    first, second = settings(tmp_path, "a.py"), settings(tmp_path, "b.py")
    over, open_ = begun(first, "77", "succeeded"), begun(second, "77")
    assert requeue.of_this_job(first, started_again) == over
    assert requeue.of_this_job(second, started_again) == open_
    assert requeue.of_this_job(settings(tmp_path, "other.py"), started_again) == open_
