"""The files of a checkpoint are written and read once, and no byte that was not written is handed out."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch
from checkpoints import ME

from ftslurm.checkpoint import layout, snapshot
from ftslurm.checkpoint.consensus import RankGroup
from ftslurm.checkpoint.files import Files
from ftslurm.checkpoint.layout import BLOCK
from ftslurm.checkpoint.store import Store

PART = layout.part_name(1, ME, 1)


def has_read() -> int:
    """Return the bytes that this process has read by now."""
    found = re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())
    assert found
    return int(found[1])


def test_what_is_saved_is_not_read_back_and_what_is_restored_is_read_once(tmp_path: Path) -> None:
    numbers, group, store = BLOCK, RankGroup(), Store(str(tmp_path))
    tree = {"large": torch.arange(numbers), "small": [torch.ones(5) * number for number in range(30)]}
    staged, before = snapshot.copy(tree, {}), has_read()
    files = snapshot.write(staged, store, PART, group)
    store.finish(1, PART, ME, files)
    size, wrote = sum(size for size, _ in files.values()), has_read()
    assert wrote - before < size / 10
    live = {"large": torch.zeros(numbers, dtype=torch.int64), "small": [torch.zeros(5) for _ in range(30)]}
    loaded = snapshot.read(store, 1, live, {}, group)
    assert torch.equal(loaded["large"], tree["large"])
    assert [tensor.tolist() for tensor in loaded["small"]] == [[number] * 5 for number in range(30)]
    assert has_read() - wrote < size * 1.3


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17])
def test_a_changed_byte_is_found_by_who_reads_its_block_and_by_nobody_else(size: int, tmp_path: Path) -> None:
    chance, store = random.Random(size), Store(str(tmp_path))
    content = chance.randbytes(size)
    there = Files(store, PART)
    with there.create_stream("x", "wb") as stream:
        at = 0
        while at < size:
            at += stream.write(content[at : at + chance.choice([1, 1000, BLOCK, 2 * BLOCK])])
    path = tmp_path / PART / "x"

    def read(start: int, length: int) -> bytes:
        with Files(store, PART, there.written).create_stream("x", "rb") as file:
            file.seek(start)
            return file.read(length)

    assert read(0, -1) == content == path.read_bytes()
    for _ in range(6):
        start, length, where = (chance.randrange(size + 1) for _ in range(3))
        assert read(start, length) == content[start : start + length]
        if where == size:
            continue
        changed = bytearray(content)
        changed[where] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(OSError, match="x is not what was written"):
            read(where, 1)
        block = where - where % BLOCK
        assert read(0, block) == content[:block]
        path.write_bytes(content)
