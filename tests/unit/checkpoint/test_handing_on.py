"""A run that resumes another one is given its complete checkpoints and places in the data."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoints import part_of, save, steps, write

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.handing_on import hand_on
from ftslurm.checkpoint.store import Store
from ftslurm.errors import Distrusted


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Checkpoints of steps 5 and 10; one of step 15 lacks a file; a place in the data; half a checkpoint."""
    folder = tmp_path / "source"
    for step in (5, 10, 15):
        save(folder, step, tree=b"tree")
    (part_of(folder, 15) / "tree").unlink()
    (folder / layout.POSITIONS).mkdir(mode=0o700)
    (folder / layout.POSITIONS / "group-0000-rank-0").write_bytes(b"place")
    write(Store(str(folder)), 20)
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def test_complete_checkpoints_are_linked_and_places_copied(source: Path, target: Path) -> None:
    assert hand_on(source, target) == [10, 5]
    assert steps(target) == [10, 5]
    assert len(list(target.iterdir())) == 2 + 2 + 1
    assert (part_of(target, 10) / "tree").samefile(part_of(source, 10) / "tree")
    place = "positions/group-0000-rank-0"
    assert not (target / place).samefile(source / place)
    assert (target / place).read_bytes() == b"place"


def test_what_either_run_saves_or_removes_later_is_not_the_others(source: Path, target: Path) -> None:
    hand_on(source, target)
    own, given = Store(str(source)), Store(str(target))
    save(own, 10, tree=b"anew")
    own.prune(10, 1, layout.Writer("run-1", 0, 1))
    assert steps(own) == [10]
    assert [(part_of(target, step) / "tree").read_bytes() for step in (10, 5)] == [b"tree", b"tree"]
    save(given, 11)
    given.prune(11, 1, layout.Writer("run-2", 0, 0))
    assert (steps(given), steps(own)) == ([11], [10])


def test_what_others_can_write_is_not_handed_on(source: Path, target: Path) -> None:
    (part_of(source, 10) / "tree").chmod(0o666)
    assert hand_on(source, target) == [5]
    (source / layout.POSITIONS / "group-0000-rank-0").chmod(0o666)
    another = target.with_name("another")
    another.mkdir()
    with pytest.raises(Distrusted, match=r"group-0000-rank-0: others can write into it"):
        hand_on(source, another)


def test_a_link_is_not_handed_on(source: Path, target: Path) -> None:
    (source / layout.POSITIONS / "elsewhere").symlink_to("/etc/passwd")
    with pytest.raises(Distrusted, match=r"elsewhere is neither a file nor a folder"):
        hand_on(source, target)
