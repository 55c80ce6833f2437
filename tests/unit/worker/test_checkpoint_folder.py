"""Whether checkpoints can be written is tried on the node, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

from full_disk import full_disk

from ftslurm.worker.checkpoint_folder import complaint


def environ(folder: Path | str, every: int) -> dict[str, str]:
    return {"FTSLURM_CHECKPOINT_DIR": str(folder), "FTSLURM_CHECKPOINT_EVERY": str(every)}


def test_a_folder_that_can_be_written_is_made_and_stays_empty(tmp_path: Path) -> None:
    assert complaint({}) is None
    assert complaint(environ(tmp_path / "none", 0)) is None
    assert not (tmp_path / "none").exists()
    assert complaint(environ(tmp_path / "a/b", 5)) is None
    assert list((tmp_path / "a/b").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_told_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = complaint(environ(tmp_path / "file/checkpoints", 5))
    assert said is not None
    assert (
        f"checkpoint.dir={tmp_path}/file/checkpoints cannot be written on this group's node (Not a directory)" in said
    )


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk") as folder:
        assert "(No space left on device)" in str(complaint(environ(folder, 5)))
