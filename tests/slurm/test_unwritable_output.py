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


@pytest.mark.nightly
def test_a_run_whose_node_cannot_write_its_output_says_so_and_names_the_setting(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend], tmp_path: Path
) -> None:
    if os.geteuid() or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("only root can hide a folder from a slurmd")
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
