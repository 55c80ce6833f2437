"""A file system that is full, for tests that run as root where a tmpfs may be mounted."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def full_disk(folder: Path, inodes: int = 0, kib: int = 64) -> Iterator[Path]:
    """A small disk without a free byte once `fill` is there; with `inodes` also without room for further files."""
    folder.mkdir()
    options = f"size={kib}k" + (f",nr_inodes={inodes}" if inodes else "")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        fill(folder)
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Take all room that is left."""
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


def make_room(folder: Path) -> None:
    """Somebody has tidied up."""
    (folder / "filler").unlink()
