"""A run's key is made once, is readable by its owner only, and is the same for every controller."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ftslurm.errors import Distrusted
from ftslurm.security.run_key import SIZE, load_or_make


def test_it_is_made_once_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    made = load_or_make(tmp_path / "key")
    assert len(made) == SIZE
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert load_or_make(tmp_path / "key") == made
    assert load_or_make(tmp_path / "other") != made
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "other"]


def test_one_that_somebody_else_may_know_or_has_planted_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    load_or_make(key)
    for mode, why in ((0o640, "can be read by other users"), (0o620, "others can write into it")):
        key.chmod(mode)
        with pytest.raises(Distrusted, match=why):
            load_or_make(key)
    key.chmod(0o600)
    key.write_bytes(b"short")
    with pytest.raises(Distrusted, match="is damaged"):
        load_or_make(key)
    key.rename(tmp_path / "elsewhere")
    key.symlink_to("elsewhere")
    with pytest.raises(Distrusted):
        load_or_make(key)
    key.unlink()
    os.mkfifo(key)
    with pytest.raises(Distrusted):
        load_or_make(key)
