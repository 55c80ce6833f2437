"""A run whose job is cancelled with scancel while it waits in the queue of a real Slurm, as every verb tells it."""

from __future__ import annotations

import json
import os

import pytest
from cluster import Cluster
from harness import Backend

pytestmark = pytest.mark.slurm
IDLE = "import time\ntime.sleep(600)\n"


@pytest.mark.nightly
def test_all_verbs_tell_of_a_run_cancelled_in_the_queue_in_the_same_words(
    slurm: Backend, slurm_cluster: Cluster
) -> None:
    slurm_cluster.run(["salloc", "--nodes=4", "--exclusive", "--no-shell"])
    run = slurm.start("groups.count=2", "run.name=wait", script=slurm.script(IDLE))
    run.until(lambda: (run.dir / "submitit" / "job_id").exists(), "the job is submitted")
    job = (run.dir / "submitit" / "job_id").read_text()

    def said(*words: str, code: int = 0) -> str:
        verb = slurm.launch(*words)
        assert verb.process.wait(60) == code, verb.text
        return verb.text

    folder, name = str(run.dir), run.dir.name
    assert f"run {name} has not started yet: Slurm job {job} is waiting in the queue" in said("report", folder)
    assert "has no log of a worker" in said("logs", folder, code=2)

    slurm_cluster.run(["scancel", job])
    why = f"Slurm job {job} was cancelled before it started"
    assert run.process.wait(60) == 1
    assert f"ftslurm: {run.dir.name} never started: {why}\n" in run.text
    assert said("report", folder).startswith(f"run {name} never started: {why}\n")
    report = json.loads(said("report", folder, "--json"))
    assert (report["run_id"], report["outcome"], report["reason"]) == (name, "stopped", why)
    submitted = os.stat(run.dir / "id").st_mtime
    assert submitted - 1 <= report["begin"] <= report["end"]

    assert f"{name}: never started: {why}\n" in said("status", folder)
    rows = json.loads(said("list", "--json", "--root", str(run.dir.parent)))["runs"]
    assert [(row["state"], row["note"]) for row in rows if row["id"] == name] == [("stopped", f"never started: {why}")]
    status = json.loads(said("status", folder, "--json"))
    assert (status["outcome"], status["note"]) == ("stopped", f"never started: {why}")

    refused = said("resume", folder, code=2)
    assert f"{name} never started ({why}), so nothing is lost" in refused
    assert f": ftslurm resume {folder} --from-scratch" in refused

    for words in ([], ["--controller"]):
        assert f"run {name} has no logs, it never started: {why}" in said("logs", folder, *words, code=2)
    assert said("stop", folder).strip() == f"{name} never started: {why}"
