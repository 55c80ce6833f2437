"""A full file system, for tests that run as root where a tmpfs may be mounted."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def full_disk(folder: Path, inodes: int = 0, kib: int = 64) -> Iterator[Path]:
    """Mount a small full disk; `inodes` limits its number of files. Skip the test if none can be mounted."""
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
    """Fill the disk."""
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


def make_room(folder: Path) -> None:
    """Remove the filler."""
    (folder / "filler").unlink()
