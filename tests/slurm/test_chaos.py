"""The short form of the chaos campaign: 50 faults from outside on real Slurm, with a fixed seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slurm
CAMPAIGN = Path(__file__).parents[2] / "benchmarks/chaos.py"


def test_fifty_faults_from_outside_cost_nobody_a_step_and_no_innocent_an_attempt(tmp_path: Path) -> None:
    command = [sys.executable, str(CAMPAIGN), "--short", "--seed=1", "--parallel=2", f"--out={tmp_path}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
