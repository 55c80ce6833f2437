"""What is checked when a run is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.api import submitting
from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError
from ftslurm.run.directory import RunDir
from ftslurm.run.replay import claim


def beside_another(tmp_path: Path, kind: str) -> Config:
    """Return a run whose checkpoint.dir another one uses, which is running."""
    config, other = Config(), RunDir(tmp_path / "other")
    config.cluster.kind, config.checkpoint.dir = kind, str(tmp_path / "checkpoints")
    other.create()
    other.alive.touch()
    assert claim(config, other) is None
    return config


def test_a_run_that_would_start_at_once_may_not_use_the_checkpoints_of_another(tmp_path: Path) -> None:
    config = beside_another(tmp_path, "local")
    with pytest.raises(ConfigError, match="in use by other, which is running: name another folder"):
        submitting._checkpoints_in_use(config, preview=False)
    assert "is running" in str(submitting._checkpoints_in_use(config, preview=True))


def test_one_that_waits_in_the_queue_may_start_after_the_other(tmp_path: Path) -> None:
    """As a job with cluster.sbatch.dependency does: its controller judges again."""
    note = submitting._checkpoints_in_use(beside_another(tmp_path, "slurm"), preview=False)
    assert "If it still runs when this run starts, this run ends" in str(note)


def test_a_process_in_an_allocation_may_be_a_part_of_the_run_that_uses_them(tmp_path: Path) -> None:
    """A task of an array that starts late, or a batch job that Slurm has requeued."""
    config = beside_another(tmp_path, "slurm")
    config.cluster.controller = "here"
    assert submitting._checkpoints_in_use(config, preview=False) is None
