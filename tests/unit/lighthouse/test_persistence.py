"""The Lighthouse's files on a full disk: as much as fits is kept, and never wrong data."""

from __future__ import annotations

from pathlib import Path

import pytest
from full_disk import fill, full_disk, make_room

from ftslurm.lighthouse.persistence import BLOCK, Keep
from ftslurm.lighthouse.protobuf import write_quorum
from ftslurm.lighthouse.quorum import Member, Quorum
from ftslurm.lighthouse.registry import Memory


def quorum(number: int, members: int = 1) -> Quorum:
    return Quorum(number, tuple(Member(f"g{i}:0", "a", f"b:{i}", 7) for i in range(members)))


def test_a_registry_without_room_for_its_file_goes_on_and_makes_it_later(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk", inodes=2) as disk:  # the folder itself, and the filler
        keep = Keep(str(disk))
        assert keep.load() == Memory()
        keep.write_quorum(write_quorum(quorum(1), 0.0))
        keep.forget_quorum()
        with pytest.raises(OSError, match="No space left"):
            keep.write_state(keep.snapshot(Memory()))
        assert keep.reserved == 0
    keep = Keep(str(tmp_path / "disk" / "missing"))
    (tmp_path / "disk" / "missing").mkdir()
    keep.write_state(keep.snapshot(Memory()))
    keep.write_quorum(write_quorum(quorum(5), 0.0))
    assert Keep(str(tmp_path / "disk" / "missing")).load().next_id == 6


def test_a_quorum_that_did_not_fit_leaves_none_and_not_the_one_before(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk") as disk:
        make_room(disk)
        keep = Keep(str(disk))
        keep.write_state(keep.snapshot(Memory()))
        keep.write_quorum(write_quorum(quorum(5), 0.0))
        fill(disk)
        assert Keep(str(disk)).load().next_id == 6  # what is there can be read
        keep.write_quorum(write_quorum(quorum(6, members=1000), 0.0))
        after = Keep(str(disk)).load()
        assert (after.last, after.next_id) == (None, 1 + BLOCK)
