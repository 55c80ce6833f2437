"""An allocation with fewer nodes than the groups need is refused, with what may be changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import Programs

from ftslurm.cli.main import main


def test_too_few_nodes_are_refused_with_what_may_be_changed(
    tmp_path: Path,
    programs: Programs,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    programs.add("sinfo", body="echo 'gpu*|up|2|64|gpu:2'")
    monkeypatch.setenv("SLURM_JOB_ID", "81")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    where = ["cluster=slurm", "cluster.controller=here", f"run.root={tmp_path}/runs"]
    assert main(["job=ddp", "groups.count=4", "groups.gpus=1", *where]) == 2
    said = capfd.readouterr().err
    assert "4 groups of 1 nodes, groups.per_node=1, need 4 nodes, allocation 81 has 2: ask for more " in said
    assert "(sbatch --nodes=4), let more groups share a node (groups.per_node), or lower groups.count" in said
    assert not (tmp_path / "runs").exists()
