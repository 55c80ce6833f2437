"""Keepers and files of the previous version name modules that have moved: the old names still work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ftslurm.worker import titan, torchtitan


def test_a_keeper_of_the_version_before_starts_the_controller_of_now(tmp_path: Path) -> None:
    then, today = (
        subprocess.run(
            [sys.executable, "-m", f"ftslurm.{module}", str(tmp_path / "run"), "1", "1"],  # process 1 is not the parent
            capture_output=True,
            text=True,
            timeout=60,
        )
        for module in ("beside", "submission.controller_process")
    )
    assert (then.returncode, then.stderr) == (1, today.stderr) == (today.returncode, then.stderr)
    assert "Traceback" not in then.stderr


def test_the_torchtitan_preset_of_the_version_before_runs_the_trainer_of_now() -> None:
    assert titan.main is torchtitan.main
