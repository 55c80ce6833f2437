"""A worker in a container where its user has another number (enroot's remap of root) still belongs to its run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from guarded import PATIENCE_S, attached, step

REMAPPED = ("unshare", "--user", "--map-user=1234")
WAITING = "import os, time\nprint(os.getuid(), flush=True)\ntime.sleep(1000)"

pytestmark = pytest.mark.skipif(
    subprocess.run([*REMAPPED, "true"], capture_output=True).returncode != 0, reason="no user namespace can be made"
)


def test_its_step_is_adopted_and_commanded_from_outside(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with step(folder, "--adoptable=1", srun=REMAPPED) as task:
        task.begin(WAITING)
        assert task.log().strip() == "1234"
        with attached(folder, "--patience-s=2") as there:
            assert there.until("adopted")["begun"] is True
            there.send("kill")
            assert task.process.wait(PATIENCE_S) == 137
