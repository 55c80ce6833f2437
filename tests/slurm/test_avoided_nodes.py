"""Nodes that an administrator drains, and nodes that other runs have found broken (cluster.exclude_file)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster import Cluster
from harness import Backend

pytestmark = [pytest.mark.slurm, pytest.mark.light]
OPEN = {"open-end": True, "step-time": 0.1}


def drain(cluster: Cluster, *nodes: str) -> None:
    cluster.run(["scontrol", "update", f"nodename={','.join(nodes)}", "state=drain", "reason=bad disk | ask Ann"])


def test_a_group_that_fails_leaves_a_node_that_is_being_drained(slurm_cluster: Cluster, slurm: Backend) -> None:
    run = slurm.start("groups.count=2", "cluster.spare_nodes=2", "groups.gpus=0", args=OPEN)
    run.wait_for_steps(5, 2)
    bad = run.node_of(1, 0)
    spares = {"n1", "n2", "n3", "n4"} - {run.node_of(0, 0), bad}
    worse = min(spares)
    drain(slurm_cluster, bad, worse)
    run.kill(1)
    run.wait_until_back(1)
    assert {run.node_of(1, 1)} == spares - {worse}
    told = {str(e["node"]): str(e["reason"]) for e in run.named("node_shunned")}
    assert set(told) == {bad, worse}
    assert "drain" in told[bad]
    assert ": bad disk | ask Ann [" in told[bad]
    assert f"{bad} ({told[bad]})" in run.ask("status")[1]
    slurm_cluster.run(["scontrol", "update", f"nodename={bad},{worse}", "state=resume"])
    run.kill(1)
    run.wait_until_back(1, attempt=2)
    assert {str(e["node"]) for e in run.named("node_unshunned")} == {bad, worse}
    assert "drained" not in run.ask("status")[1]
    run.end_soon()
    run.finish()
    assert len(run.named("node_shunned")) == 2


@pytest.mark.nightly
def test_in_array_mode_a_group_that_fails_on_a_drained_node_gets_another_job(
    slurm_cluster: Cluster, slurm: Backend
) -> None:
    run = slurm.start("groups.count=2", "cluster.kind=array", "groups.gpus=0", args=OPEN)
    run.wait_for_steps(5, 2)
    bad = run.node_of(1, 0)
    drain(slurm_cluster, bad)
    run.kill(0)
    run.wait_until_back(0)
    run.kill(1)
    run.wait_until_back(1)
    assert run.node_of(1, 1) != bad
    assert f"{bad} is drained" in [e["reason"] for e in run.named("allocation_lost")]
    run.end_soon()
    run.finish()


BYE = """\
import os, sys, time
from torchft import Manager
print("loading", os.environ["REPLICA_GROUP_ID"], time.time(), file=sys.stderr)
sys.exit(4)
"""
CHECK = """#!/bin/sh
case $FTSLURM_NODE in n2) echo "GPU 3 has fallen off the bus"; exit 3 ;; esac
"""


@pytest.mark.parametrize(
    ("python", "said"),
    [
        pytest.param("nosuchpython", "nosuchpython: No such file or directory", id="no python"),
        pytest.param("/bin/false", "exit code 1", id="a silent one", marks=pytest.mark.nightly),
        pytest.param("", "exit code 4", id="another line and time for each group"),
    ],
)
def test_what_fails_everywhere_from_the_start_ends_the_run_and_is_no_nodes_fault(
    slurm: Backend, tmp_path: Path, python: str, said: str
) -> None:
    (script := tmp_path / "bye.py").write_text(BYE)
    noted = tmp_path / "broken.jsonl"
    words = ["groups.count=2", "cluster.spare_nodes=2", f"cluster.exclude_file={noted}"]
    run = slurm.start(*words, *([f"job.python={python}"] if python else []), script=script)
    run.finish(1)
    assert "every group failed before its first step, all in the same way" in run.text
    assert said in run.text
    assert sum(end["group"] is not None for end in run.named("step_exited")) <= 4
    assert run.named("node_excluded") == []
    assert not noted.exists()


def test_what_one_run_knows_of_a_broken_node_the_next_one_does(slurm: Backend, tmp_path: Path) -> None:
    (check := tmp_path / "check.sh").write_text(CHECK)
    check.chmod(0o755)
    shared = f"cluster.exclude_file={tmp_path / 'broken.jsonl'}"
    first = slurm.start(
        *("groups.count=2", "cluster.spare_nodes=2", "cluster.requeue=false", shared),
        f"health.preflight=[[{check}]]",
        args=OPEN,
    )
    first.wait_for_steps(2, groups=2)
    first.until(lambda: first.named("node_check_failed"), "the check on n2")
    first.end_soon()
    first.finish()
    (line,) = (tmp_path / "broken.jsonl").read_text().splitlines()
    assert (json.loads(line)["node"], json.loads(line)["run"]) == ("n2", first.dir.name)

    second = slurm.start("groups.count=2", "cluster.spare_nodes=1", shared, args=OPEN)
    second.wait_for_steps(2, groups=2)
    assert second.named("allocation_granted")[0]["nodes"] == ["n1", "n3", "n4"]
    (warning,) = second.named("warning")
    assert "found broken by other runs (cluster.exclude_file): n2 (" in str(warning["text"])
    assert f"fallen off the bus; {first.dir.name}, " in str(warning["text"])
    assert "found broken by other runs" in second.ask("status")[1]
    second.end_soon()
    second.finish(warns=True)
    assert "found broken by other runs" in second.text

    third = slurm.start("groups.count=2", "cluster.spare_nodes=2", shared, args=OPEN)  # all four nodes are needed
    third.wait_for_steps(2, groups=2)
    assert third.named("allocation_granted")[0]["nodes"] == ["n1", "n2", "n3", "n4"]
    assert "n2" not in {third.node_of(0, 0), third.node_of(1, 0)}
    third.end_soon()
    third.finish(warns=True)
