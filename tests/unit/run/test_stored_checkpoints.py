"""An object store that does not answer when a run begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.config.schema import Config
from ftslurm.run import stored_checkpoints
from ftslurm.run.directory import RunDir


def test_a_store_that_does_not_answer_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_checkpoints, "ANSWER_S", 0.01)
    config = Config()
    config.checkpoint.dir = "s3://bucket/folder"
    why = "checkpoint.dir=s3://bucket/folder cannot be used: no answer within 0.01 s"
    assert stored_checkpoints.begin_with(config, RunDir(tmp_path)) == (None, why)
