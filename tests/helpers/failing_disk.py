"""A disk that fails or stalls on order, in all processes of a run: each call that writes, or a share of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


class FailingDisk:
    """The paths that begin with `below`; they work until `fail` or `stall` is called."""

    def __init__(self, folder: Path, below: Path) -> None:
        library, self._order = folder / "failing_disk.so", folder / "failing_disk.order"
        source = Path(__file__).with_name("failing_disk.c")
        command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
        try:
            subprocess.run(command, check=True)
        except FileNotFoundError:
            pytest.skip("there is no C compiler here")
        self.environ = {
            "LD_PRELOAD": str(library),
            "FAILING_DISK": str(below),
            "FAILING_DISK_ORDER": str(self._order),
        }

    def fail(self, number: int, percent: int = 100) -> None:
        """Let so many of a hundred calls fail with this errno."""
        part = self._order.with_suffix(".part")
        part.write_text(f"{number} {percent}")
        part.rename(self._order)

    def stall(self, seconds: int) -> None:
        """Let each call take so long."""
        self.fail(-seconds)

    def mend(self) -> None:
        self._order.unlink()
