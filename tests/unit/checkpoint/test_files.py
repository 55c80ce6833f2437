"""The files of a checkpoint are written and read once, and no byte that was not written is handed out."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch

from ftslurm.checkpoint import layout, snapshot
from ftslurm.checkpoint.consensus import GroupFailed, RankGroup
from ftslurm.checkpoint.files import Files
from ftslurm.checkpoint.layout import BLOCK, Writer


def has_read() -> int:
    """Return the bytes that this process has read by now."""
    found = re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())
    assert found
    return int(found[1])


def test_what_is_saved_is_not_read_back_and_what_is_restored_is_read_once(tmp_path: Path) -> None:
    numbers, group = BLOCK, RankGroup()
    tree = {"large": torch.arange(numbers), "small": [torch.ones(5) * number for number in range(30)]}
    staged, before = snapshot.Stage().copy(tree), has_read()
    sizes, crc32 = snapshot.write(staged, str(tmp_path), group)
    size, wrote = sum(sizes.values()), has_read()
    assert wrote - before < size / 10
    (tmp_path / layout.MANIFEST).write_bytes(layout.manifest(1, Writer("run", 0, 0), 1, sizes, crc32))
    live = {"large": torch.zeros(numbers, dtype=torch.int64), "small": [torch.zeros(5) for _ in range(30)]}
    loaded = snapshot.read(str(tmp_path), live, {}, group)
    assert torch.equal(loaded["large"], tree["large"])
    assert [tensor.tolist() for tensor in loaded["small"]] == [[number] * 5 for number in range(30)]
    assert has_read() - wrote < size * 1.3


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17])
def test_a_changed_byte_is_found_by_who_reads_its_block_and_by_nobody_else(size: int, tmp_path: Path) -> None:
    chance = random.Random(size)
    content = chance.randbytes(size)
    there = Files(str(tmp_path))
    with there.create_stream(tmp_path / "x", "wb") as stream:
        at = 0
        while at < size:
            at += stream.write(content[at : at + chance.choice([1, 1000, BLOCK, 2 * BLOCK])])
    sums = {name: crc32 for name, (_, crc32) in there.written.items()}
    (tmp_path / layout.MANIFEST).write_bytes(layout.manifest(1, Writer("run", 0, 0), 1, {"x": size}, sums))

    def read(start: int, length: int) -> bytes:
        with Files(str(tmp_path)).open("x") as file:
            file.seek(start)
            return file.read(length)

    assert read(0, -1) == content == (tmp_path / "x").read_bytes()
    for _ in range(6):
        start, length, where = (chance.randrange(size + 1) for _ in range(3))
        assert read(start, length) == content[start : start + length]
        if where == size:
            continue
        changed = bytearray(content)
        changed[where] ^= 1 << chance.randrange(8)
        (tmp_path / "x").write_bytes(changed)
        with pytest.raises(GroupFailed, match="x is not what was written"):
            read(where, 1)
        block = where - where % BLOCK
        assert read(0, block) == content[:block]
        (tmp_path / "x").write_bytes(content)
