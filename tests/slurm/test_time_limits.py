"""A run outlives the time limits of its jobs: it saves and resumes in another job without losing a step.

All runs here are started and warned together. At night Slurm itself warns them: each gets a limit of a minute or two
once it trains, and another after it has resumed. slurmctld checks time limits twice a minute; otherwise the tests send
its signal.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fuzz
import pytest
from cluster import Cluster
from harness import PATIENCE_S, SCRIPTS, Backend, Run, light
from templates import written

pytestmark = pytest.mark.slurm
LONG, SIGNAL_S = 30, 55  # minutes; and when Slurm warns
LIMIT = (f"cluster.sbatch.time={LONG}", f"cluster.signal_s={SIGNAL_S}")
SAVING = "light_saving.py"
ONE = ("groups.count=1", "checkpoint.every=1000000")  # what is saved was asked for


@dataclass
class Started:
    """The runs that the tests of this file check."""

    cluster: Cluster
    folder: Path
    wide: Run  # two groups of two ranks
    refused: Run  # Slurm does not requeue its job
    template: str  # the job of sbatch/steps.sbatch
    kept: str  # the same, but it is not to be requeued

    def events(self, job: str) -> list[dict[str, Any]]:
        """Return the journal of the only run of a job of the template."""
        paths = list((self.folder / f"job-{job}").glob("runs/*/events.jsonl"))
        assert len(paths) <= 1
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    def output(self, job: str) -> str:
        """Return the output of a job of the template, over all its starts."""
        path = self.folder / f"job-{job}.out"
        return path.read_text() if path.exists() else ""

    def wait_for(self, job: str, event: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = []
        self.until(job, event, lambda: found.extend(e for e in self.events(job) if e["event"] == event) or found)
        return found[-1]

    def until(self, job: str, what: str, true: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline, f"no {what}:\n{self.output(job)}"
            time.sleep(0.1)

    def limit_all(self) -> None:
        """Lower the limits once all runs train, so that all are warned soon."""
        self.refused.wait_for_steps(5, groups=1)
        self.cluster.run(["scontrol", "update", f"jobid={latest_job(self.refused)}", "requeue=0"])
        for job in (self.template, self.kept):
            self.until(job, "steps", lambda job=job: any(e["event"] == "group_joined" for e in self.events(job)))
        for group in range(2):
            self.wide.wait_for("group_joined", group=group)
        for job in (latest_job(self.wide), latest_job(self.refused), self.template, self.kept):
            if fuzz.ALL:
                self.cluster.limit(job, SIGNAL_S - 10)
            else:
                self.cluster.run(["scancel", "--batch", "--signal=USR2", job])

    def let_end(self) -> None:
        """End each run soon after it has resumed, without a time limit."""
        self.refused.wait_for("run_requeued")
        self.refused.end_soon()
        self.wait_for(self.template, "run_requeued")
        self.cluster.limit(self.template, LONG * 60)
        last = json.loads(Path(f"{self.folder}/template--requeue-0-0").read_text().splitlines()[-1])["step"]
        Path(f"{self.folder}/template--requeue-end").write_text(str(int(last) + 5))
        last = int(str(self.wide.wait_for("run_requeued")["steps"]))
        self.cluster.limit(latest_job(self.wide), LONG * 60)
        (self.folder / "until").write_text(str(last + 10))


@pytest.fixture(scope="module")
def started(cluster_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """Start all runs; credentials live for 5 s, so that a requeued job is held for 6 s and not for two minutes."""
    conf = "AuthInfo=socket=FOLDER/munge.sock,cred_expire=5"
    cluster, folder = (
        Cluster.start(cluster_folder / "limits", nodes=5, extra_conf=conf),
        tmp_path_factory.mktemp("runs"),
    )
    slurm = Backend("slurm", cluster.env, folder)
    report, until = str(folder / "report"), str(folder / "until")
    try:
        wide = slurm.start(
            *("groups.count=2", "groups.workers=2", "checkpoint.every=0", *LIMIT),
            script="saving.py",
            args={"report": report, "until": until, "step-time": 0.2},
        )
        refused = slurm.start(*ONE, *LIMIT, light(), script=SAVING, args={"open-end": True, "step-time": 0.2})
        jobs = [template(cluster, folder, option) for option in ("--requeue", "--no-requeue")]
        here = Started(cluster, folder, wide, refused, *jobs)
        here.limit_all()
        here.let_end()
        yield here
    finally:
        for run in slurm.runs:
            run.abandon()
        cluster.stop()


def template(cluster: Cluster, folder: Path, option: str) -> str:
    """Submit the template from a new folder; return the job's id."""
    options = (
        option,
        "--nodes=1",
        f"--time={LONG}",
        f"--signal=B:USR2@{SIGNAL_S}",
        "--parsable",
        f"--output={folder}/job-%j.out",
    )
    args = f"{{steps-file: {folder}/template{option}, open-end: true, step-time: 0.2}}"
    words = (light(), f"job.script={SCRIPTS / SAVING}", f"job.args={args}", *ONE, *LIMIT[1:], "stop.grace_s=2")
    where = f"run.root={folder}/job-${{oc.env:SLURM_JOB_ID}}/runs"
    command = ["sbatch", *options, str(written() / "steps.sbatch"), *words, where]
    environ = cluster.environ()
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.strip()


