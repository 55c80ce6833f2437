"""A worker in a container where its user has another number (enroot's remap of root) still belongs to its run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from guarded import PATIENCE_S, attached, step

from ftslurm.guard import pilot_presence

REMAPPED = ("unshare", "--user", "--map-user=1234")
WAITING = "import os, time\nprint(os.getuid(), flush=True)\ntime.sleep(1000)"
IS_HELD = "import sys; from ftslurm.guard import pilot_presence; print(pilot_presence.is_held(b'key', '7'))"

pytestmark = pytest.mark.skipif(
    subprocess.run([*REMAPPED, "true"], capture_output=True).returncode != 0, reason="no user namespace can be made"
)


def test_its_step_is_adopted_and_commanded_from_outside(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with step(folder, "--adoptable", srun=REMAPPED) as task:
        task.begin(WAITING)
        assert task.log().strip() == "1234"
        with attached(folder, "--patience-s=2") as there:
            assert there.until("adopted")["begun"] is True
            there.send("kill")
            assert task.process.wait(PATIENCE_S) == 137


def test_it_sees_that_the_pilot_of_its_job_is_alive() -> None:
    command = [*REMAPPED, sys.executable, "-c", IS_HELD]
    held = pilot_presence.Presence(b"key", "7")
    with held._post:
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
