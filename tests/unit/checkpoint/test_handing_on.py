"""A run that resumes another one is given its complete checkpoints and places in the data."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.handing_on import hand_on
from ftslurm.checkpoint.layout import Writer
from ftslurm.errors import Distrusted


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Checkpoints of steps 5 and 10; one of step 15 lacks a file; a place in the data; half a checkpoint."""
    folder = tmp_path / "source"
    for step in (5, 10, 15):
        path = folder / layout.name_of(step)
        path.mkdir(parents=True)
        (path / "tree.pickle").write_bytes(b"tree")
        files = {"tree.pickle": 4} | ({"gone": 1} if step == 15 else {})
        (path / layout.MANIFEST).write_bytes(layout.manifest(step, Writer("r", 0, 0), 1, files, {}))
    (folder / layout.POSITIONS).mkdir()
    (folder / layout.POSITIONS / "group-0000-rank-0").write_bytes(b"place")
    (folder / ".saving-00000020-r-0-0-ab").mkdir()
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def test_complete_checkpoints_are_linked_and_places_copied(source: Path, target: Path) -> None:
    assert hand_on(source, target) == [10, 5]
    assert sorted(path.name for path in target.iterdir()) == ["positions", "step-00000005", "step-00000010"]
    tree = "step-00000010/tree.pickle"
    assert (target / tree).samefile(source / tree)
    place = "positions/group-0000-rank-0"
    assert not (target / place).samefile(source / place)
    assert (target / place).read_bytes() == b"place"
    found = layout.newest(target)
    assert found is not None
    assert found.step == 10


def test_what_others_can_write_is_not_handed_on(source: Path, target: Path) -> None:
    (source / "step-00000010" / "tree.pickle").chmod(0o666)
    with pytest.raises(Distrusted, match=r"tree\.pickle is not handed on"):
        hand_on(source, target)


def test_a_link_is_not_handed_on(source: Path, target: Path) -> None:
    (source / layout.POSITIONS / "elsewhere").symlink_to("/etc/passwd")
    with pytest.raises(Distrusted, match="elsewhere is not handed on"):
        hand_on(source, target)
