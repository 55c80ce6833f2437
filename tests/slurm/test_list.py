"""`ftslurm list`, and every id that Slurm shows as the name of a run, on a real Slurm."""

from __future__ import annotations

import getpass
import json
import re
import sys
from pathlib import Path

import pytest
from cluster import Cluster
from harness import Backend

from ftslurm.run.find import find

pytestmark = [pytest.mark.slurm, pytest.mark.light]


def listed(cluster: Cluster, run_id: str, *words: str) -> dict[str, object]:
    """Return the row of a run; Slurm may still know jobs of the runs of other tests."""
    command = [sys.executable, "-m", "ftslurm", "list", "--json", *words]
    (row,) = [row for row in json.loads(cluster.run(command))["runs"] if row["id"] == run_id]
    assert isinstance(row, dict)
    return row


def test_a_run_is_listed_and_found_by_every_id_that_squeue_shows(
    slurm: Backend, slurm_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in slurm_cluster.env.items():
        monkeypatch.setenv(name, value)
    slow: dict[str, object] = {"open-end": True, "step-time": 0.2}
    run = slurm.start("cluster.kind=array", "groups.count=2", "run.name=names", args=slow)
    run.wait_for_steps(5, groups=2)
    names = set(slurm_cluster.run(["squeue", "--noheader", "--array", "--format=%i"]).split())
    names |= {name.partition("_")[0] for name in names}
    names |= set(slurm_cluster.run(["squeue", "--noheader", "--steps", "--format=%i"]).split())
    assert len(names) >= 5
    of_tasks = set(slurm_cluster.run(["squeue", "--noheader", "--array", "--format=%A"]).split())  # Slurm's own alone
    for name in sorted(names | of_tasks):
        assert find(name, tmp_path / "elsewhere").root == run.dir
    row = listed(slurm_cluster, run.dir.name, "--user", getpass.getuser())
    assert (row["id"], row["state"], row["groups_at_work"]) == (run.dir.name, "running", 2)

    run.end_soon()
    run.finish()
    row = listed(slurm_cluster, run.dir.name, "--root", str(run.dir.parent))
    assert (row["state"], row["restarts"]) == ("succeeded", 0)
    forms = {re.sub(r"\d+", "1", name): name for name in (*names, "names")}  # each waits for squeue to give up
    with slurm_cluster.without_slurmctld():
        for name in forms.values():  # from the run's own files
            assert find(name, run.dir.parent).root == run.dir