def told(report: Path, group: int, rank: int, event: str) -> list[dict[str, Any]]:
    """Return the reports of saving.py."""
    path = Path(f"{report}-{group}-{rank}")
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["event"] == event]


def test_groups_of_two_ranks_train_on_as_if_there_was_no_limit(started: Started) -> None:
    run, report = started.wide, started.folder / "report"
    rolled = run.wait_for("run_requeued")
    (saved,) = run.named("checkpoint_saved")
    assert 0 <= int(str(rolled["steps"])) - int(str(saved["step"])) < 5  # what is committed while they are told to end
    end = int(str(rolled["steps"])) + 10
    run.finish()
    digests: set[str] = set()
    for group, rank in ((0, 0), (0, 1), (1, 0), (1, 1)):
        fresh, again = told(report, group, rank, "restored")
        steps = told(report, group, rank, "step")
        whole = [line for line in steps if line["pid"] == fresh["pid"] and line["step"] <= saved["step"]]
        for key in ("step", "digest", "at"):
            assert again[key] == whole[-1][key]
        whole += [line for line in steps if line["pid"] == again["pid"]]
        assert [line["step"] for line in whole] == list(range(1, end + 1))  # every step once
        assert [line["at"] for line in whole] == list(range(1, end + 1))  # and every batch
        digests.add(json.dumps([line["digest"] for line in whole]))
    assert len(digests) == 1  # the same weights on all ranks, after every step
    assert [e["restarts"] for e in run.named("run_finished")] == [0]
    assert [e["job_id"] for e in run.named("run_started")] == [latest_job(run)] * 2
    assert re.search(r"job starts +2", run.text)
    assert "the run goes on in its next job" in run.text


def latest_job(run: Run) -> str:
    return (run.dir / "submitit/job_id").read_text()


def test_where_slurm_does_not_requeue_another_job_is_submitted(started: Started) -> None:
    run = started.refused
    run.finish()
    first, second = (str(e["job_id"]) for e in run.named("run_started"))
    assert second == latest_job(run) != first
    assert len({e["step"] for e in run.named("checkpoint_saved")} | {e["step"] for e in run.named("full_restart")}) == 1


def test_the_template_goes_on_in_its_run_directory(started: Started) -> None:
    started.wait_for(started.template, "run_requeued")
    back = started.wait_for(started.template, "full_restart")
    assert started.wait_for(started.template, "run_finished")["outcome"] == "succeeded"
    assert 0 <= back["step"] - back["checkpoint_step"] <= 2  # it may have taken another one before it was stopped
    summed_up = re.compile(r"succeeded: .*\s+steps .*\s+restarts +0\s+(?:full restarts .*\s+)?job starts +2, ")
    started.until(started.template, "summary", lambda: summed_up.search(started.output(started.template)))
    assert [e["job_id"] for e in started.events(started.template) if e["event"] == "run_started"] == [
        started.template
    ] * 2


def test_a_template_that_may_not_be_requeued_is_stopped_and_says_what_to_set(started: Started) -> None:
    end = started.wait_for(started.kept, "run_finished")
    assert end["outcome"] == "stopped"
    assert "sbatch --requeue" in end["reason"]
    assert "ftslurm resume " in end["reason"]
    assert [e["event"] for e in started.events(started.kept)][-3:-1] == ["step_exited", "run_requeued"]
