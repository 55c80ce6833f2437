"""Slurm gets the names and options of a job as they were typed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster
from harness import light

pytestmark = pytest.mark.slurm

COMMENT = """it's \\a \\\\b "b" 'c' #x $HOME %j ü [a|b],c ${groups.min} 1.10 """


def test_a_job_has_its_options_as_they_were_typed(slurm_cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    words = ["run.name=2026_11_28", "cluster.account=2024_01", "cluster.time=9:00", "groups.gpus=0", "follow=false"]
    comment = COMMENT.replace("${", "\\${")
    command = [*words, f"cluster.sbatch.comment={comment}", "cluster.sbatch.hold=true", light(), "groups.count=1"]
    subprocess.run(
        [sys.executable, "-m", "ftslurm", *command, "job.script=train.py"],
        cwd=tmp_path,
        env=slurm_cluster.environ(),
        check=True,
        timeout=120,
    )
    shown = slurm_cluster.run(["squeue", "--noheader", "--name=2026_11_28", "--format=%j|%a|%l|%k"])
    assert f"2026_11_28|2024_01|9:00|{COMMENT}".strip() in shown
    slurm_cluster.run(["scancel", "--name=2026_11_28"])
