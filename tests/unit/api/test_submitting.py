"""What is checked when a run is submitted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from checkpoints import save

from ftslurm.api import submitting
from ftslurm.checkpoint.layout import Writer
from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError
from ftslurm.run.directory import RunDir
from ftslurm.run.stored_checkpoints import begin_with


def beside_another(tmp_path: Path, kind: str) -> Config:
    """Return a run whose checkpoint.dir another one uses, which is running."""
    config, other = Config(), RunDir(tmp_path / "other")
    config.cluster.kind, config.checkpoint.dir = kind, str(tmp_path / "checkpoints")
    other.create()
    other.alive.touch()
    assert begin_with(config, other)[1] is None
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


def test_a_run_that_goes_on_from_the_checkpoint_of_another_is_told(tmp_path: Path) -> None:
    config, other = Config(), RunDir(tmp_path / "other")
    config.cluster.kind, config.job.script = "local", __file__
    other.create()
    config.checkpoint.dir = str(tmp_path / "checkpoints")
    assert begin_with(config, other)[1] is None
    assert submitting.settle(config, preview=True) == []
    save(tmp_path / "checkpoints", 140, Writer("other", 0, 0))
    note = (
        f"checkpoint.dir={tmp_path}/checkpoints has a checkpoint of other: this run goes on from its step 140, with "
        "its weights. To begin at step 0, name another folder"
    )
    assert submitting.settle(config, preview=True) == [note]
    config.internal.parent = str(other.root)  # it was asked to
    assert submitting.settle(config, preview=True) == []
    config.internal.parent = str(tmp_path / "third")  # in whose folder `other` has saved since
    assert submitting.settle(config, preview=True) == [note]


@pytest.mark.parametrize("text", ["", "\0" * 40, "relative"])
def test_a_damaged_owner_of_a_checkpoint_folder_is_none(text: str, tmp_path: Path) -> None:
    config, run = Config(), RunDir(tmp_path / "run")
    config.cluster.kind, config.job.script = "local", __file__
    config.checkpoint.dir = str(tmp_path / "checkpoints")
    run.create()
    assert begin_with(config, run)[1] is None
    (tmp_path / "checkpoints" / ".owner").write_text(text)
    assert submitting.settle(config, preview=True) == []
    assert begin_with(config, run)[1] is None


def test_a_process_in_an_allocation_may_be_a_part_of_the_run_that_uses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of an array that starts late, or a batch job that Slurm has requeued."""
    config = beside_another(tmp_path, "slurm")
    config.job.script = __file__
    monkeypatch.setattr(submitting.capabilities, "resolve", lambda *_: [])  # no cluster is asked
    assert "is running" in " ".join(submitting.settle(config))
    config.cluster.controller = "here"
    assert submitting.settle(config) == []


def test_an_interpreter_that_a_local_run_cannot_find_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    (tmp_path / "my-python").symlink_to(sys.executable)
    config = Config()
    config.cluster.kind, config.job.script, config.job.python = "local", __file__, ["my-python", "-X", "dev"]
    config.job.env = {"PATH": str(tmp_path)}
    submitting.settle(config, preview=True)
    config.job.env = {}
    with pytest.raises(ConfigError, match=r"job\.python=my-python: there is no such program on this machine"):
        submitting.settle(config, preview=True)
    config.cluster.kind = "slurm"  # its nodes may have other programs
    submitting.settle(config, preview=True)
