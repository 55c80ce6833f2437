"""The source of the token, which no other user can read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftslurm.errors import ConfigError
from ftslurm.lighthouse.token_gate import VARIABLE, token, write_private

GOOD = "abcDEF0123456789._~-xyz"


def test_a_random_one_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    made = token(str(path), {})
    assert token(str(path), {}) == made
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]
    assert token(str(tmp_path / "other"), {}) != made
    assert len(made) >= 43  # 256 bits


def test_one_in_the_environment_or_in_the_file_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert token(str(path), {VARIABLE: GOOD}) == GOOD
    assert not path.exists()
    write_private(str(path), f"{GOOD}\n")
    assert token(str(path), {}) == GOOD


@pytest.mark.parametrize("bad", ["", "short", "a" * 21, "a" * 201, GOOD + "@", GOOD + " x", GOOD + "/", "ä" * 30])
def test_what_cannot_stand_in_a_url_or_be_guessed_is_refused(tmp_path: Path, bad: str) -> None:
    with pytest.raises(ConfigError, match=VARIABLE):
        token(str(tmp_path / "token"), {VARIABLE: bad})


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text(GOOD)
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        token(str(path), {})


def test_a_link_or_a_pipe_in_its_place_is_not_followed_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "real").write_text(GOOD)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="link"):
        token(str(tmp_path / "link"), {})
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="chmod"):
        token(str(tmp_path / "pipe"), {})
