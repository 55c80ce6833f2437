"""A run.root that the nodes do not have: Slurm ends the controller's job without a word, and every verb says why."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Cluster
from harness import Backend

pytestmark = [pytest.mark.slurm, pytest.mark.light]


def need_mounts() -> None:
    if os.geteuid() or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("only root can hide a folder from a slurmd")


@pytest.mark.nightly
def test_a_run_whose_node_cannot_write_its_output_says_so_and_names_the_setting(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend], tmp_path: Path
) -> None:
    need_mounts()
    slurm = slurm_on(new_cluster(nodes=1, lacks=tmp_path))
    run = slurm.start("groups.count=1")
    assert run.process.wait(60) == 1, run.text
    for text in (run.text, said(slurm, "status", str(run.dir))):
        assert f"cannot write into {run.dir / 'submitit'}" in text.replace("\n", " ")
        assert "set run.root to a folder that all nodes share" in text.replace("\n", " ")


def said(slurm: Backend, *words: str) -> str:
    verb = slurm.launch(*words)
    verb.process.wait(60)
    return verb.text


@pytest.mark.nightly
def test_a_node_that_cannot_write_the_run_directory_is_named_and_its_group_gets_another(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend], tmp_path: Path
) -> None:
    need_mounts()
    cluster = new_cluster(nodes=4, cpus=1)
    cluster.kill_node("n2")
    hide = f'mount -t tmpfs -o ro none "{tmp_path}"; exec "$@"'
    cluster._entered = ("unshare", "--mount", "sh", "-ec", hide, "sh")
    cluster.start_node("n2")
    settings = ("cluster=array", "health.lost_after_s=5", "groups.count=2")
    run = slurm_on(cluster).start(*settings, args={"open-end": True, "step-time": 0.1})
    left_out = run.wait_for("node_check_failed", node="n2")
    assert "cannot write into the run directory" in str(left_out["reason"])
    run.until(lambda: all(len(run.steps(group)) > 3 for group in (0, 1)), "both groups train", 60.0)
    assert run.named("allocation_requested")[-1]["exclude"] == ["n2"]
    run.end_soon()
    run.finish()
